"""Action ``spark_preflight_verdict``: joins the preflight results of all ranks; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.inputs import plain
from sparkpair.preflight_host import Thresholds
from sparkpair.preflight_pair import join, proposal_lines

display = Display()


class ActionModule(ActionBase):
    """Judge the pair, or print what its hosts offer."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``verdict``, ``findings`` and ``lines``; fails when the pair is blocked."""
        result = super().run(tmp, task_vars) | {"changed": False}
        args = plain(self._task.args)
        hostvars = (task_vars or {})["hostvars"]
        plan = args.get("plan")
        hosts = [r["host"] for r in plan["ranks"]] if plan else plain((task_vars or {})["ansible_play_hosts_all"])
        results = {host: plain(hostvars[host].get(args["results"], {})) for host in hosts}
        if not plan:
            return result | self._proposal(results)
        try:
            thresholds = Thresholds.read(args.get("thresholds") or {})
        except ValueError as error:
            return result | {"failed": True, "msg": str(error)}
        outcome = join(
            results,
            ranks={r["host"]: int(r["rank"]) for r in plan["ranks"]},
            thresholds=thresholds,
            skip=args.get("skip") or [],
            staged=bool(args.get("staged")),
        )
        if args.get("show", True):
            for line in outcome.lines:
                display.display(line)
        fragment: dict[str, Any] = {"findings": outcome.findings, "plan": plan}
        result |= {
            "verdict": outcome.verdict,
            "findings": outcome.findings,
            "lines": outcome.lines,
            "sparkpair_report": fragment,
        }
        if outcome.verdict == "blocked":
            blocked = outcome.messages("blocked")
            fragment |= {"outcome": "refused", "messages": blocked}
            count = "1 finding" if len(blocked) == 1 else f"{len(blocked)} findings"
            return result | {"failed": True, "msg": "\n".join([f"the pair is blocked by {count}:", *blocked])}
        if warnings := outcome.messages("degraded"):
            result["warnings"] = warnings
        return result

    @staticmethod
    def _proposal(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
        lines: list[str] = []
        for host, read in results.items():
            if "proposal" in read:
                lines += proposal_lines(host, read["proposal"])
            else:
                lines.append(f"# {host}: not asked: {read.get('msg') or 'no result'}")
        for line in lines:
            display.display(line)
        return {"lines": lines, "sparkpair_report": {"messages": lines}}
