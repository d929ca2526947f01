"""Action ``spark_verdict``: judges the whole pair from states that were read before; controller only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import joined, live, rollback
from sparkpair.advisory import advisory
from sparkpair.gates import UNASKED
from sparkpair.history import accepted, noted
from sparkpair.inputs import plain
from sparkpair.screen import status_table

display = Display()


class ActionModule(ActionBase):
    """Join the states of all ranks."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``serving``, ``reasons``, ``plan`` and the fragments for the report; never fails by itself."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        states, names = joined.states(task_vars or {}, args["states"])
        addresses = joined.addresses(task_vars or {}, names)
        head = states.get(0) or {}
        plan = args.get("plan") or (live.named(head["plan"], names) if head.get("plan") else None)
        ranks = [live.rank_report(n, names[n], addresses[n], states[n]) for n in sorted(names)]
        fragment: dict[str, Any] = {"ranks": ranks}
        if plan:
            judged = live.verdict(plan, states, names)
            fragment["plan"] = plan
            if judged.probe:
                fragment["draft_tokens_per_step"] = judged.probe.draft_tokens_per_step
                fragment["tokens_per_second"] = judged.probe.tokens_per_second
        else:
            judged = live.without_plan(states, names)
        if args.get("show"):
            for line in status_table(plan, ranks, states, judged):
                display.display(line)
        known = {n: s for n, s in states.items() if s is not None and "history" in s}
        wanted = plan["release"] if plan else ""
        placed = rollback.placed(states, addresses) if len(known) == len(states) else {}
        back = rollback.fallback(placed, wanted)
        fallback = None
        if back and head["plans"].get(back):
            fallback = live.named(head["plans"][back], names, head["history"])
        recorded = bool(known) and len(known) == len(states)
        before = head.get("current")
        kept = rollback.to_keep(states, wanted, before, int(args.get("keep") or 0)) if recorded else {}
        closed = rollback.no_way_back(placed, wanted)
        told = live.notes(states, names, str(args.get("run") or "")) if recorded else []
        done = bool(plan) and all(plan["release"] in accepted(s["history"]) for s in known.values()) and bool(known)
        return result | {
            "accepted": done,
            "accepted_by": noted(head["history"], plan["release"], "verb") if done else None,
            "done": done and judged.serving,
            "stopped": recorded and live.stopped(known),
            "leftovers": any(s["leftovers"] for s in states.values() if s is not None),
            "run": args.get("run"),
            "advisory": advisory(plan) if plan else [],
            "notes": told + ([closed] if closed else []),
            "outlook": live.outlook(states),
            "keep": {str(rank): releases for rank, releases in kept.items()},
            "fallback": fallback,
            "fallback_gates": noted(head["history"], back, "gate_settings") or UNASKED if fallback else None,
            "plan_gates": noted(head["history"], wanted, "gate_settings") or UNASKED if recorded else None,
            "no_way_back": closed,
            # It served before this run and was accepted before: what is asked today is no reason to take it down.
            "standing": judged.serving and rollback.accepted_anywhere(known, wanted),
            "untried": bool(plan) and live.untried(plan, fallback),
            "changed": False,
            "serving": judged.serving,
            "reasons": judged.reasons,
            "probe": asdict(judged.probe) if judged.probe else None,
            "plan": plan,
            "states": {str(n): s for n, s in states.items()} if args.get("keep_states") else {},
            "sparkpair_report": fragment,
        }
