"""Action ``spark_gate``: runs the acceptance gates in order on the head, and stops at the first that fails."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.gates import Gate, RefusedChoiceError, Seen, Situation, choose, judge, more
from sparkpair.gates_host import PAUSE_CELSIUS
from sparkpair.inputs import plain

display = Display()


def _entry(name: str, seen: Seen, seconds: float) -> dict[str, Any]:
    return {"name": name, "ok": seen.ok, "seen": seen.seen, "wanted": seen.wanted, "seconds": seconds}


def _left_out(name: str, reason: str) -> dict[str, Any]:
    return _entry(name, Seen(True, f"left out: {reason}", ""), 0.0) | {"skipped": reason}


class ActionModule(ActionBase):
    """Build each gate's requests, let the head send them, judge the answers."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``gates`` and measured figures, or fail with what was seen and wanted."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        try:
            gates = choose(
                args.get("only") or (), args.get("skip") or (), args.get("also") or (), args.get("deadlines") or {}
            )
        except RefusedChoiceError as error:
            return result | {"failed": True, "msg": str(error), "sparkpair_report": {"outcome": "refused"}}
        states = {int(rank): state for rank, state in (args.get("states") or {}).items()}
        limits = {name: float(value) for name, value in (args.get("limits") or {}).items()}
        situation = Situation(args["plan"], states, args.get("history") or [], limits)
        done: list[dict[str, Any]] = []
        figures: dict[str, float] = {}
        for number, (gate, reason) in enumerate(gates, 1):
            where = f"  gate {number}/{len(gates)} {gate.name}"
            left_out = reason or gate.applies(situation) or ("check mode" if self._task.check_mode else "")
            if left_out:
                done.append(_left_out(gate.name, left_out))
                display.display(f"{where}: left out, {left_out}")
                continue
            started = time.monotonic()
            seen = self._pass(gate, situation, args, task_vars)
            seconds = round(time.monotonic() - started, 2)
            figures |= seen.figures
            done.append(_entry(gate.name, seen, seconds))
            display.display(f"{where}: {'ok' if seen.ok else 'FAILED'} ({seconds:.1f} s): {seen.seen}")
            if not seen.ok:
                message = f"gate {gate.name} failed: saw {seen.seen}; wanted {seen.wanted}"
                return result | {
                    "failed": True,
                    "msg": message,
                    "gates": done,
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
            "figures": figures,
            **figures,
            "sparkpair_report": {"gates": done, **figures},
        }

    def _pass(self, gate: Gate, situation: Situation, args: dict[str, Any], task_vars: dict[str, Any] | None) -> Seen:
        ends = time.monotonic() + float((args.get("deadlines") or {}).get(gate.name, gate.deadline))
        answers: list[dict[str, Any]] = []
        groups = gate.build(situation)
        while groups:
            sent = self._execute_module(
                module_name="spark_traffic",
                module_args={
                    "base_url": args.get("base_url") or f"http://127.0.0.1:{situation.plan['port']}",
                    "api_key_file": args.get("api_key_file"),
                    "deadline": max(0.0, ends - time.monotonic()),
                    "groups": groups,
                    "pause_celsius": situation.limits.get("celsius", PAUSE_CELSIUS),
                },
                task_vars=task_vars,
            )
            if sent.get("paused", 0) >= 1:
                display.display(f"  gate {gate.name}: paused {sent['paused']:.0f} s, the head was too hot")
            if "responses" not in sent:
                return Seen(False, f"the head did not answer: {sent.get('msg', 'no reason')}", "answers of the head")
            answers.extend(sent["responses"])
            groups = more(gate, situation, answers)
        return judge(gate, situation, answers)
