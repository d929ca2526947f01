"""Action ``spark_weights``: asks the rank again and again until its work is done, and shows how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import shared
from sparkpair.inputs import plain
from sparkpair.weights import models_of, mounted_cache
from sparkpair.weights_pair import Progress

display = Display()
SCRIPT = Path(__file__).resolve().parents[2] / "roles" / "spark_weights" / "files" / "hub.py"
# What an action passes on as it is; what is not given has the module's default.
PASSED = ("root", "rehash", "streams", "hold", "port", "manifests")
OF_THE_HEAD = ("source", "exclude", "environment", "token")


class ActionModule(ActionBase):
    """Work on the weights of one rank."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's last result; ``hashed_bytes`` counts all its calls."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        plan, state = args["plan"], str(args["state"])
        this = next(r for r in plan["ranks"] if int(r["rank"]) == int(args["rank"]))
        head = next(r for r in plan["ranks"] if int(r["rank"]) == 0)
        if not mounted_cache(this):
            return result | {"failed": True, "msg": f"rank {this['rank']} mounts no Hugging Face cache"}
        wanted: dict[str, Any] = {k: args[k] for k in PASSED if k in args} | {
            "state": state,
            "hf_home": mounted_cache(this),
            "models": models_of(plan),
            "head": this is head,
            "verify_only": this is not head and str(args.get("transfer", "fabric")) == "none",
        }
        if state in ("checked", "downloaded") and this is head:
            wanted |= {k: args[k] for k in OF_THE_HEAD if k in args}
            wanted |= {"image": plan["image"], "script": SCRIPT.read_text(encoding="utf-8")}
        if state in ("served", "copied", "ended"):
            folder = shared.folder()
            wanted |= {"address": head["address"], "own": this["address"], "secret": shared.once(folder, "weights")}
            wanted["peers"] = [r["address"] for r in plan["ranks"]]
        return result | self._repeat(wanted, str(this["host"]), task_vars)

    def _repeat(self, wanted: dict[str, Any], host: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        hashing = Progress(host, "hashing weights")
        bringing = Progress(host, "downloading weights" if wanted["state"] == "downloaded" else "copying weights")
        begun, hashed, received, changed, warnings = time.monotonic(), 0, 0, False, []
        stored, before = None, None
        while True:
            seen = self._execute_module(module_name="spark_weights", module_args=wanted, task_vars=task_vars)
            seen.pop("invocation", None)
            if seen.get("failed") or "weights" not in seen:
                return seen
            hashed, changed = hashed + seen["hashed_bytes"], changed or seen["changed"]
            received += seen["received_bytes"]
            warnings += [w for w in seen.pop("notes") if w not in warnings]
            unknown = sum(w["unknown_bytes"] for w in seen["weights"])
            lacking = sum(w["lacking_bytes"] for w in seen["weights"])
            moving = wanted["state"] in ("downloaded", "copied") and any(not w["complete"] for w in seen["weights"])
            if self._task.check_mode or not (unknown or moving):
                if received or bringing.total:
                    display.display(f"  {bringing.ended(received, time.monotonic() - begun)}")
                return seen | {"hashed_bytes": hashed, "changed": changed, "warnings": warnings}
            after = (unknown, lacking, sum(w["unlinked"] for w in seen["weights"]))
            if after == before and not seen["working"]:
                return seen | {"failed": True, "msg": f"{host}: no progress with {_first(seen['weights'])}"}
            before = after
            if seen["working"]:
                stored = seen["stored_bytes"] if stored is None else stored
                lacking = max(0, lacking - (seen["stored_bytes"] - stored))
            if not unknown and not bringing.begun:
                bringing.total, bringing.begun = lacking + received, begun
            line = hashing.line(unknown, time.monotonic()) if unknown else bringing.line(lacking, time.monotonic())
            display.display(f"  {line}")
            wanted = wanted | {"rehash": False}
            # Asked once and not in every round.
            wanted["hub_away"] = seen["hub_failed"]
            wanted["awaited"] = seen["downloading"] or wanted.get("awaited", "")


def _first(weights: list[dict[str, Any]]) -> str:
    return next((f"{w['repository']}: {'; '.join(w['lacking'])}" for w in weights if not w["complete"]), "the weights")
