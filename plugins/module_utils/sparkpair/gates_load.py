"""Gates for the ways clients use the API: streams, several at once, thinking, a long prompt. Controller only."""

from __future__ import annotations

from .gatekit import (
    HTTP_OK,
    NO_EVIDENCE,
    Answers,
    Group,
    Seen,
    Situation,
    by_id,
    chat,
    fault,
    first_fault,
    group,
    held_back,
    overlap,
    request,
    streamed,
    texts_of,
    tokens_of,
)

STREAM_TOKENS = 48
BURST_TOKENS = 64
THINK_TOKENS = 64
LONG_TOKENS = 8192
LONG_ANSWER = 8
LONG_SEED = "The tide came in over the flat sand, and the lamp of the old lighthouse turned once more. "
THINK_TAG = "<think>"
SOAK_SECONDS = 60.0
SOAK_TURNS = 12


# --- stream -----------------------------------------------------------------------------------------------------------


def build_stream(situation: Situation) -> list[Group]:
    """One streamed chat."""
    body = chat(situation, "Describe a harbour in the morning.", max_tokens=STREAM_TOKENS, ignore_eos=True)
    return [group("stream", streamed("stream", body))]


def judge_stream(_: Situation, answers: Answers) -> Seen:
    """Tokens arrive while the answer is being made, and the stream ends as it should."""
    wanted = "a complete stream whose text arrives in more than one piece"
    answer = answers[0]
    if why := fault(answer):
        return Seen(False, why, wanted)
    pieces = len(answer["events"])
    if not pieces or not tokens_of(answer):
        return Seen(False, f"{tokens_of(answer)} tokens in {pieces} pieces", wanted)
    first = float(answer["first_token"]) - float(answer["started"])
    rest = float(answer["events"][-1]) - float(answer["first_token"])
    seen = f"first token after {first:.2f} s, {tokens_of(answer)} tokens in {pieces} pieces over {rest:.2f} s"
    return Seen(pieces > 1, seen, wanted, {"first_token_seconds": round(first, 3)})


# --- concurrent -------------------------------------------------------------------------------------------------------


def widths(situation: Situation) -> list[int]:
    """How many requests go out at once: two, and as many as the pair decodes at once."""
    return sorted({2, situation.seqs})


def build_concurrent(situation: Situation) -> list[Group]:
    """For each width, as many streams at once."""
    made = []
    for width in widths(situation):
        asked = [
            streamed(
                f"{width}-{i}",
                chat(situation, f"Story number {i} of {width}.", max_tokens=BURST_TOKENS, ignore_eos=True),
            )
            for i in range(width)
        ]
        made.append(group(f"at-once-{width}", *asked, mode="concurrent"))
    return made


def judge_concurrent(situation: Situation, answers: Answers) -> Seen:
    """All answers are whole, and at some moment all of them are being decoded, unless the engine holds them back."""
    free = held_back(situation)
    wanted = f"{' and '.join(map(str, widths(situation)))} streams at once, all whole"
    wanted += "" if free else ", all decoded together"
    if why := first_fault(answers):
        return Seen(False, why, wanted)
    parts, good = [], True
    for width in widths(situation):
        mine = [a for a in answers if a["group"] == f"at-once-{width}"]
        short = [str(a["id"]) for a in mine if not tokens_of(a)]
        seconds = overlap(mine)
        starts = [float(a["started"]) for a in mine]
        skew = max(starts) - min(starts)
        good = good and not short and (seconds > 0 or free)
        together = NO_EVIDENCE if free and not seconds else f"all together for {seconds:.2f} s"
        parts.append(
            f"{width} at once: {sum(map(tokens_of, mine))} tokens, {together} (skew {skew:.3f} s)"
            + (f", no tokens from {', '.join(short)}" if short else "")
        )
    return Seen(good, "; ".join(parts), wanted)


# --- thinking ---------------------------------------------------------------------------------------------------------


def build_thinking(situation: Situation) -> list[Group]:
    """The same chat with thinking off and on."""
    asked = [
        request(
            name,
            "/v1/chat/completions",
            chat(
                situation,
                "Is 97 a prime number?",
                max_tokens=THINK_TOKENS,
                chat_template_kwargs={"enable_thinking": thinking},
            ),
        )
        for name, thinking in (("off", False), ("on", True))
    ]
    return [group("thinking", *asked)]


