"""Action ``spark_record``: adds who, where and when to an entry, and appends it to the rank's history."""

from __future__ import annotations

import getpass
import socket
from datetime import UTC, datetime
from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.gates_host import pool_basis
from sparkpair.inputs import plain
from sparkpair.live import switch_settings
from sparkpair.patience import answered
from sparkpair.rollback import is_stock


class ActionModule(ActionBase):
    """Complete the entry from the plan, then run the module of the same name."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result and the entry."""
        super().run(tmp, task_vars)
        args = plain(self._task.args)
        plan = args["plan"]
        entry = {
            "schema": 1,
            "run": args["run"],
            "release": plan["release"],
            "outcome": args["outcome"],
            "verb": args["verb"],
            "stock": is_stock(plan),
            "verify_tokens": plan["verify_tokens"],
            "dflash_tokens": plan["dflash_tokens"],
            "spec_method": plan["spec_method"],
            "image": plan["image"],
            "overlays": plan["overlays"],
            "previous": args.get("previous"),
            **({"returned_to": args["returned_to"]} if args.get("returned_to") else {}),
            "reason": args.get("reason") or "",
            "gates": args.get("gates") or [],
            "phases": args.get("phases") or {},
            "start_seconds": float(args.get("start_seconds") or 0),
            "figures": args.get("figures") or {},
            "memory_settings": pool_basis(plan.get("settings") or {}),
            "switch_settings": switch_settings(plan.get("settings") or {}),
            "gate_settings": args.get("gate_settings") or {},
            "advisory": args.get("advisory") or [],
            "who": getpass.getuser(),
            "controller": socket.gethostname(),
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        wanted = {"entry": entry, **({"root": args["root"]} if "root" in args else {})}
        result = answered(
            lambda: self._execute_module(module_name="spark_record", module_args=wanted, task_vars=task_vars)
        )
        result.pop("invocation", None)
        return result | {"entry": entry}
