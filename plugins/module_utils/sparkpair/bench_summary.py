"""From results to what a report says: rates, comparisons, drafts, outputs and advice. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .bench_results import ArmResult, Counted, Measured, Results, Run
from .bench_statistics import Advice, Compared, Sample, compare, recommend
from .bench_workloads import Workload

PROCEDURE_ONLY = "This proves the procedure, not speed"
SHORT_STEPS = 0.05
"""Share of a run's steps that may draft less than planned; one may in any case."""
PROCEDURE_WHY = (
    "The pair has no GPUs. Deploying, measuring, counting and restoring are real; every figure in tokens per second is "
    "that of a stand-in model on processors and says nothing about DGX Sparks."
)


@dataclass(frozen=True)
class Drafts:
    """Speculation over the good runs of a workload: width, acceptance, accepted per step and share per position."""

    width: float
    ratio: float
    per_step: float
    per_position: list[float]


@dataclass(frozen=True)
class Line:
    """One row of the comparison: a workload, or one number of requests at once."""

    key: str
    title: str
    work: Workload
    compared: Compared


def name(arm: ArmResult) -> str:
    """Short name of an arm, such as ``7/7`` for stock."""
    return "7/7" if arm.control else arm.spec


def heading(arm: ArmResult) -> str:
    """Label and name, such as ``B 7/3``."""
    return f"{arm.id} {name(arm)}"


def fault_of(run: Run, tokens: int, width: int | None = None) -> str:
    """Why a run is no measurement; empty when it is one. ``width`` is what an ordinary request's steps should draft."""
    if run.error:
        return run.error
    if run.tokens < tokens:
        return f"{run.tokens} of {tokens} tokens (finish reason {run.finish_reason})"
    if width is not None and run.counted is not None and run.counted.drafts > 0:
        steps, drafted = run.counted.drafts, run.counted.draft_tokens
        # The last step may draft less, no step may draft more: it was another release that answered, or another width.
        if not width * (steps - max(1.0, SHORT_STEPS * steps)) <= drafted <= width * steps:
            return f"{drafted / steps:.2f} draft tokens per step, and {width} are planned"
    return "" if run.decode else "no rate: everything came at once"


def _sample(runs: Sequence[tuple[float | None, Sequence[str]]]) -> Sample:
    """From the rate and the faults of each run; equal faults of several runs are said once."""
    by_fault: dict[str, list[int]] = {}
    for number, (_, faults) in enumerate(runs, 1):
        for why in faults:
            by_fault.setdefault(why, []).append(number)
    said = [
        f"{'run' if len(set(numbers)) == 1 else 'runs'} {', '.join(map(str, sorted(set(numbers))))}: {why}"
        for why, numbers in by_fault.items()
    ]
    return Sample(tuple(rate for rate, faults in runs if rate and not faults), tuple(said))


def sample_of(runs: Sequence[Run], tokens: int, width: int | None = None) -> Sample:
    """Rates and faults of single runs; ``width`` as ``fault_of`` takes it."""
    return _sample([(run.decode, [why] if (why := fault_of(run, tokens, width)) else []) for run in runs])


def _burst_sample(measured: Measured, width: int, tokens: int) -> Sample:
    mine = [b for b in measured.bursts if b.width == width]
    return _sample([(b.total, [why for run in b.each if (why := fault_of(run, tokens))]) for b in mine])


def lines(results: Results) -> list[Line]:
    """Every comparison of the report, in the order of the workloads; the mixed probe is evidence, not a comparison."""
    controls = [a.id for a in results.arms if a.control]
    made = []
    for work in results.workloads:
        there = {a.id: a.measured.get(work.name, Measured()) for a in results.arms}
        rows: list[tuple[str, str, dict[str, Sample]]] = []
        if work.kind == "single":
            # A guided request may keep the full width.
            widths = {a.id: None if work.guide else a.plan["expected_width"] for a in results.arms}
            samples = {a: sample_of(m.runs, work.tokens, widths[a]) for a, m in there.items()}
            rows.append((work.name, work.title, samples))
        elif work.kind == "concurrent":
            for width in sorted({b.width for m in there.values() for b in m.bursts}):
                samples = {a: _burst_sample(m, width, work.tokens) for a, m in there.items()}
                rows.append((f"{work.name}-{width}", f"{work.title}: {width}", samples))
        for key, title, samples in rows:
            made.append(Line(key, title, work, compare(samples, controls, work.runs, results.drift_bound)))
    return made


