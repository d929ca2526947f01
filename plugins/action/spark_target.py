"""Action ``spark_target``: chooses the release that a rollback goes to; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair import live
from sparkpair.inputs import plain
from sparkpair.rollback import RollbackError, choose


def _refused(reason: str) -> dict[str, Any]:
    return {
        "failed": True,
        "msg": f"rollback refused, nothing was touched: {reason}",
        "sparkpair_report": {"outcome": "refused", "messages": [reason]},
    }


class ActionModule(ActionBase):
    """Join the records of all ranks."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``plan`` (or null: stock must be planned anew) and ``reason``."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        hostvars = (task_vars or {})["hostvars"]
        hosts = plain((task_vars or {})["ansible_play_hosts_all"])
        names = {int(plain(hostvars[host]["spark_rank"])): host for host in hosts}
        states = {n: plain(hostvars[h][args["states"]]).get("state") for n, h in names.items()}
        missing = [names[n] for n, state in states.items() if state is None]
        try:
            target = choose(args["release"], states) if not missing else None
        except RollbackError as error:
            return result | _refused(str(error))
        if target is None:
            return result | _refused(f"{', '.join(missing)} could not be read")
        plan = live.named(states[0]["plans"][target.release], names) if target.release else None
        return result | {"changed": False, "plan": plan, "reason": target.reason}
