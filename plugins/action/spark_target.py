"""Action ``spark_target``: chooses the release that a rollback goes to; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair import joined, live
from sparkpair.inputs import plain
from sparkpair.rollback import RollbackError, choose, placed


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
        read, names = joined.states(task_vars or {}, args["states"])
        states = placed(read, joined.addresses(task_vars or {}, names))
        known = {rank: state for rank, state in states.items() if state is not None}
        missing = [names[rank] for rank in names if rank not in known]
        try:
            target = choose(args["release"], known) if not missing else None
        except RollbackError as error:
            return result | _refused(str(error))
        if target is None:
            return result | _refused(f"{', '.join(missing)} could not be read")
        plan = None
        if target.release:
            plan = live.named(known[0]["plans"][target.release], names, known[0]["history"])
        return result | {"changed": False, "plan": plan, "reason": target.reason}
