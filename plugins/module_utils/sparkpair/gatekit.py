"""What gates are made of: requests, answers, and what a gate found. Controller only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Group = dict[str, Any]
Answer = Mapping[str, Any]
Answers = Sequence[Answer]

HTTP_OK = 200
# A first request may compile kernels for minutes; the gate's deadline is the bound that counts.
PATIENCE = 900
# Pieces that each stream must have while all of them run. An engine may send several tokens in one piece.
PIECES_TOGETHER = 2


@dataclass(frozen=True)
class Situation:
    """What gates may look at.

    The plan, the states of all ranks (rank number to state, None when not reached), the head's history, limits of
    single gates that differ from their defaults, and the states of all ranks before the traffic, once it is over.
    """

    plan: Mapping[str, Any]
    states: Mapping[int, Mapping[str, Any] | None]
    history: Sequence[Mapping[str, Any]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    before: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name under which the pair serves."""
        return str(self.plan["served_model_name"])

    @property
    def names(self) -> dict[int, str]:
        """Host name of each rank."""
        return {int(r["rank"]): str(r["host"]) for r in self.plan["ranks"]}

    @property
    def seqs(self) -> int:
        """How many requests the pair decodes at once."""
        return int(self.plan["max_num_seqs"])

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the plan, or the default for a plan of a release that did not have it yet."""
        return self.plan.get("settings", {}).get(name, default)


@dataclass(frozen=True)
class Seen:
    """What a gate found: whether it passes, what was seen, what is wanted, and measured figures for the record."""

    ok: bool
    seen: str
    wanted: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gate:
    """One gate: requests to send (none for a gate that judges states), the judge, and the deadline in seconds.

    ``applies`` says why a gate is left out for a plan, or gives an empty text. ``then`` builds further requests from
    the answers so far, and is asked again until it wants none; the judge gets all answers. An ``extra`` gate runs only
    when it is asked for by name.
    """

    name: str
    deadline: float
    build: Callable[[Situation], list[Group]]
    judge: Callable[[Situation, Answers], Seen]
    applies: Callable[[Situation], str] = lambda _: ""
    then: Callable[[Situation, Answers], list[Group]] | None = None
    extra: bool = False


def request(name: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One request as spark_traffic takes it; a body makes it a POST."""
    method = "POST" if body is not None else "GET"
    return {"id": name, "method": method, "path": path, "body": body, "timeout": PATIENCE, **more}


def group(name: str, *requests: dict[str, Any], mode: str = "sequential") -> Group:
    """A group of requests as spark_traffic takes it."""
    return {"name": name, "mode": mode, "requests": list(requests)}


def chat(situation: Situation, content: str, **more: Any) -> dict[str, Any]:
    """Body of a chat completion with one user message, thinking off, temperature 0."""
    return {
        "model": situation.model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }


def streamed(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A streamed chat request whose last event carries the usage."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return request(name, "/v1/chat/completions", asked, stream=True)


def fault(answer: Answer | None) -> str:
    """Why an answer is not a success; empty for status 200 without an error."""
    if answer is None:
        return "no answer"
    if answer["error"]:
        return str(answer["error"])
    if answer["status"] != HTTP_OK:
        text = answer["text"] or json.dumps(answer["json"])
        return f"status {answer['status']}: {text[:200]}"
    return ""


def first_fault(answers: Answers) -> str:
    """The first answer that is no success, with its name; empty when all are."""
    return next((f"{a['id']}: {why}" for a in answers if (why := fault(a))), "")


def tokens_of(answer: Answer) -> int:
    """Completion tokens that the usage counts."""
    return int((answer["usage"] or {}).get("completion_tokens") or 0)


def texts_of(answer: Answer) -> str:
    """Everything that an answer says, thoughts first."""
    return (answer["reasoning_content"] or "") + (answer["content"] or "")


def by_id(answers: Answers) -> dict[str, Answer]:
    """Answers by the name of their request."""
    return {str(a["id"]): a for a in answers}


def overlap(answers: Answers) -> float:
    """Seconds in which all streams were between their first and last piece; 0 when that is no evidence.

    Each stream must have at least two pieces in the common time: one that stood still while another was decoded, or
    that ended as the other began, shared no batch with it.
    """
    if not answers or not all(a["events"] for a in answers):
        return 0.0
    begins = max(float(a["events"][0]) for a in answers)
    ends = min(float(a["events"][-1]) for a in answers)
    within = [sum(begins <= float(e) <= ends for e in a["events"]) for a in answers]
    return ends - begins if min(within) >= PIECES_TOGETHER else 0.0


def held_back(situation: Situation) -> bool:
    """Whether the engine begins no request while another one is decoded (the recipe's scheduler with ``skip``).

    Requests at once are then decoded together only when they meet before the first token of any, so a pair without an
    overlap is no worse than one with it.
    """
    # Not from the settings, which a release on record comes without.
    return any(
        r["environment"].get("GLM53_MIXED_PREFILL_CHUNK") == "skip" for r in situation.plan["ranks"] if r["rank"] == 0
    )


NO_EVIDENCE = "never decoded together, so no evidence about shared batches (glm53_mixed_prefill_chunk is skip)"
"""What a gate says of requests that met no other in a batch, where that proves nothing against the pair."""


def alone(situation: Situation) -> str:
    """Why a gate that needs two requests in one batch is left out."""
    return "" if situation.seqs > 1 else "max_num_seqs is 1"
