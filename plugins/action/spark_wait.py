"""Action ``spark_wait``: follows a starting engine on every rank and ends early when one fails."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import shared
from sparkpair.inputs import plain
from sparkpair.waiting import Wait

display = Display()


class ActionModule(ActionBase):
    """Ask the rank for changes, show them, and tell the other ranks' actions."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return when the pair is ready (``seconds``, ``phases``), or fail with the rank's last log lines."""
        result = super().run(tmp, task_vars)
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "an engine is not awaited in check mode"}
        args = plain(self._task.args)
        plan = args["plan"]
        this = next(r for r in plan["ranks"] if r["rank"] == int(args["rank"]))
        serves = this["role"] == "head"
        url = f"http://127.0.0.1:{plan['port']}/health" if serves else None
        folder = shared.folder()
        # Messages of an earlier wait in the same run (a return after a failure) must not be taken for this one's.
        mine = f"wait-{args['attempt']}-{plan['release']}-"
        place = {"root": args["root"]} if "root" in args else {}

        def look(cursor: str, phase: str, hold: float) -> dict[str, Any]:
            wanted = {"state": "watched", "release": plan["release"], "cursor": cursor, "phase": phase, "hold": hold}
            started = time.monotonic()
            seen = self._execute_module(
                module_name="spark_engine", module_args=wanted | place | {"health_url": url}, task_vars=task_vars
            )
            if seen.get("watch", {}).get("state", "silent") == "silent" and time.monotonic() - started < hold:
                time.sleep(1)
            return seen

        wait = Wait(
            name=this["host"],
            serves=serves,
            timeout=float(args["timeout"]),
            stall=float(args["stall"]),
            look=look,
            show=lambda text: display.display(f"  {text}"),
            tell=lambda message: shared.tell(folder, f"{mine}{this['rank']}", message),
            others=lambda: {
                name: message for name, message in shared.heard(folder, mine).items() if name != f"{mine}{this['rank']}"
            },
        )
        try:
            outcome = wait.run()
        except AnsibleConnectionFailure:
            wait.give_up("cannot be reached any more")
            raise
        except Exception as error:
            # Whatever it is: the other ranks wait for this one.
            wait.give_up(f"cannot be followed any more ({error})")
            raise
        result |= {"changed": False, "seconds": outcome.seconds, "phases": outcome.phases, "lines": outcome.lines}
        if not outcome.ok:
            tail = "\n".join(f"    {line}" for line in outcome.lines)
            message = f"{this['host']} (rank {this['rank']}): {outcome.reason}"
            result |= {
                "failed": True,
                "msg": f"{message}\n  last log lines of {this['host']}:\n{tail or '    (none)'}",
                "sparkpair_report": {"messages": [message]},
            }
        return result
