"""Gates for guided output: a JSON schema, tools, and guided beside ordinary requests. Controller only.

The schemas leave one possible answer, so a broken grammar path shows with any model, also with one that knows nothing.
"""

from __future__ import annotations

import json
from typing import Any

from .gatekit import (
    NO_EVIDENCE,
    Answer,
    Answers,
    Group,
    Seen,
    Situation,
    by_id,
    chat,
    fault,
    group,
    held_back,
    overlap,
    request,
    streamed,
)

COUNT_TO = 40
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
WEATHER_CALL = 'get_weather({"city":"Warsaw"})'
MIXED_ATTEMPTS = 3
MIXED_TOKENS = 160


def count_body(situation: Situation) -> dict[str, Any]:
    """Body of a chat whose schema forces the array 1..40."""
    schema = {"name": "count", "strict": True, "schema": COUNT_SCHEMA}
    return chat(
        situation,
        f"Count from 1 to {COUNT_TO} as a JSON array.",
        max_tokens=400,
        response_format={"type": "json_schema", "json_schema": schema},
    )


def build_json(situation: Situation) -> list[Group]:
    """One chat whose schema forces the array."""
    return [group("json", request("json", "/v1/chat/completions", count_body(situation)))]


def build_free_json(situation: Situation) -> list[Group]:
    """The same question without a schema: only a model that can count answers it."""
    text = f"Count from 1 to {COUNT_TO} as a JSON array of numbers. Answer with the array only."
    return [group("json", request("json", "/v1/chat/completions", chat(situation, text, max_tokens=400)))]


def exact_count(answer: Answer) -> str:
    """Why an answer is not exactly the array 1..40; empty when it is. A code fence around it is no fault."""
    if why := fault(answer):
        return why
    text = str(answer["content"] or "").strip()
    bare = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = json.loads(bare)
    except ValueError:
        return f"not JSON: {text[:80]!r}"
    # True equals 1 in Python, and 1.0 does; neither is what was asked for.
    good = isinstance(value, list) and all(type(v) is int for v in value) and value == list(range(1, COUNT_TO + 1))
    if good:
        return ""
    if isinstance(value, list):
        return f"{len(value)} items: {json.dumps(value[:3])[:-1]} ... {json.dumps(value[-3:])[1:]}"
    return f"another value: {json.dumps(value)[:80]}"


def judge_json(_: Situation, answers: Answers) -> Seen:
    """The answer is exactly the array."""
    why = exact_count(answers[0])
    return Seen(not why, why or f"the array 1..{COUNT_TO}", f"the array 1..{COUNT_TO}")


def build_tool(situation: Situation) -> list[Group]:
    """A required tool choice and a named one."""
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


def tool_call(answer: Answer) -> str:
    """The tool calls as text, or why there is none."""
    if why := fault(answer):
        return why
    calls = []
    for call in answer["tool_calls"] or []:
        function = call.get("function") or {}
        try:
            arguments = json.dumps(json.loads(function.get("arguments") or ""), separators=(",", ":"))
        except ValueError:
            arguments = repr(function.get("arguments"))
        calls.append(f"{function.get('name')}({arguments})")
    return ", ".join(calls) or f"no tool call; text {str(answer['content'] or '')[:60]!r}"


def judge_tool(_: Situation, answers: Answers) -> Seen:
    """Both choices call the tool once, with the city that the schema forces."""
    seen = {str(a["id"]): tool_call(a) for a in answers}
    return Seen(
        set(seen.values()) == {WEATHER_CALL}, "; ".join(f"{k}: {v}" for k, v in seen.items()), f"both: {WEATHER_CALL}"
    )


def _mixed(situation: Situation, attempt: int) -> Group:
    # A longer ordinary answer per attempt leaves more time in which both decode.
    tokens = min(MIXED_TOKENS * attempt, int(situation.plan["max_model_len"]) // 2)
    ordinary = chat(situation, f"Tell a long story. ({attempt})", max_tokens=tokens, ignore_eos=True)
    return group(
        f"mixed-{attempt}",
        streamed(f"ordinary-{attempt}", ordinary),
        streamed(f"guided-{attempt}", count_body(situation)),
        mode="concurrent",
    )


def build_mixed(situation: Situation) -> list[Group]:
    """An ordinary and a guided stream at the same time."""
    return [_mixed(situation, 1)]


def _attempts(answers: Answers) -> list[tuple[Answer, Answer]]:
    found = by_id(answers)
    return [(found[f"ordinary-{n}"], found[f"guided-{n}"]) for n in range(1, len(answers) // 2 + 1)]


def continue_mixed(situation: Situation, answers: Answers) -> list[Group]:
    """Try again while nothing failed and the two never decoded together."""
    tried = _attempts(answers)
    done = any(overlap(pair) or fault(pair[0]) or exact_count(pair[1]) for pair in tried)
    return [] if done or len(tried) >= MIXED_ATTEMPTS else [_mixed(situation, len(tried) + 1)]


def judge_mixed(situation: Situation, answers: Answers) -> Seen:
    """Both are right, and they shared batches, unless the engine holds one back: then no overlap is no evidence."""
    free = held_back(situation)
    wanted = "an ordinary and a guided request at the same time, both right" + ("" if free else ", decoded together")
    tried = _attempts(answers)
    for ordinary, guided in tried:
        if why := fault(ordinary):
            return Seen(False, f"ordinary: {why}", wanted)
        if why := exact_count(guided):
            return Seen(False, f"guided: {why}", wanted)
    seconds = max(overlap(pair) for pair in tried)
    missing = NO_EVIDENCE if free else "never decoded together"
    evidence = f"decoded together for {seconds:.2f} s" if seconds else missing
    seen = f"both right; {evidence}" + (f", attempt {len(tried)}" if len(tried) > 1 else "")
    return Seen(seconds > 0 or free, seen, wanted, {"mixed_overlap_seconds": round(seconds, 3)})
