"""Action ``spark_preflight_verdict``: joins the preflight results of all ranks; controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair.inputs import plain
from sparkpair.preflight_host import Thresholds
from sparkpair.preflight_pair import finding_lines, join, proposal_lines, sentence

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
        lines = outcome.lines
        if args.get("show", True):
            for line in lines:
                display.display(line)
        blocked, degraded = outcome.of("blocked"), outcome.of("degraded")
        fragment: dict[str, Any] = {"findings": outcome.findings}
        result |= {
            "verdict": outcome.verdict,
            "findings": outcome.findings,
            "lines": lines,
            "sparkpair_report": fragment,
        }
        if blocked:
            fragment |= {"outcome": "refused", "messages": [sentence(f) for f in blocked]}
            first = f"the pair is blocked by {len(blocked)} finding{'s' if len(blocked) > 1 else ''}:"
            return result | {"failed": True, "msg": "\n".join([first, *finding_lines(blocked)])}
        if degraded:
            result["warnings"] = [sentence(f) for f in degraded]
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
