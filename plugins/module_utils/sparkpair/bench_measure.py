"""Requests of a benchmark's workloads, and what their answers measured. Controller only; the head sends them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

from . import metrics
from .bench_results import Attempt, Burst, Counted, Results, Run
from .bench_workloads import Workload
from .gatekit import (
    Answer,
    Answers,
    Group,
    Situation,
    chat,
    fault,
    group,
    overlap,
    request,
    streamed,
    texts_of,
    tokens_of,
)
from .gates_drafts import growth
from .gates_guided import count_body, exact_count

SEED = 1000
WARMUP = -1
PAIR = 2
MINUTE = 60


@dataclass(frozen=True)
class Step:
    """One call of the head: what it is in words, how wide it is, which run (WARMUP: not measured), and its requests."""

    label: str
    width: int
    number: int
    groups: list[Group]


def tag(run_id: str, *parts: object) -> str:
    """A nonce that another request of any run does not have, and the same request of another arm has too."""
    return hashlib.sha256("/".join(map(str, (run_id, *parts))).encode()).hexdigest()[:16]


def body(situation: Situation, work: Workload, seed: int, nonce: str, *, ignore_eos: bool) -> dict[str, Any]:
    """Body of one request: the prompt as it is in its file (after the nonce, if any), thinking off, the fixed seed."""
    content = f"[{nonce}] {work.prompt}" if nonce else work.prompt
    more: dict[str, Any] = {
        "max_tokens": work.tokens,
        "temperature": work.temperature,
        "top_p": work.top_p,
        "seed": seed,
    }
    if work.guide is not None:
        schema = {"name": work.name, "strict": True, "schema": work.guide}
        more["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif ignore_eos:
        more["ignore_eos"] = True
    return chat(situation, content, **more)


def _around(*groups: Group) -> list[Group]:
    """The counters are read before and after."""
    before, after = (
        group(name, request(name, "/metrics", keep_lines=metrics.KEEP_LINES)) for name in ("before", "after")
    )
    return [before, *groups, after]


def too_wide(situation: Situation, work: Workload) -> list[str]:
    """What a workload leaves out on this pair, in words."""
    if work.kind == "mixed" and situation.seqs < PAIR:
        return ["mixed needs two requests in one batch, and max_num_seqs is 1"]
    return [f"{w} at once, since max_num_seqs is {situation.seqs}" for w in work.widths if w > situation.seqs]


def steps(situation: Situation, work: Workload, run_id: str, *, ignore_eos: bool) -> Iterator[Step]:
    """Every call that a workload makes: one warm-up, then the measured runs (of every width)."""
    numbers = (WARMUP, *range(work.runs))

    def asked(number: int, index: int, width: int) -> dict[str, Any]:
        nonce = tag(run_id, work.name, width, number, index) if work.nonce else ""
        seed = SEED + (number + 1) * 16 + index
        return streamed(f"run-{index}", body(situation, work, seed, nonce, ignore_eos=ignore_eos))

    if work.kind == "mixed":
        if situation.seqs < PAIR:
            return
        for number in numbers:
            both = group("run", asked(number, 0, PAIR), streamed("guided", count_body(situation)), mode="concurrent")
            yield Step(_label("attempt", number, work), PAIR, number, _around(both))
        return
    widths = [w for w in work.widths if w <= situation.seqs] if work.kind == "concurrent" else [1]
    for width in widths:
        for number in numbers:
            at_once = group("run", *(asked(number, i, width) for i in range(width)), mode="concurrent")
            label = f"{width} at once, " if work.kind == "concurrent" else ""
            yield Step(label + _label("run", number, work), width, number, _around(at_once))


def _label(word: str, number: int, work: Workload) -> str:
    return "warm-up" if number == WARMUP else f"{word} {number + 1}/{work.runs}"


def calls_left(situation: Situation, results: Results) -> int:
    """How many calls of a run are still to be made, warm-ups included, for the time that is left."""
    works = [results.workload(name) for arm in results.arms for name in results.missing(arm)]
    return sum(1 for work in works for _ in steps(situation, work, results.id, ignore_eos=False))


def left(elapsed: float, deploys: Sequence[float], *, calls: tuple[int, int], further: int) -> str:
    """How long the rest of a run may take, such as ``about 12 min left``.

    Args:
        elapsed: seconds since the run was opened.
        deploys: seconds that each rollout of an arm took since then.
        calls: how many of the calls have been made since then (at least one), and how many were to be made.
        further: arms that are still to be deployed.
    """
    done, wanted = calls
    # What served before is put back by one more rollout; without rollouts there is nothing to put back.
    rollouts = (further + 1) * fmean(deploys) if deploys else 0.0
    seconds = (elapsed - sum(deploys)) / done * (wanted - done) + rollouts
    return f"about {seconds / MINUTE:.0f} min left" if seconds >= MINUTE else "less than a minute left"


def _pieces(answer: Answer) -> tuple[float, float] | None:
    events = [float(e) for e in answer["events"]]
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(events)]
    if len(gaps) < PAIR:
        return None
    return round(median(gaps), 3), round(quantiles(gaps, n=20, method="inclusive")[-1], 3)


def read_run(answer: Answer, seed: int) -> Run:
    """What one streamed answer measured. A failed one has ``error`` and no rate, and keeps what arrived before."""
    tokens, why = tokens_of(answer), fault(answer)
    started, first, ended = answer["started"], answer["first_token"], answer["ended"]
    if not why and (not tokens or first is None):
        why = f"{tokens} tokens and no text"
    rate = None
    if not why and tokens > 1 and ended > first:
        rate = (tokens - 1) / (ended - first)
    return Run(
        seed=seed,
        tokens=tokens,
        decode=rate,
        ttft=None if first is None or started is None else first - started,
        finish_reason=answer["finish_reason"],
        output_sha256=hashlib.sha256(texts_of(answer).encode()).hexdigest(),
        pieces_ms=_pieces(answer),
        error=why or None,
    )


def read_counters(situation: Situation, answers: Answers) -> tuple[Counted | None, str | None]:
    """Growth of the speculation counters over a call, or why it is not known; neither without speculation."""
    if situation.plan["expected_width"] is None:
        return None, None
    try:
        # growth() judges all requests; here only the readings of the counters matter.
        grown = growth([a for a in answers if a["id"] in {"before", "after"}])
    except metrics.MetricsError as error:
        return None, str(error)
    return Counted(
        drafts=grown.drafts,
        draft_tokens=grown.draft_tokens,
        accepted=grown.accepted,
        per_position=[value for _, value in sorted(grown.per_position.items())],
    ), None


def _skew(answers: Answers) -> float | None:
    starts = [float(a["started"]) for a in answers if a["started"] is not None]
    return max(starts) - min(starts) if len(starts) == len(answers) else None


def _seeds(step: Step) -> list[int]:
    return [r["body"]["seed"] for r in step.groups[1]["requests"] if str(r["id"]).startswith("run-")]


def read_single(situation: Situation, step: Step, answers: Answers) -> Run:
    """The one run of a step, with its counters."""
    counted, why = read_counters(situation, answers)
    made = read_run(next(a for a in answers if a["group"] == "run"), _seeds(step)[0])
    return made.model_copy(update={"counted": counted, "counters_error": why})


def read_burst(situation: Situation, step: Step, answers: Answers) -> Burst:
    """The answers that were made at once: tokens after each one's first, over the time from first token to last end."""
    mine = [a for a in answers if a["group"] == "run"]
    each = [read_run(a, seed) for a, seed in zip(mine, _seeds(step), strict=True)]
    total = None
    if all(r.decode is not None for r in each):
        span = max(float(a["ended"]) for a in mine) - min(float(a["first_token"]) for a in mine)
        total = sum(r.tokens - 1 for r in each) / span
    counted, why = read_counters(situation, answers)
    return Burst(
        width=step.width,
        total=total,
        each=each,
        skew=_skew(mine) or 0.0,
        overlap=overlap(mine),
        counted=counted,
        counters_error=why,
    )


