"""Action ``spark_release``: renders a release on the controller and ships it to the rank in one call."""

from __future__ import annotations

import base64
from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair import shared
from sparkpair.inputs import plain, read_inputs, session
from sparkpair.patience import answered
from sparkpair.plan import release_id
from sparkpair.render import RenderError, render


class ActionModule(ActionBase):
    """Render, then run the module of the same name on the rank."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; files and secrets never appear in it."""
        super().run(tmp, task_vars)
        args = plain(self._task.args)
        state = args.get("state", "staged")
        wanted = {key: args[key] for key in ("root", "state", "release", "keep", "run", "spend") if key in args}
        wanted["session"] = session()
        if state == "staged":
            plan, overlays = args["plan"], args.get("overlays") or []
            try:
                files = render(plan, int(args["rank"]), root=args.get("root", "/opt/sparkpair"), overlays=overlays)
            except RenderError as error:
                return {"failed": True, "msg": str(error)}
            wanted["release"] = plan["release"]
            wanted["files"] = [
                {"path": f.path, "mode": f"{f.mode:04o}", "content": base64.b64encode(f.content).decode()}
                for f in files
            ]
            wanted["files"] += [
                {
                    "path": o["source"],
                    "mode": "0644",
                    "from": f"{args['overlay_root']}/{o['source']}",
                    "sha256": o["sha256_after"],
                }
                for o in overlays
            ]
        if state == "prepared":
            folder = shared.folder()
            keyed, own = bool(args.get("api_key_set")), bool(args.get("own_key"))
            # The key is part of what a release is, so one on record goes on with its own, which is on the rank only.
            # Then today's settings are not even read: one that does not resolve by now must not end a way back.
            today = keyed and not own
            key = read_inputs(task_vars or {}, self._templar, self._loader, stock=True).api_key if today else ""
            if today and args.get("plan") and release_id(args["plan"], key) != args["plan"]["release"]:
                return {"failed": True, "msg": "api_key: is not what the plan was made with any more; deploy again"}
            wanted["keep_secrets"] = ["api_key"] if keyed and not key else []
            wanted["secrets"] = {"ray_token": shared.once(folder, "ray_token"), "api_key": key}
        result = answered(
            lambda: self._execute_module(module_name="spark_release", module_args=wanted, task_vars=task_vars)
        )
        result.pop("invocation", None)
        return result
