"""Action ``spark_drift``: compares the live pair with its record, and fails on a difference; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import joined
from sparkpair.drift import drift

display = Display()


class ActionModule(ActionBase):
    """Join the states of all ranks and compare."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``drift``; fail when it is not empty, so that the play exits with 2."""
        result = super().run(tmp, task_vars)
        states, names = joined.states(task_vars or {}, str(self._task.args["states"]))
        found = drift(states, names)
        for line in found or ["the live pair is as it was accepted"]:
            display.display(f"  {line}")
        outcome = {"outcome": "failed" if found else "ok", "messages": found}
        result |= {"changed": False, "drift": found, "sparkpair_report": outcome}
        return result | ({"failed": True, "msg": f"{len(found)} difference(s) from the record"} if found else {})
