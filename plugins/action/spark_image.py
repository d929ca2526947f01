"""Action ``spark_image``: hands the rank its part of the plan and secrets, and shows how far its work is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import shared
from sparkpair.inputs import plain, ray_files
from sparkpair.screen import noted
from sparkpair.sources import read_password

display = Display()
PASSED = ("state", "timeout", "port", "wait", "ranks", "architecture", "hold")


class ActionModule(ActionBase):
    """Run the module of the same name for one rank."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        plan = args["plan"]
        settings, state = plan["settings"], args["state"]
        this = next(r for r in plan["ranks"] if int(r["rank"]) == int(args["rank"]))
        given: dict[str, Any] = {key: args[key] for key in PASSED if key in args}
        given |= {
            "reference": args.get("reference") or plan["image"],
            "source": args.get("source") or settings["image"],
            "inputs": plan["image_inputs"],
        }
        if state == "prepared":
            # Only the head builds: every other rank gets the bits that came out there.
            ray = settings["ray_version"] if plan["executor"] == "ray" and int(this["rank"]) == 0 else ""
            given |= {"pull": settings["image_transfer"] != "none", "wheels": settings["ray_wheels"], "ray": ray}
            if ray:
                given["files"] = ray_files(ray)
            if settings["registry_user"]:
                try:
                    password = read_password(Path(settings["registry_password_file"]))
                except ValueError as error:
                    message = str(error)
                    return result | {"failed": True, "msg": message, "sparkpair_report": {"messages": [message]}}
                given |= {"user": settings["registry_user"], "password": password}
        if state in ("sent", "received"):
            folder = shared.folder()
            head = next(r for r in plan["ranks"] if int(r["rank"]) == 0)
            given |= {"address": head["address"], "own": this["address"]}
            given["secret"] = shared.once(folder, "image_stream")
        return result | self._until_done(given, str(this["host"]), task_vars)

    def _until_done(self, given: dict[str, Any], host: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        while True:
            answer = self._execute_module(module_name="spark_image", module_args=given, task_vars=task_vars)
            answer.pop("invocation", None)
            if not answer.get("working"):
                return answer
            if answer["note"]:
                display.display(f"  {noted(host, answer['note'])}")
            given = given | {"job": answer["job"]}
