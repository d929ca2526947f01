"""Action ``spark_history``: prints the joined record of all ranks; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import joined
from sparkpair.history import disagreements, merged
from sparkpair.inputs import plain
from sparkpair.screen import history_table

display = Display()


class ActionModule(ActionBase):
    """Join the records of all ranks."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``entries``, the latest last, each with the ranks that hold it."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        states, names = joined.states(task_vars or {}, str(args["states"]))
        known = {rank: state for rank, state in states.items() if state is not None}
        entries = merged(known)[-int(args.get("limit") or 20) :]
        notes = [f"{names[rank]}: not reached" for rank in sorted(names) if rank not in known]
        notes += disagreements(known, names)
        for line in [*history_table(entries, names), *notes]:
            display.display(line)
        return result | {
            "changed": False,
            "entries": entries,
            "sparkpair_report": {"history": entries, "messages": notes},
        }