def read_attempt(situation: Situation, step: Step, answers: Answers) -> Attempt:
    """One attempt at a mixed batch; it is kept whatever came of it."""
    mine = [a for a in answers if a["group"] == "run"]
    ordinary, guided = (next(a for a in mine if a["id"] == name) for name in ("run-0", "guided"))
    counted, why = read_counters(situation, answers)
    return Attempt(
        skew=_skew(mine),
        overlap=overlap([ordinary, guided]),
        ordinary=read_run(ordinary, _seeds(step)[0]),
        guided=read_run(guided, 0),
        guided_fault=exact_count(guided),
        counted=counted,
        counters_error=why,
    )


def shown(work: Workload, found: Run | Burst | Attempt) -> str:
    """One line for the screen."""
    if isinstance(found, Burst):
        wrong = next((r.error for r in found.each if r.error), None)
        alone = ", but never decoded together" if found.width > 1 and not found.overlap else ""
        return wrong or (f"{found.total:.2f} tok/s together{alone}" if found.total else "no rate")
    if isinstance(found, Attempt):
        if wrong := found.ordinary.error or found.guided_fault:
            return wrong
        return f"decoded together for {found.overlap:.2f} s" + ("" if found.evidence else ", so no evidence")
    if found.error:
        return found.error
    short = f", only {found.tokens} of {work.tokens} tokens" if found.tokens < work.tokens else ""
    return (f"{found.decode:.2f} tok/s" if found.decode else "no rate") + short


READERS: dict[str, Callable[[Situation, Step, Sequence[Answer]], Any]] = {
    "single": read_single,
    "concurrent": read_burst,
    "mixed": read_attempt,
}
"""Kind of a workload to what reads the answers of one of its steps."""
