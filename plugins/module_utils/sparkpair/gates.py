"""Acceptance gates: what a started pair must show before a rollout is done. Controller only.

A gate builds requests from the plan and judges the answers. It never sends anything itself, and it never guesses: an
answer that does not show what is wanted fails the gate with what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import live, metrics, warmup
from .containers import CONTAINER

Group = dict[str, Any]
Answers = Sequence[Mapping[str, Any]]

HTTP_OK = 200
HTTP_UNAUTHORIZED = 401
WIDTH_TOKENS = 96
WIDTH_DRAFTS = 8
WIDTH_TOLERANCE = 0.05
CANARY_DRAFTS = 64
COUNT_TO = 40


@dataclass(frozen=True)
class Situation:
    """What gates may look at: the plan, and the states of all ranks (rank number to state, None when not reached)."""

    plan: Mapping[str, Any]
    states: Mapping[int, Mapping[str, Any] | None]

    @property
    def model(self) -> str:
        """Name under which the pair serves."""
        return str(self.plan["served_model_name"])

    @property
    def names(self) -> dict[int, str]:
        """Host name of each rank."""
        return {int(r["rank"]): str(r["host"]) for r in self.plan["ranks"]}


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
    the answers to the first ones; the judge gets all answers.
    """

    name: str
    deadline: float
    build: Callable[[Situation], list[Group]]
    judge: Callable[[Situation, Answers], Seen]
    applies: Callable[[Situation], str] = lambda _: ""
    then: Callable[[Situation, Answers], list[Group]] | None = None


