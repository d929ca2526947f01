"""Requests that compile every kernel shape which ordinary traffic meets, before a client does. Controller only.

The drafter's kernels are compiled per block of min(256, next power of two above tokens + 8); one completion at each of
five exact prompt lengths reaches the blocks 16 to 256. Chats then reach the sampler's variants (hub defaults set top_p
and temperature, so a request without top_k or top_p must say so) and every batch size up to ``max_num_seqs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

RUNGS = (1, 24, 56, 120, 248)
SHORT = {"max_tokens": 24, "temperature": 0}
SAMPLED = {"max_tokens": 24, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
SAMPLED_WIDTH = 3
SINGLES: tuple[tuple[str, int, bool | None, dict[str, Any]], ...] = (
    ("c1", 32, False, SHORT),
    ("think-c1", 16, True, SHORT),
    ("short-c1", 8, None, {"temperature": 0}),
    ("samp-k", 8, False, {"max_tokens": 24, "temperature": 0.8, "top_k": 40, "top_p": 1.0}),
    ("samp-p", 8, False, {"max_tokens": 24, "temperature": 0.8, "top_k": 0, "top_p": 0.9}),
    ("samp-kp", 8, False, SAMPLED),
)
TIMEOUT = 240
# Words of which n make n tokens: the first with a tokenizer of a large vocabulary, the second with one of single bytes.
# Where neither does (a tokenizer that adds a token in front, say), a list of token ids has the exact length.
WORDS = ("hello", "x")


def count(max_num_seqs: int) -> int:
    """How many requests a warm-up sends: 11 alone, then one burst for each concurrency from 2 up."""
    return len(RUNGS) + len(SINGLES) + sum(range(2, max_num_seqs + 1))


def _chat(
    model: str, name: str, words: int, thinking: bool | None, *, more: Mapping[str, Any], patience: float
) -> dict[str, Any]:
    # The name in front keeps prefix caching from answering one arm with another's prompt.
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{name} {'warm ' * words}Reply with OK."}],
        **more,
    }
    if thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": thinking}
    return {"id": name, "method": "POST", "path": "/v1/chat/completions", "body": body, "timeout": patience}


def candidate(word: str, length: int) -> str:
    """A text that has ``length`` tokens when the tokenizer knows ``word`` as one token."""
    return (" " if len(word) > 1 else "").join([word] * length)


def tokenize_groups(model: str) -> list[dict[str, Any]]:
    """Requests that ask the engine's tokenizer how long each candidate for each rung is."""
    asked = [
        {
            "id": f"tokenize-{length}-{word}",
            "method": "POST",
            "path": "/tokenize",
            "body": {"model": model, "prompt": candidate(word, length)},
            "timeout": 30,
        }
        for length in RUNGS
        for word in WORDS
    ]
    return [{"name": "tokenize", "mode": "sequential", "requests": asked}]


def exact(answers: Sequence[Mapping[str, Any]]) -> dict[int, str | list[int]]:
    """Rung to a prompt that the tokenizer counts as exactly that many tokens; a rung without one is left out.

    A prompt is a text, or a list of token ids when no candidate has the length.
    """
    found: dict[int, str | list[int]] = {}
    ids: list[int] = []
    for answer in answers:
        kind, _, rest = str(answer["id"]).partition("-")
        body = answer["json"]
        if kind != "tokenize" or not isinstance(body, dict):
            continue
        length, _, word = rest.partition("-")
        if body.get("count") == int(length):
            found.setdefault(int(length), candidate(word, int(length)))
        ids = max(ids, list(body.get("tokens") or []), key=len)
    return found | {n: ids[-n:] for n in RUNGS if n not in found and n <= len(ids)}


def groups(
    model: str, max_num_seqs: int, prompts: Mapping[int, str | list[int]], patience: float = TIMEOUT
) -> list[dict[str, Any]]:
    """The warm-up's requests, as spark_traffic takes them.

    Args:
        model: name under which the pair serves.
        max_num_seqs: the widest burst.
        prompts: what ``exact`` found.
        patience: seconds that one request may take.
    """
    rungs = [
        {
            "id": f"rung-{length}",
            "method": "POST",
            "path": "/v1/completions",
            "body": {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0},
            "timeout": patience,
        }
        for length, prompt in sorted(prompts.items())
    ]
    singles = [
        _chat(model, name, words, thinking, more=more, patience=patience) for name, words, thinking, more in SINGLES
    ]
    made = [
        {"name": "ladder", "mode": "sequential", "requests": rungs},
        {"name": "singles", "mode": "sequential", "requests": singles},
    ]
    for width in range(2, max_num_seqs + 1):
        # The recipe samples at three and is greedy elsewhere, so that the sampler also compiles for a batch.
        more = SAMPLED if width == SAMPLED_WIDTH else SHORT
        burst = [_chat(model, f"burst-{width}-{i}", 8, False, more=more, patience=patience) for i in range(width)]
        made.append({"name": f"burst-{width}", "mode": "concurrent", "requests": burst})
    return made


def judge(answers: Sequence[Mapping[str, Any]], fault: Callable[[Mapping[str, Any]], str]) -> tuple[int, list[str]]:
    """Count the requests that did their part; returns the count and what went wrong with the others."""
    known = exact(answers)
    passed = 0
    faults = [f"rung-{n}: /tokenize gives no prompt of {n} tokens" for n in RUNGS if n not in known]
    for answer in answers:
        name = str(answer["id"])
        if name.startswith("tokenize-"):
            continue
        why = fault(answer)
        if not why and name.startswith("rung-"):
            wanted = int(name.removeprefix("rung-"))
            seen = int((answer["usage"] or {}).get("prompt_tokens") or 0)
            why = "" if seen == wanted else f"{seen} prompt tokens, wanted {wanted}"
        if why:
            faults.append(f"{name}: {why}")
        else:
            passed += 1
    return passed, faults
