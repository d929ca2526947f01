"""Action ``spark_overlay``: verifies the overlay folders of the checkout and ships them to the rank in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.inputs import OVERLAYS, plain
from sparkpair.overlay_manifest import MANIFEST, ManifestError, Proposal, ship

PASSED = (
    *("image", "source", "package_root", "destination", "docker_cli", "python", "survey", "engine"),
    *("prove", "container", "pins"),
)


class ActionModule(ActionBase):
    """Ship the overlays, run the module of the same name on the rank, and handle proposed pins."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; with ``survey`` also ``proposal`` and, once accepted, ``written``."""
        super().run(tmp, task_vars)
        args = plain(self._task.args)
        survey, prove = _true(args.get("survey")), _true(args.get("prove"))
        wanted = args.get("overlays") or []
        if survey and not wanted:
            wanted = [{"name": p.parent.name} for p in sorted(OVERLAYS.glob(f"*/{MANIFEST}"))]
        if prove:
            # A release that was accepted with an older checkout is proved by the self-checks of this one.
            wanted = [{"name": o["name"]} for o in wanted]
        try:
            shipped = ship(OVERLAYS, wanted)
        except ManifestError as error:
            messages = str(error).splitlines()
            return {
                "failed": True,
                "msg": str(error),
                "sparkpair_report": {"outcome": "refused", "messages": messages},
            }
        result = self._execute_module(
            module_name="spark_overlay",
            module_args={key: args[key] for key in PASSED if key in args} | {"overlays": shipped},
            task_vars=task_vars,
        )
        result.pop("invocation", None)
        if survey and not result.get("failed"):
            result |= self._propose(OVERLAYS, result, accept=_true(args.get("accept")))
        return result

    def _propose(self, root: Path, result: Mapping[str, Any], *, accept: bool) -> dict[str, Any]:
        proposal = Proposal(root, result["looks"])
        text = proposal.diff()
        found: dict[str, Any] = {"proposal": text, "changed": bool(accept and text)}
        if text:
            found["diff"] = {"prepared": text}
        if found["changed"] and not self._task.check_mode:
            found["written"] = proposal.write()
        return found


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "on", "1")
