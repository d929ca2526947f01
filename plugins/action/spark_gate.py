"""Action ``spark_gate``: runs the acceptance gates in order on the head, and stops at the first that fails."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.gates import Gate, Seen, Situation, UnknownGateError, chosen
from sparkpair.inputs import plain

display = Display()


def _entry(name: str, seen: Seen, seconds: float) -> dict[str, Any]:
    return {"name": name, "ok": seen.ok, "seen": seen.seen, "wanted": seen.wanted, "seconds": seconds}


class ActionModule(ActionBase):
    """Build each gate's requests, let the head send them, judge the answers."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``gates`` and measured figures, or fail with what was seen and wanted."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        try:
            gates = chosen(args.get("only") or (), args.get("skip") or ())
        except UnknownGateError as error:
            return result | {"failed": True, "msg": str(error), "sparkpair_report": {"outcome": "refused"}}
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "gates send no traffic in check mode"}
        plan = args["plan"]
        states = {int(rank): state for rank, state in (args.get("states") or {}).items()}
        situation = Situation(plan, states)
        done: list[dict[str, Any]] = []
        figures: dict[str, float] = {}
        for number, gate in enumerate(gates, 1):
            left_out = gate.applies(situation)
            if left_out:
                done.append(
                    {"name": gate.name, "ok": True, "seen": f"left out: {left_out}", "wanted": "", "seconds": 0}
                )
                continue
            started = time.monotonic()
            seen = self._pass(gate, situation, args, task_vars)
            seconds = round(time.monotonic() - started, 2)
            figures |= seen.figures
            done.append(_entry(gate.name, seen, seconds))
            word = "ok" if seen.ok else "FAILED"
            display.display(f"  gate {number}/{len(gates)} {gate.name}: {word} ({seconds:.1f} s): {seen.seen}")
            if not seen.ok:
                message = f"gate {gate.name} failed: saw {seen.seen}; wanted {seen.wanted}"
                return result | {
                    "failed": True,
                    "msg": message,
                    "gates": done,
                    "sparkpair_report": {"gates": done, "messages": [message], **figures},
                }
        return result | {"changed": False, "gates": done, "sparkpair_report": {"gates": done, **figures}}

    def _pass(self, gate: Gate, situation: Situation, args: dict[str, Any], task_vars: dict[str, Any] | None) -> Seen:
        ends = time.monotonic() + float((args.get("deadlines") or {}).get(gate.name, gate.deadline))
        answers: list[dict[str, Any]] = []

        def send(groups: list[dict[str, Any]]) -> str:
            """Send the groups from the head and keep the answers; returns why it could not, or an empty text."""
            if not groups:
                return ""
            sent = self._execute_module(
                module_name="spark_traffic",
                module_args={
                    "base_url": args.get("base_url") or f"http://127.0.0.1:{situation.plan['port']}",
                    "api_key_file": args.get("api_key_file"),
                    "deadline": max(1.0, ends - time.monotonic()),
                    "groups": groups,
                },
                task_vars=task_vars,
            )
            answers.extend(sent.get("responses", []))
            return "" if "responses" in sent else str(sent.get("msg", "unknown"))

        failure = send(gate.build(situation))
        if not failure and gate.then:
            failure = send(gate.then(situation, answers))
        if failure:
            return Seen(False, f"the head did not answer: {failure}", "answers of the head")
        return gate.judge(situation, answers)