def advice(results: Results, compared: Sequence[Line]) -> Advice:
    """The recommendation; on a pair without GPUs it says that it is about the procedure only."""
    found = recommend(
        {line.title: line.compared for line in compared}, {a.id: name(a) for a in results.arms if not a.control}
    )
    if not results.procedure_only:
        return found
    return Advice(None, f"No recommendation, since this pair has no GPUs. The rule by itself: {found.sentence}")


def drafts(parts: Sequence[Counted | None]) -> Drafts | None:
    """Speculation summed over runs; None when no run has counters, or no step was counted."""
    known = [p for p in parts if p is not None and p.drafts > 0]
    if not known:
        return None
    steps, drafted = sum(p.drafts for p in known), sum(p.draft_tokens for p in known)
    accepted = sum(p.accepted for p in known)
    width = max(len(p.per_position) for p in known)
    positions = [sum(p.per_position[i] for p in known if i < len(p.per_position)) / steps for i in range(width)]
    return Drafts(drafted / steps, accepted / drafted if drafted else 0.0, accepted / steps, positions)


def drafts_of(arm: ArmResult, work: Workload) -> Drafts | None:
    """Speculation of an arm's single runs of a workload."""
    return drafts([r.counted for r in arm.measured.get(work.name, Measured()).runs])


def ttft(arm: ArmResult, work: Workload) -> float | None:
    """Median seconds to the first token of an arm's single runs; None without one."""
    found = [r.ttft for r in arm.measured.get(work.name, Measured()).runs if r.ttft is not None and not r.error]
    return median(found) if found else None


def outputs(results: Results, work: Workload) -> str:
    """Whether the arms wrote the same text: a sentence, empty for a workload where nobody expects it."""
    if not work.greedy or work.kind != "single":
        return ""
    by_arm = {
        a.id: {r.output_sha256 for r in a.measured[work.name].runs} for a in results.arms if work.name in a.measured
    }
    every = set().union(*by_arm.values()) if by_arm else set()
    if len(every) == 1:
        return f"output identical in every run of every arm (sha256 {next(iter(every))[:12]})"
    unsteady = [a for a, found in by_arm.items() if len(found) > 1]
    if unsteady:
        return f"output differs between runs of {', '.join(unsteady)}, so content may explain a part of a difference"
    return "output differs between arms, so content may explain a part of a difference" if every else ""


def temperature(arm: ArmResult) -> str:
    """Hottest reading of each rank over the arm's workloads, or that there is no sensor."""
    found: dict[str, list[Any]] = {}
    for measured in arm.measured.values():
        for one in measured.temperatures:
            found.setdefault(one.host, []).append(one)
    parts = []
    for host, readings in found.items():
        known = [r for r in readings if r.celsius is not None]
        hottest = max(known, key=lambda r: r.celsius, default=None)
        parts.append(f"{host} {hottest.celsius:.0f} °C" if hottest else f"{host}: no reading, {readings[0].missing}")
    return "; ".join(parts) or "not read"


def incomplete(results: Results) -> list[str]:
    """What is not there, and what was left out, in sentences."""
    said = [
        f"{heading(arm)} has not measured {', '.join(missing)}"
        for arm in results.arms
        if (missing := results.missing(arm))
    ]
    left = {
        f"{results.workload(w).title}: {why}"
        for arm in results.arms
        for w, measured in arm.measured.items()
        for why in measured.left_out
    }
    return said + [f"left out: {one}" for one in sorted(left)]
