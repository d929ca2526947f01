"""What a real engine answered to the gates, recorded once and judged again without it.

``python -m tests.recorded http://HEAD:8888 tests/fixtures/engine/NAME.json verify_tokens=3 served_model_name=...`` asks
a pair that serves, with the settings that it was deployed with where they differ from the defaults. Nothing secret is
recorded; a pair with an API key is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sparkpair import gates, traffic
from sparkpair.gates import GATES, Seen, Situation

from tests.planning import plan as make_plan

FOLDER = Path(__file__).parent / "fixtures" / "engine"
# These ask nothing, want a key, ask for a minute, or want a model that can count.
LEFT_OUT = {"ranks", "parity", "stock", "ray", "auth", "temperature", "memory", "kernel", "soak", "quality"}


def situation(settings: dict[str, Any]) -> Situation:
    """The plan that the recorded pair was asked by."""
    return Situation(make_plan(**settings) | {"api_key_set": False}, {})


def record(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Ask everything that the gates ask, and keep every answer by gate. Raises ValueError when a gate fails."""
    where, found = situation(settings), {}
    for gate in GATES:
        if gate.name in LEFT_OUT or gate.applies(where):
            continue
        answers: list[dict[str, Any]] = []
        wanted = gate.build(where)
        while wanted:
            answers += traffic.run_groups(base_url=url, groups=wanted, deadline=gate.deadline)
            wanted = gates.more(gate, where, answers)
        seen = gates.judge(gate, where, answers)
        if not seen.ok:
            raise ValueError(f"gate {gate.name} failed: saw {seen.seen}; wanted {seen.wanted}")
        found[gate.name] = answers
    return {"settings": settings, "answers": found}


def replay(recorded: dict[str, Any], name: str, answers: list[dict[str, Any]] | None = None) -> Seen:
    """Judge the recorded answers of a gate, or these instead."""
    (gate,) = [gate for gate in GATES if gate.name == name]
    return gates.judge(gate, situation(recorded["settings"]), answers or recorded["answers"][name])


def main() -> None:
    """Record."""
    url, path, *given = sys.argv[1:]
    pairs = (setting.partition("=") for setting in given)
    made = record(url, {name: int(value) if value.isdigit() else value for name, _, value in pairs})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(made, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {', '.join(made['answers'])}")


if __name__ == "__main__":
    main()
