"""Action ``spark_weights_verdict``: joins the weights of all ranks; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.inputs import plain
from sparkpair.weights_pair import judge, latest

display = Display()


class ActionModule(ActionBase):
    """Judge the pair's weights."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``complete``, ``head``, ``compare``, ``receivers`` and ``lines``; fails with all problems."""
        result = super().run(tmp, task_vars) | {"changed": False}
        args = plain(self._task.args)
        plan, hostvars = args["plan"], (task_vars or {})["hostvars"]
        hosts = [str(r["host"]) for r in plan["ranks"]]
        results = {host: plain(latest(args["results"], hostvars[host])) for host in hosts}
        silent = [host for host, seen in results.items() if not seen]
        if silent:
            return result | {"failed": True, "msg": f"the weights of {', '.join(silent)} were not checked"}
        seen = judge(plan, results, transfer=str(args["transfer"]), dry=bool(self._task.check_mode))
        if args.get("show", True):
            for line in seen.lines:
                display.display(line)
        result |= {
            "complete": seen.complete,
            "head": seen.head,
            "compare": seen.compare,
            "receivers": seen.receivers,
            "lines": seen.lines,
        }
        problems = seen.problems
        if args.get("final") and not (seen.complete or problems):
            problems = ["the weights are still not complete on every rank", *seen.lines]
        if problems:
            fragment = {"outcome": "refused", "messages": problems}
            return result | {"failed": True, "msg": "\n".join(problems), "sparkpair_report": fragment}
        return result
