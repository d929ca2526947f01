"""Gates that judge speculation: verified width, degenerate output, acceptance. Controller only."""

from __future__ import annotations

import math

from . import metrics
from .gatekit import Answers, Group, Seen, Situation, by_id, chat, first_fault, group, request

WIDTH_TOKENS = 96
WIDTH_DRAFTS = 8
# The last step of a request may draft less; no step may draft more.
WIDTH_SHORTFALL = 0.05
CANARY_DRAFTS = 64
# The longest unit that a broken engine was seen to repeat is a word; a sound text may well repeat a sentence.
UNIT = 8
REPEATS = 4
SURE_MARKS = 8
SURE_LETTERS = 16
ACCEPTANCE_DRAFTS = 100
ACCEPTANCE_TOKENS = 112
ACCEPTANCE_LOW = 0.01
ACCEPTANCE_HIGH = 0.999
ROUNDS = 4


def no_speculation(situation: Situation) -> str:
    """Why gates about drafts are left out."""
    return "" if situation.plan["expected_width"] is not None else "no speculation is planned"


def _metrics_request(name: str) -> dict[str, object]:
    return request(name, "/metrics", keep_lines=metrics.KEEP_LINES)


def growth(answers: Answers) -> metrics.Counters:
    """Counters from the answer ``before`` to the latest ``after``. Raises MetricsError, also when a request failed."""
    if why := first_fault(answers):
        raise metrics.MetricsError(why)
    found = by_id(answers)
    return metrics.delta(metrics.parse(found["before"]["text"] or ""), metrics.parse(found["after"]["text"] or ""))


# --- width ------------------------------------------------------------------------------------------------------------


def build_width(situation: Situation) -> list[Group]:
    """Two ordinary completions between two readings of the counters."""
    body = {"model": situation.model, "max_tokens": WIDTH_TOKENS, "temperature": 0, "ignore_eos": True}
    prompts = ("Write down the days of the week:", "A short story about a lighthouse:")
    asked = [request(f"text-{i}", "/v1/completions", {**body, "prompt": p}) for i, p in enumerate(prompts)]
    return [group("width", _metrics_request("before"), *asked, _metrics_request("after"))]


def judge_width(situation: Situation, answers: Answers) -> Seen:
    """Every step drafts exactly the planned width, and nothing beyond it is ever accepted."""
    expected = int(situation.plan["expected_width"])
    wanted = f"{expected}.0 draft tokens per step in at least {WIDTH_DRAFTS} steps, no accept beyond position "
    wanted += str(expected - 1)
    try:
        grown = growth(answers)
        width = metrics.draft_width(grown)
    except metrics.MetricsError as error:
        return Seen(False, str(error), wanted)
    seen = f"{width:.2f} draft tokens per step ({grown.draft_tokens:.0f} in {grown.drafts:.0f} steps)"
    beyond = {p: v for p, v in grown.per_position.items() if p >= expected and v}
    uncounted = sorted(set(range(expected)) - set(grown.per_position))
    seen += f", {sum(beyond.values()):.0f} accepts at positions {sorted(beyond)}" if beyond else ""
    seen += f", no counter for positions {uncounted}" if uncounted else ""
    exact = grown.draft_tokens <= expected * grown.drafts and width > expected - WIDTH_SHORTFALL
    good = exact and not beyond and not uncounted and grown.drafts >= WIDTH_DRAFTS
    return Seen(good, seen, wanted, {"draft_tokens_per_step": round(width, 2)})


# --- canary -----------------------------------------------------------------------------------------------------------


def build_canary(situation: Situation) -> list[Group]:
    """Three short chats, with readings of the counters around them when drafts are planned."""
    prompts = ("Reply with OK.", "Name three colours.", "What is two plus two?")
    # Sampled and seeded: a healthy model may repeat itself when greedy, a broken one does so at any temperature.
    asked = [
        request(f"canary-{i}", "/v1/chat/completions", chat(situation, text, max_tokens=96, temperature=1, seed=i))
        for i, text in enumerate(prompts)
    ]
    if no_speculation(situation):
        return [group("canary", *asked)]
    return [group("canary", _metrics_request("before"), *asked, _metrics_request("after"))]


