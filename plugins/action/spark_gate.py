"""Action ``spark_gate``: runs the acceptance gates in order on the head, and stops at the first that fails."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.gates import (
    UNASKED,
    Gate,
    RefusedChoiceError,
    Seen,
    Situation,
    choose,
    for_a_return,
    judge,
    limits,
    more,
)
from sparkpair.inputs import plain
from sparkpair.sensors import PAUSE_CELSIUS, PAUSE_SECONDS

display = Display()

# Checked for the sake of its conversions: a list may be text with commas, as -e on the command line gives it.
ARGUMENTS = {
    **{name: {"type": "list", "elements": "str", "default": []} for name in ("only", "skip", "also")},
    **{name: {"type": "dict", "default": {}} for name in ("limits", "deadlines", "states", "before")},
    **{name: {"type": "str"} for name in ("base_url", "api_key_file")},
    **{name: {"type": "dict"} for name in ("plan", "accepted")},
    "choice_only": {"type": "bool", "default": False},
    "history": {"type": "list", "elements": "dict", "default": []},
}


def _entry(name: str, seen: Seen, seconds: float, deadline: float) -> dict[str, Any]:
    judged = {"name": name, "ok": seen.ok, "seen": seen.seen, "wanted": seen.wanted}
    return judged | {"seconds": seconds, "deadline": deadline}


def _left_out(name: str, reason: str, deadline: float) -> dict[str, Any]:
    return _entry(name, Seen(True, f"left out: {reason}", ""), 0.0, deadline) | {"skipped": reason}


def _with_pause(seen: Seen, paused: float) -> Seen:
    return replace(seen, seen=f"{seen.seen}; paused {paused:.0f} s, the head was too hot") if paused else seen


class ActionModule(ActionBase):
    """Build each gate's requests, let the head send them, judge the answers."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``gates`` and measured figures, or fail with what was seen and wanted."""
        result = super().run(tmp, task_vars)
        _, checked = self.validate_argument_spec(
            argument_spec=ARGUMENTS, required_if=[("choice_only", False, ("plan",))]
        )
        args = plain(checked)
        try:
            gates = choose(args["only"], args["skip"], args["also"], args["deadlines"])
            bounds = limits(args["limits"])
        except RefusedChoiceError as error:
            return result | {"failed": True, "msg": str(error), "sparkpair_report": {"outcome": "refused"}}
        asked = {name: args[name] for name in UNASKED}
        if args["choice_only"]:
            if args["accepted"] is not None:
                asked = for_a_return(asked, args["accepted"])
            return result | {"changed": False, "choice": asked}
        states = {int(rank): state for rank, state in args["states"].items()}
        before = {int(rank): state for rank, state in args["before"].items()}
        situation = Situation(args["plan"], states, args["history"], bounds, before)
        for rank, name in sorted(situation.names.items()):
            if cooled := (states.get(rank) or {}).get("cooled"):
                display.display(f"  paused {cooled:.0f} s, {name} was too hot")
        done: list[dict[str, Any]] = []
        figures: dict[str, float] = {}
        for number, (gate, reason) in enumerate(gates, 1):
            where = f"  gate {number}/{len(gates)} {gate.name}"
            left_out = reason or gate.applies(situation) or ("check mode" if self._task.check_mode else "")
            deadline = float(args["deadlines"].get(gate.name, gate.deadline))
            if left_out:
                done.append(_left_out(gate.name, left_out, deadline))
                display.display(f"{where}: left out, {left_out}")
                continue
            started = time.monotonic()
            seen = self._pass(gate, situation, args, started + deadline, task_vars)
            seconds = round(time.monotonic() - started, 2)
            figures |= seen.figures
            done.append(_entry(gate.name, seen, seconds, deadline))
            display.display(f"{where}: {'ok' if seen.ok else 'FAILED'} ({seconds:.1f} s): {seen.seen}")
            if not seen.ok:
                message = f"gate {gate.name} failed: saw {seen.seen}; wanted {seen.wanted}"
                return result | {
                    "failed": True,
                    "msg": message,
                    "gates": done,
                    "figures": figures,
                    **figures,
                    "sparkpair_report": {"gates": done, "messages": [message], **figures},
                }
        if self._task.check_mode:
            return result | {
                "changed": False,
                "skipped": True,
                "gates": done,
                "msg": "gates send nothing in check mode",
            }
        return result | {
            "changed": False,
            "gates": done,
            "settings": asked,
            "figures": figures,
            **figures,
            "sparkpair_report": {"gates": done, **figures},
        }

    def _pass(
        self, gate: Gate, situation: Situation, args: dict[str, Any], ends: float, task_vars: dict[str, Any] | None
    ) -> Seen:
        answers: list[dict[str, Any]] = []
        groups = gate.build(situation)
        paused, patience = 0.0, float(situation.limits.get("pause_seconds", PAUSE_SECONDS))
        while groups:
            sent = self._execute_module(
                module_name="spark_traffic",
                module_args={
                    "base_url": args.get("base_url") or f"http://127.0.0.1:{situation.plan['port']}",
                    "api_key_file": args.get("api_key_file"),
                    # The Sparks are to blame for a pause, not the engine that the deadline is about.
                    "deadline": max(0.0, ends + paused - time.monotonic()),
                    "groups": groups,
                    "pause_celsius": situation.limits.get("celsius", PAUSE_CELSIUS),
                    "pause_seconds": max(0.0, patience - paused),
                },
                task_vars=task_vars,
            )
            paused += float(sent.get("paused", 0))
            if "responses" not in sent:
                why = f"the head did not answer: {sent.get('msg', 'no reason')}"
                return _with_pause(Seen(False, why, "answers of the head"), paused)
            answers.extend(sent["responses"])
            groups = more(gate, situation, answers)
        return _with_pause(judge(gate, situation, answers), paused)