def request(name: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One request as spark_traffic takes it; a body makes it a POST."""
    return {"id": name, "method": "POST" if body is not None else "GET", "path": path, "body": body, **more}


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


def fault(answer: Mapping[str, Any] | None) -> str:
    """Why an answer is not a success; empty for status 200 without an error."""
    if answer is None:
        return "no answer"
    if answer["error"]:
        return str(answer["error"])
    if answer["status"] != HTTP_OK:
        text = answer["text"] or json.dumps(answer["json"])
        return f"status {answer['status']}: {text[:200]}"
    return ""


def tokens_of(answer: Mapping[str, Any]) -> int:
    """Completion tokens that the usage counts."""
    return int((answer["usage"] or {}).get("completion_tokens") or 0)


def _by_id(answers: Answers) -> dict[str, Mapping[str, Any]]:
    return {str(a["id"]): a for a in answers}


# --- gates that judge states ------------------------------------------------------------------------------------------


def _judge_ranks(situation: Situation, _: Answers) -> Seen:
    release = situation.plan["release"]
    reasons = [
        reason
        for rank, name in sorted(situation.names.items())
        for reason in live.rank_reasons(name, situation.states.get(rank), release)
    ]
    wanted = f"{CONTAINER} of release {release} running, never restarted, on {len(situation.names)} ranks"
    return Seen(not reasons, "; ".join(reasons) or f"{len(situation.names)} of {len(situation.names)} ranks", wanted)


def _judge_ray(situation: Situation, _: Answers) -> Seen:
    ray = (situation.states.get(0) or {}).get("ray") or {"alive": [], "error": "Ray was not asked"}
    wanted = sorted(str(r["address"]) for r in situation.plan["ranks"])
    seen = ray["error"] or f"alive: {', '.join(ray['alive'])}"
    return Seen(sorted(ray["alive"]) == wanted, seen, f"alive: {', '.join(wanted)}")


# --- gates that ask the API -------------------------------------------------------------------------------------------


def _judge_health(_: Situation, answers: Answers) -> Seen:
    why = fault(answers[0])
    return Seen(not why, why or "200", "200")


def _judge_models(situation: Situation, answers: Answers) -> Seen:
    why = fault(answers[0])
    served = [str(m.get("id")) for m in ((answers[0]["json"] or {}).get("data") or [])] if not why else []
    seen = why or f"serves {', '.join(served) or 'nothing'}"
    return Seen(served == [situation.model], seen, f"serves {situation.model}")


def _build_auth(_: Situation) -> list[Group]:
    return [group("auth", request("without", "/v1/models", auth=False), request("with", "/v1/models"))]


def _judge_auth(_: Situation, answers: Answers) -> Seen:
    status = {name: a["status"] for name, a in _by_id(answers).items()}
    good = status == {"without": HTTP_UNAUTHORIZED, "with": HTTP_OK}
    return Seen(good, f"{status['without']} without the key, {status['with']} with it", "401 without, 200 with")


def _build_completion(situation: Situation) -> list[Group]:
    body = {"model": situation.model, "prompt": "One, two, three,", "max_tokens": 16, "temperature": 0}
    return [group("completion", request("completion", "/v1/completions", {**body, "ignore_eos": True}))]


def _judge_completion(_: Situation, answers: Answers) -> Seen:
    why = fault(answers[0])
    count, text = (tokens_of(answers[0]), answers[0]["content"] or "") if not why else (0, "")
    return Seen(
        not why and count > 0 and bool(text.strip()), why or f"{count} tokens: {text[:40]!r}", "tokens and text"
    )


def _build_warmup(situation: Situation) -> list[Group]:
    return warmup.tokenize_groups(situation.model)


def _continue_warmup(situation: Situation, answers: Answers) -> list[Group]:
    return warmup.groups(situation.model, int(situation.plan["max_num_seqs"]), warmup.exact(answers))


def _no_warmup(situation: Situation) -> str:
    return "" if situation.plan.get("settings", {}).get("spark_warmup", True) else "spark_warmup is off"


def _judge_warmup(situation: Situation, answers: Answers) -> Seen:
    wanted = warmup.count(int(situation.plan["max_num_seqs"]))
    passed, faults = warmup.judge(answers, fault)
    seen = f"{passed} of {wanted} requests" + (f"; {'; '.join(faults[:5])}" if faults else "")
    return Seen(passed == wanted and not faults, seen, f"{wanted} of {wanted} requests")


def _metrics_request(name: str) -> dict[str, Any]:
    return request(name, "/metrics", keep_lines=metrics.KEEP_LINES)


def _build_width(situation: Situation) -> list[Group]:
    body = {"model": situation.model, "max_tokens": WIDTH_TOKENS, "temperature": 0, "ignore_eos": True}
    prompts = ("Write down the days of the week:", "A short story about a lighthouse:")
    asked = [request(f"text-{i}", "/v1/completions", {**body, "prompt": p}) for i, p in enumerate(prompts)]
    return [group("width", _metrics_request("before"), *asked, _metrics_request("after"))]


def _growth(answers: Answers) -> metrics.Counters:
    found = _by_id(answers)
    for answer in answers:
        if why := fault(answer):
            raise metrics.MetricsError(f"{answer['id']}: {why}")
    return metrics.delta(metrics.parse(found["before"]["text"] or ""), metrics.parse(found["after"]["text"] or ""))


def _judge_width(situation: Situation, answers: Answers) -> Seen:
    expected = int(situation.plan["expected_width"])
    wanted = f"{expected}.0 draft tokens per step and no accept beyond position {expected - 1}"
    try:
        grown = _growth(answers)
        width = metrics.draft_width(grown)
    except metrics.MetricsError as error:
        return Seen(False, str(error), wanted)
    beyond = {p: v for p, v in grown.per_position.items() if p >= expected and v}
    seen = f"{width:.2f} draft tokens per step ({grown.draft_tokens:.0f} in {grown.drafts:.0f} steps)"
    seen += f", accepts beyond: {beyond}" if beyond else ""
    good = abs(width - expected) < WIDTH_TOLERANCE and not beyond and grown.drafts >= WIDTH_DRAFTS
    return Seen(good, seen, wanted, {"draft_tokens_per_step": round(width, 2)})


def _no_speculation(situation: Situation) -> str:
    return "" if situation.plan["expected_width"] is not None else "no speculation is planned"


def _build_canary(situation: Situation) -> list[Group]:
    asked = [
        # Sampled and seeded: a healthy model may repeat itself when greedy, a broken one does so at any temperature.
        request(
            f"canary-{i}", "/v1/chat/completions", chat(situation, text, max_tokens=96) | {"temperature": 1, "seed": i}
        )
        for i, text in enumerate(("Reply with OK.", "Name three colours.", "What is two plus two?"))
    ]
    before, after = ([], [])
    if not _no_speculation(situation):
        before, after = [_metrics_request("before")], [_metrics_request("after")]
    return [group("canary", *before, *asked, *after)]


def degenerate(text: str) -> bool:
    """True for text that a broken engine repeats: at least eight characters, all but blanks one mark such as "!"."""
    marks = set(text) - {" ", "\n"}
    return len(text) >= 8 and len(marks) <= 1 and not any(c.isalnum() for c in marks)  # noqa: PLR2004


def _judge_canary(situation: Situation, answers: Answers) -> Seen:
    wanted = "text that is not one repeated mark, and drafts that are accepted"
    for answer in answers:
        if why := fault(answer):
            return Seen(False, f"{answer['id']}: {why}", wanted)
    texts = [a["content"] or "" for a in answers if str(a["id"]).startswith("canary")]
    bad = [t[:20] for t in texts if degenerate(t)]
    if bad or not any(t.strip() for t in texts):
        return Seen(False, f"garbage: {bad or texts!r}", wanted)
    if _no_speculation(situation):
        return Seen(True, f"{len(texts)} texts", wanted)
    try:
        grown = _growth(answers)
    except metrics.MetricsError as error:
        return Seen(False, str(error), wanted)
    seen = f"{len(texts)} texts, {grown.accepted:.0f} of {grown.draft_tokens:.0f} drafted tokens accepted"
    return Seen(grown.draft_tokens < CANARY_DRAFTS or grown.accepted > 0, seen, wanted)


COUNT_SCHEMA: dict[str, Any] = {
    "type": "array",
    "prefixItems": [{"const": n} for n in range(1, COUNT_TO + 1)],
    "items": False,
    "minItems": COUNT_TO,
    "maxItems": COUNT_TO,
}
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Warsaw"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def _json_body(situation: Situation) -> dict[str, Any]:
    schema = {"name": "count", "strict": True, "schema": COUNT_SCHEMA}
    return chat(
        situation,
        f"Count from 1 to {COUNT_TO} as a JSON array.",
        max_tokens=400,
        response_format={"type": "json_schema", "json_schema": schema},
    )


def _build_json(situation: Situation) -> list[Group]:
    return [group("json", request("json", "/v1/chat/completions", _json_body(situation)))]


def exact_count(answer: Mapping[str, Any]) -> str:
    """Why an answer is not exactly the array 1..40; empty when it is."""
    if why := fault(answer):
        return why
    try:
        value = json.loads(answer["content"] or "")
    except ValueError:
        return f"not JSON: {(answer['content'] or '')[:80]!r}"
    return "" if value == list(range(1, COUNT_TO + 1)) else f"another value: {str(value)[:80]}"


def _judge_json(_: Situation, answers: Answers) -> Seen:
    why = exact_count(answers[0])
    return Seen(not why, why or f"the array 1..{COUNT_TO}", f"the array 1..{COUNT_TO}")


def _build_tool(situation: Situation) -> list[Group]:
    named = {"type": "function", "function": {"name": "get_weather"}}
    asked = [
        request(
            name,
            "/v1/chat/completions",
            chat(situation, "What is the weather in Warsaw?", max_tokens=120, tools=[WEATHER_TOOL], tool_choice=choice),
        )
        for name, choice in (("required", "required"), ("named", named))
    ]
    return [group("tool", *asked)]


def tool_call(answer: Mapping[str, Any]) -> str:
    """The first tool call as text, or why there is none."""
    if why := fault(answer):
        return why
    calls = answer["tool_calls"] or []
    if not calls:
        return f"no tool call; text {(answer['content'] or '')[:60]!r}"
    function = calls[0].get("function") or {}
    try:
        arguments = json.dumps(json.loads(function.get("arguments") or ""), separators=(",", ":"))
    except ValueError:
        arguments = repr(function.get("arguments"))
    return f"{function.get('name')}({arguments})"


def _judge_tool(_: Situation, answers: Answers) -> Seen:
    wanted = 'get_weather({"city":"Warsaw"})'
    seen = {str(a["id"]): tool_call(a) for a in answers}
    return Seen(all(s == wanted for s in seen.values()), "; ".join(f"{k}: {v}" for k, v in seen.items()), wanted)


def _build_mixed(situation: Situation) -> list[Group]:
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    ordinary = chat(situation, "Tell a long story.", max_tokens=160, ignore_eos=True, **streamed)
    guided = {**_json_body(situation), **streamed}
    return [
        group(
            "mixed",
            request("ordinary", "/v1/chat/completions", ordinary, stream=True),
            request("guided", "/v1/chat/completions", guided, stream=True),
            mode="concurrent",
        )
    ]


def overlap(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Seconds in which both streams were between their first and last piece; 0 when one of them has no pieces."""
    if not first["events"] or not second["events"]:
        return 0.0
    return max(0.0, min(first["events"][-1], second["events"][-1]) - max(first["events"][0], second["events"][0]))


def _judge_mixed(_: Situation, answers: Answers) -> Seen:
    found = _by_id(answers)
    why = fault(found["ordinary"]) or exact_count(found["guided"])
    seconds = overlap(found["ordinary"], found["guided"])
    evidence = f"decoded together for {seconds:.2f} s" if seconds else "no overlap, so no mixed batch was seen"
    return Seen(
        not why,
        why or f"both answered; {evidence}",
        "an ordinary and a guided request at the same time, both right",
        {"mixed_overlap_seconds": round(seconds, 3)},
    )


def _nothing(_: Situation) -> list[Group]:
    return []


GATES: tuple[Gate, ...] = (
    Gate("ranks", 30, _nothing, _judge_ranks),
    Gate("ray", 30, _nothing, _judge_ray, lambda s: "" if s.plan["executor"] == "ray" else "the executor is not ray"),
    Gate("health", 30, lambda _: [group("health", request("health", "/health"))], _judge_health),
    Gate("models", 30, lambda _: [group("models", request("models", "/v1/models"))], _judge_models),
    Gate("auth", 30, _build_auth, _judge_auth, lambda s: "" if s.plan["api_key_set"] else "no API key is set"),
    Gate("completion", 120, _build_completion, _judge_completion),
    Gate("warmup", 900, _build_warmup, _judge_warmup, _no_warmup, _continue_warmup),
    Gate("width", 180, _build_width, _judge_width, _no_speculation),
    Gate("canary", 180, _build_canary, _judge_canary),
    Gate("json", 180, _build_json, _judge_json),
    Gate("tool", 180, _build_tool, _judge_tool),
    Gate("mixed", 240, _build_mixed, _judge_mixed),
)
"""Every gate, in the order in which a rollout runs them."""


class UnknownGateError(Exception):
    """A gate that does not exist was named; the message lists those that do."""


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Gate]:
    """Gates to run, in order. Raises UnknownGateError for a name that is no gate's."""
    known = [gate.name for gate in GATES]
    unknown = sorted({*only, *skip} - set(known))
    if unknown:
        raise UnknownGateError(f"no gate is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [gate for gate in GATES if (not only or gate.name in only) and gate.name not in skip]