def judge_thinking(situation: Situation, answers: Answers) -> Seen:
    """Off leaves no thought anywhere; on brings one, wherever the plan has a parser that separates it."""
    separated = "--reasoning-parser" in situation.plan["ranks"][0]["arguments"]
    wanted = "off: text without a thought; on: " + ("a thought" if separated else "text")
    if why := first_fault(answers):
        return Seen(False, why, wanted)
    found = by_id(answers)
    off, on = found["off"], found["on"]
    silent = (
        bool(str(off["content"] or "").strip()) and not off["reasoning_content"] and THINK_TAG not in off["content"]
    )
    thought = bool(on["reasoning_content"]) if separated else bool(texts_of(on).strip())
    seen = "; ".join(
        f"{name}: {len(a['reasoning_content'] or '')} characters of thought, {len(a['content'] or '')} of text"
        for name, a in (("off", off), ("on", on))
    )
    return Seen(silent and thought, seen, wanted)


# --- long prompt ------------------------------------------------------------------------------------------------------


def long_target(situation: Situation) -> int:
    """Tokens of the long prompt: several prefill chunks, and never more than fit with the answer."""
    return max(1, min(LONG_TOKENS, int(situation.plan["max_model_len"]) - 4 * LONG_ANSWER))


def build_long(situation: Situation) -> list[Group]:
    """Ask the tokenizer for token ids first: a prompt of ids has an exact length with any tokenizer."""
    return [group("tokenize", request("tokenize", "/tokenize", {"model": situation.model, "prompt": LONG_SEED}))]


def continue_long(situation: Situation, answers: Answers) -> list[Group]:
    """Send the ids, repeated up to the wanted length."""
    if len(answers) > 1 or answers[0]["status"] != HTTP_OK:
        return []
    ids = list((answers[0]["json"] or {}).get("tokens") or [])
    if not ids:
        return []
    target = long_target(situation)
    prompt = (ids * (target // len(ids) + 1))[:target]
    body = {"model": situation.model, "prompt": prompt, "max_tokens": LONG_ANSWER, "temperature": 0, "ignore_eos": True}
    return [group("long", request("long", "/v1/completions", body))]


def judge_long(situation: Situation, answers: Answers) -> Seen:
    """The engine read every token of the prompt and went on from there."""
    target = long_target(situation)
    wanted = f"{target} prompt tokens read and {LONG_ANSWER} tokens of text"
    if why := first_fault(answers):
        return Seen(False, why, wanted)
    if len(answers) == 1:
        return Seen(False, "/tokenize returned no token ids", wanted)
    answer = answers[1]
    read = int((answer["usage"] or {}).get("prompt_tokens") or 0)
    took = float(answer["ended"]) - float(answer["started"])
    seen = f"{read} prompt tokens read and {tokens_of(answer)} tokens of text in {took:.2f} s"
    good = read == target and tokens_of(answer) == LONG_ANSWER and bool(texts_of(answer).strip())
    return Seen(good, seen, wanted, {"long_prompt_seconds": round(took, 3)})


# --- soak -------------------------------------------------------------------------------------------------------------


def soak_seconds(situation: Situation) -> float:
    """How long the pair must stay well."""
    return float(situation.limits.get("soak_seconds", SOAK_SECONDS))


def build_soak(situation: Situation) -> list[Group]:
    """Health and a short completion, again and again over the soak's time."""
    body = {"model": situation.model, "prompt": "One, two,", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    pause = soak_seconds(situation) / SOAK_TURNS
    asked = [
        one
        for turn in range(SOAK_TURNS)
        for one in (
            request(f"health-{turn}", "/health", pause=pause),
            request(f"text-{turn}", "/v1/completions", body | {"prompt": f"{turn}: One, two,"}),
        )
    ]
    return [group("soak", *asked)]


def judge_soak(situation: Situation, answers: Answers) -> Seen:
    """It was healthy and generated, every time."""
    wanted = f"healthy and generating {SOAK_TURNS} times in {soak_seconds(situation):.0f} s"
    if why := first_fault(answers):
        return Seen(False, why, wanted)
    mute = [str(a["id"]) for a in answers if str(a["id"]).startswith("text") and not tokens_of(a)]
    lasted = float(answers[-1]["ended"]) - float(answers[0]["started"])
    seen = f"no tokens from {', '.join(mute)}" if mute else f"{len(answers) // 2} times in {lasted:.0f} s"
    return Seen(not mute, seen, wanted)