def degenerate(text: str) -> bool:
    """True for text that is nothing but one unit of up to eight characters, repeated; blanks between do not count.

    It takes four repetitions, and eight characters of marks or sixteen with letters or digits: "haha" is an answer.
    """
    told = "".join(text.split())
    least = SURE_LETTERS if any(c.isalnum() for c in told) else SURE_MARKS
    units = range(1, UNIT + 1)
    return any(len(told) >= max(least, REPEATS * unit) and told[unit:] == told[:-unit] for unit in units)


def garbage(answers: Answers, prefix: str) -> list[str]:
    """The beginnings of the texts that are blank or degenerate, of the answers whose names begin with ``prefix``."""
    texts = [str(a["content"] or "") for a in answers if str(a["id"]).startswith(prefix)]
    return [text[:20] for text in texts if not text.strip() or degenerate(text)]


def judge_canary(situation: Situation, answers: Answers) -> Seen:
    """No text is blank or one repeated unit, and drafts are accepted once enough of them were made."""
    wanted = "text that is neither blank nor one repeated unit, and drafts that are accepted"
    if why := first_fault(answers):
        return Seen(False, why, wanted)
    texts = sum(str(a["id"]).startswith("canary") for a in answers)
    if (bad := garbage(answers, "canary")) or not texts:
        return Seen(False, f"garbage: {bad!r}", wanted)
    if no_speculation(situation):
        return Seen(True, f"{texts} texts", wanted)
    try:
        grown = growth(answers)
    except metrics.MetricsError as error:
        return Seen(False, str(error), wanted)
    seen = f"{texts} texts, {grown.accepted:.0f} of {grown.draft_tokens:.0f} drafted tokens accepted"
    return Seen(grown.draft_tokens < CANARY_DRAFTS or grown.accepted > 0, seen, wanted)


# --- acceptance -------------------------------------------------------------------------------------------------------


def _acceptance_traffic(situation: Situation, turn: int, tokens: int) -> Group:
    # Sampled: greedy text of a sound but simple model may accept every draft.
    body = {"model": situation.model, "max_tokens": tokens, "temperature": 1, "ignore_eos": True}
    asked = [
        request(f"sampled-{turn}-{i}", "/v1/completions", {**body, "prompt": f"{turn} {i}: A letter from", "seed": i})
        for i in range(min(4, situation.seqs))
    ]
    return group(f"sampled-{turn}", *asked, mode="concurrent")


def build_acceptance(situation: Situation) -> list[Group]:
    """A first round of sampled text between two readings of the counters."""
    start, end = group("start", _metrics_request("before")), group("end", _metrics_request("after"))
    return [start, _acceptance_traffic(situation, 0, ACCEPTANCE_TOKENS), end]


def continue_acceptance(situation: Situation, answers: Answers) -> list[Group]:
    """Another round while too few steps were counted: a draft that is accepted often needs more text for as many."""
    turn = sum(1 for a in answers if a["id"] == "after")
    try:
        missing = ACCEPTANCE_DRAFTS - growth(answers).drafts
    except metrics.MetricsError:
        return []
    if missing <= 0 or turn >= ROUNDS:
        return []
    streams = min(4, situation.seqs)
    tokens = math.ceil(missing / streams) * (int(situation.plan["expected_width"]) + 1)
    room = int(situation.plan["max_model_len"]) // 2
    return [
        _acceptance_traffic(situation, turn, min(tokens, room)),
        group("end", _metrics_request("after")),
    ]


def judge_acceptance(_: Situation, answers: Answers) -> Seen:
    """The first draft of a step is accepted sometimes, and not always: both ends are known engine faults."""
    wanted = f"the first draft of a step accepted in {ACCEPTANCE_LOW:.0%} to {ACCEPTANCE_HIGH:.1%} of at least "
    wanted += f"{ACCEPTANCE_DRAFTS} steps, of text that is neither blank nor one repeated unit"
    try:
        grown = growth(answers)
        share = metrics.acceptance(grown)
    except metrics.MetricsError as error:
        return Seen(False, str(error), wanted)
    # Of one repeated unit every draft is right, whatever is wrong with the engine.
    if bad := garbage(answers, "sampled"):
        return Seen(False, f"garbage: {bad!r}", wanted)
    mean = grown.accepted / grown.drafts
    seen = f"{share:.1%} of {grown.drafts:.0f} steps, {mean:.2f} drafts accepted per step"
    good = grown.drafts >= ACCEPTANCE_DRAFTS and ACCEPTANCE_LOW <= share <= ACCEPTANCE_HIGH
    return Seen(good, seen, wanted, {"accepted_per_step": round(mean, 2), "first_draft_acceptance": round(share, 3)})
