"""Action ``spark_lock``: adds who and where to the note, then runs the module of the same name on the rank."""

from __future__ import annotations

import getpass
import socket
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from sparkpair import room, shared
from sparkpair.inputs import leaves_out, left_out, plain, session
from sparkpair.patience import answered

NOTED = ("release", "verb", "reason", "phase")
PASSED = ("root", "state", "run", "reason", "force", "optional", "phase")


def _refused(said: str, messages: list[str]) -> dict[str, Any]:
    return {"failed": True, "msg": said, "sparkpair_report": {"outcome": "refused", "messages": messages}}


class ActionModule(ActionBase):
    """Complete the note."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result, or refuse a pair that --limit cuts in half."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        missing = [str(problem) for problem in left_out(task_vars or {})] if args["state"] != "shown" else []
        if missing:
            said = "\n".join(["half a pair is neither locked nor released; nothing was touched:", *missing])
            return result | _refused(said, missing)
        # Asked here as well as in the report, which a setting of Ansible can turn off. Not for tags: roles have none,
        # and programs that use them (molecule) skip tags of their own.
        if args["state"] == "held" and (out := leaves_out(("step", "start_at_task"))):
            said = f"{', '.join(out)} leaves tasks out, and a verb runs as a whole; nothing was touched"
            return result | _refused(said, [said])
        if args["state"] == "held" and not args.get("optional") and not self._task.check_mode:
            try:
                # For what a way back writes on the controller: modules, messages between the ranks' actions.
                room.reserve(shared.folder())
            except OSError as error:
                said = f"{constants.DEFAULT_LOCAL_TMP} on this controller has no room: {error}; nothing was touched"
                return result | _refused(said, [said])
        note = {key: args.get(key) or "" for key in NOTED}
        wanted = {key: args[key] for key in PASSED if args.get(key) is not None}
        wanted["session"] = session()
        name = str(plain((task_vars or {}).get("inventory_hostname", "")))
        wanted["note"] = {**note, "host": name, "who": getpass.getuser(), "controller": socket.gethostname()}
        result = answered(
            lambda: self._execute_module(module_name="spark_lock", module_args=wanted, task_vars=task_vars)
        )
        result.pop("invocation", None)
        return result
