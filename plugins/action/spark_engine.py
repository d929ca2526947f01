"""Action ``spark_engine``: adds the session that holds the lock, then runs the module of the same name on the rank."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.inputs import plain, session
from sparkpair.patience import answered


class ActionModule(ActionBase):
    """Say which start of ansible-playbook asks."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        result = super().run(tmp, task_vars)
        wanted = {**plain(self._task.args), "session": session()}
        return result | answered(
            lambda: self._execute_module(module_name="spark_engine", module_args=wanted, task_vars=task_vars)
        )
