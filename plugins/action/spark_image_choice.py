"""Action ``spark_image_choice``: chooses how every rank gets the head's image; controller only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.image_choice import choose, differences
from sparkpair.inputs import plain


class ActionModule(ActionBase):
    """Join what the ranks hold."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``prepare``, ``stream`` and ``lines``; fails when a rank cannot have the head's image."""
        result = super().run(tmp, task_vars) | {"changed": False}
        args = plain(self._task.args)
        plan, hostvars = args["plan"], (task_vars or {})["hostvars"]
        names = [str(name) for name in args["results"]]
        seen: dict[str, dict[str, Any] | None] = {}
        steps: list[str] = []
        for rank in plan["ranks"]:
            # A later result knows better; a task that was skipped left one without an image.
            found = [plain(hostvars[rank["host"]].get(name) or {}) for name in names]
            seen[rank["host"]] = next((r["image"] for r in reversed(found) if "image" in r), None)
            if int(rank["rank"]) == 0:
                steps = next((r["steps"] for r in reversed(found) if "steps" in r), [])
        if args.get("final"):
            problems = differences(plan, seen)
            result |= {"problems": problems}
        else:
            choice = choose(plan, seen, steps)
            problems = choice.problems
            result |= asdict(choice)
        if problems:
            messages = [f"image: {p}" for p in problems]
            first = "the ranks cannot have the same image, so nothing was stopped:"
            return result | {
                "failed": True,
                "msg": "\n".join([first, *(f"- {p}" for p in problems)]),
                "sparkpair_report": {"outcome": "refused", "messages": messages},
            }
        return result
