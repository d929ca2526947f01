"""Action ``spark_plan``: settings to plan, on the controller, without a connection to any host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from sparkpair.inputs import read_inputs
from sparkpair.settings import Refused


class ActionModule(ActionBase):
    """Resolve the settings of the play's hosts and return the plan."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``plan``, ``origins`` and ``notes``, or fail with every problem found."""
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(
            argument_spec={"env_file": {"type": "path"}, "stock": {"type": "bool", "default": False}}
        )
        inputs = read_inputs(
            task_vars or {}, self._templar, self._loader, env_file=args["env_file"], stock=args["stock"]
        )
        try:
            plan = inputs.plan().to_json()
        except Refused as refused:
            errors = [str(problem) for problem in refused.problems]
            count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
            return result | {
                "failed": True,
                "msg": "\n".join(
                    [f"The settings are refused ({count}); no host was touched:", *(f"- {e}" for e in errors)]
                ),
                "errors": errors,
                "sparkpair_report": {"outcome": "refused", "messages": errors},
            }
        short = (
            "release",
            "endpoint",
            "verify_tokens",
            "dflash_tokens",
            "spec_method",
            "expected_width",
            "executor",
            "image",
        )
        return result | {
            "changed": False,
            "plan": plan,
            "origins": inputs.resolved.origins,
            "notes": list(inputs.resolved.notes),
            "sparkpair_report": {"plan": {key: plan[key] for key in short}},
        }
