"""Action ``spark_outcome``: states in the report how a run ended; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.inputs import plain

display = Display()


class ActionModule(ActionBase):
    """Put outcome and message into the report, and the message on the screen."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the fragment for the report."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        display.display(f"  {args['message']}")
        fragment = {"outcome": args["outcome"], "messages": [args["message"]]}
        return result | {"changed": False, "sparkpair_report": fragment}
