"""Gates judge the answers of a recorded engine: each passes on what it said, and fires when that is spoilt."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import FOLDER, record, replay
from tests.standin.engine import Engine

Answers = list[dict[str, Any]]
STAND_IN = "stand-in"
SETTINGS = {"served_model_name": STAND_IN, "max_model_len": 1024, "verify_tokens": 3, "reasoning_parser": ""}
FILES = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module", params=[STAND_IN, *FILES], ids=lambda p: p.stem if isinstance(p, Path) else p)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Every recording, and one of the stand-in, which shows that recordings can be made and judged."""
    if request.param != STAND_IN:
        return dict(json.loads(request.param.read_text(encoding="utf-8")))
    with Engine(step_seconds=0.001) as engine:
        made = record(engine.url, SETTINGS)
    return dict(json.loads(json.dumps(made)))


def test_every_gate_passes_on_what_the_engine_said(recorded: dict[str, Any]) -> None:
    """The recording holds what the gates of an ordinary rollout ask."""
    assert {"health", "models", "completion", "width", "json", "tool", "acceptance"} <= set(recorded["answers"])
    seen = {name: replay(recorded, name) for name in recorded["answers"]}
    assert {name: found.seen for name, found in seen.items() if not found.ok} == {}


def last(answers: Answers, **changed: Any) -> None:
    """Change the last answer."""
    answers[-1].update(changed)


def cut_counters(answers: Answers, series: str) -> None:
    """Let a series be missing in the last reading of the counters."""
    text = answers[-1]["text"]
    assert series in text
    answers[-1]["text"] = "\n".join(line for line in text.splitlines() if series not in line)


SPOILT: dict[str, tuple[str, Callable[[Answers], object]]] = {
    "health that is not 200": ("health", lambda a: last(a, status=503)),
    "another model": ("models", lambda a: last(a, json={"data": [{"id": "another"}]})),
    "no tokens": ("completion", lambda a: last(a, usage={"completion_tokens": 0})),
    "a warm-up that fails": ("warmup", lambda a: last(a, status=500, text="EngineCore encountered an issue")),
    "counters that never move": ("width", lambda a: last(a, text=a[0]["text"])),
    "no counter of drafts": ("width", lambda a: cut_counters(a, "num_drafts_total")),
    "no counter per position": ("acceptance", lambda a: cut_counters(a, "per_pos_total")),
    "garbage": ("canary", lambda a: a[1].update(content="!" * 96)),
    "a stream that breaks": ("stream", lambda a: last(a, error="ValueError: the stream ended without [DONE]")),
    "one of several is refused": ("concurrent", lambda a: last(a, status=503)),
    "no text with thinking off": ("thinking", lambda a: a[0].update(content=None)),
    "a count that stops early": ("json", lambda a: last(a, content=a[-1]["content"].rpartition(",")[0] + "]")),
    "a tool that is not called": ("tool", lambda a: last(a, tool_calls=None)),
    "a guided answer that is wrong": ("mixed", lambda a: a[1].update(content="[1]")),
    "a prompt that was cut": ("long", lambda a: last(a, usage={"prompt_tokens": 256, "completion_tokens": 8})),
}


@pytest.mark.parametrize("case", SPOILT)
def test_gate_fires_when_the_answer_is_spoilt(recorded: dict[str, Any], case: str) -> None:
    """Everything but the spoilt part is what the engine said."""
    name, spoil = SPOILT[case]
    answers = copy.deepcopy(recorded["answers"][name])
    spoil(answers)
    assert not replay(recorded, name, answers).ok
