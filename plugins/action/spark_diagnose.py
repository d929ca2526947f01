"""Action ``spark_diagnose``: makes room on the controller, then runs the module of the same name on the rank."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair import room, shared
from sparkpair.inputs import plain


class ActionModule(ActionBase):
    """Give up the room that the lock has kept in reserve, which a way back begins with."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        # What follows a failure is written also where a full disk was its cause.
        room.spend(shared.folder())
        return self._execute_module(
            module_name="spark_diagnose", module_args=plain(self._task.args), task_vars=task_vars
        )
