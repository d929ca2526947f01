"""Action ``spark_failure``: joins what the ranks of a rollout that failed have said; controller only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.failure import look
from sparkpair.inputs import plain


class ActionModule(ActionBase):
    """Look at the variables of every host of the play."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``lost``, ``theirs``, ``reason``, ``gates`` and ``figures``."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        # Untemplated: what a task that failed has of its role's inputs, nobody can resolve any more.
        ranks = {host: variables["hostvars"].raw_get(host) for host in plain(variables["ansible_play_hosts_all"])}
        return result | {"changed": False, **asdict(look(ranks, **plain(self._task.args)))}
