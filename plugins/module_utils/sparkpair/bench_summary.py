"""From results to what a report says: rates, comparisons, drafts, outputs and advice. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .bench_results import ArmResult, Attempt, Burst, Counted, Measured, Results, Run
from .bench_statistics import LEAST_AT_ONCE, LEAST_RUNS, Advice, Compared, Sample, compare, recommend, verdicts
from .bench_workloads import Workload

PROCEDURE_ONLY = "This proves the procedure, not speed"
SHORT_STEPS = 0.05
"""Share of a run's steps that may draft less than planned; one may in any case."""
CLASSES = (("Structured and code", {"structured", "code"}), ("Prose", {"prose"}))
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


def width_fault(found: Run | Burst, width: int, *, guided: bool, requests: int = 1) -> str:
    """Why it is not known that steps drafted ``width`` tokens; empty when the counters show it.

    Of a ``guided`` request only the counters are asked for, since structured output may draft less.
    """
    counted = found.counted
    if counted is None:
        return found.counters_error or "no counters on record"
    if guided:
        return ""
    if counted.drafts <= 0:
        return "no step drafted"
    steps, drafted = counted.drafts, counted.draft_tokens
    # The last step of a request may draft less, no step may draft more: it was another release, or another width.
    if not width * (steps - max(float(requests), SHORT_STEPS * steps)) <= drafted <= width * steps:
        return f"{drafted / steps:.2f} draft tokens per step, and {width} are planned"
    return ""


def fault_of(run: Run, tokens: int, width: int | None = None, *, guided: bool = False) -> str:
    """Why a run is no measurement; empty when it is one.

    ``width`` is what the steps of an ordinary request should draft, None without speculation or to leave that out.
    """
    if run.error:
        return run.error
    if run.tokens < tokens:
        return f"{run.tokens} of {tokens} tokens (finish reason {run.finish_reason})"
    if width is not None and (why := width_fault(run, width, guided=guided)):
        return why
    return "" if run.decode else "no rate: everything came at once"


def burst_faults(burst: Burst, tokens: int, width: int | None = None) -> list[str]:
    """Why answers at once are no measurement of that many; ``width`` as ``fault_of`` takes it."""
    found = [why for run in burst.each if (why := fault_of(run, tokens))]
    if found:
        return found
    if burst.counted is None and burst.counters_error is None and burst.overlap is None:
        return ["an older result, without a record of counters or overlap"]
    if width is not None and (why := width_fault(burst, width, guided=False, requests=burst.width)):
        found.append(why)
    if burst.width > 1 and not burst.overlap:
        found.append("never decoded together")
    return found


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


def sample_of(runs: Sequence[Run], tokens: int, width: int | None = None, *, guided: bool = False) -> Sample:
    """Rates and faults of single runs; ``width`` and ``guided`` as ``fault_of`` takes them."""
    found = [(run.decode, fault_of(run, tokens, width, guided=guided)) for run in runs]
    return _sample([(rate, [why] if why else []) for rate, why in found])


def arm_sample(arm: ArmResult, work: Workload, at_once: int | None = None) -> Sample:
    """What an arm measured of a workload: its single runs, or those of ``at_once`` requests."""
    measured, width = arm.measured.get(work.name, Measured()), arm.plan["expected_width"]
    if at_once is None:
        return sample_of(measured.runs, work.tokens, width, guided=work.guide is not None)
    mine = [b for b in measured.bursts if b.width == at_once]
    return _sample([(b.total, burst_faults(b, work.tokens, width)) for b in mine])


def numbers_at_once(arms: Sequence[ArmResult], work: Workload) -> list[int | None]:
    """What is compared of a workload: [None] for single runs, every measured number of requests at once, or nothing."""
    if work.kind == "concurrent":
        return [*sorted({b.width for a in arms for b in a.measured.get(work.name, Measured()).bursts})]
    return [None] if work.kind == "single" else []


def row_of(work: Workload, number: int | None) -> tuple[str, str]:
    """Key and title of a comparison; ``number`` of requests at once, None for single runs."""
    return (work.name, work.title) if number is None else (f"{work.name}-{number}", f"{work.title}: {number}")


def comparing(results: Results) -> bool:
    """Whether there is a control and another arm; without them figures are only measured."""
    return len({a.control for a in results.arms}) > 1


def lines(results: Results) -> list[Line]:
    """Every comparison of the report, in the order of the workloads; the mixed probe is evidence, not a comparison."""
    controls = [a.id for a in results.arms if a.control]
    made = []
    for work in results.workloads:
        for number in numbers_at_once(results.arms, work):
            key, title = row_of(work, number)
            samples = {a.id: arm_sample(a, work, number) for a in results.arms}
            least = LEAST_RUNS if number is None else LEAST_AT_ONCE
            found = compare(
                samples, controls, work.runs, results.drift_bound, least=least, alone=not comparing(results)
            )
            made.append(Line(key, title, work, found))
    return made


def attempt_fault(attempt: Attempt) -> str:
    """Which of the two answers of an attempt is wrong, and why; empty when none is."""
    if attempt.ordinary.error:
        return f"ordinary: {attempt.ordinary.error}"
    return f"guided: {attempt.guided_fault}" if attempt.guided_fault else ""


def _attempts(results: Results, arm: ArmResult) -> list[Attempt]:
    mixed = [w.name for w in results.workloads if w.kind == "mixed"]
    return [one for name in mixed for one in arm.measured.get(name, Measured()).attempts]


def mixed_faults(results: Results) -> dict[str, str]:
    """Arm label to its first wrong answer in a batch of ordinary and guided requests; arms without one are left out."""
    found = {}
    for arm in results.arms:
        wrong = [(n, why) for n, one in enumerate(_attempts(results, arm), 1) if (why := attempt_fault(one))]
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            found[arm.id] = f"wrong beside another request (attempt {wrong[0][0]}, {wrong[0][1]}{more})"
    return found


def names_of(results: Results) -> dict[str, str]:
    """Label to name of the arms that are no control; with the label where two have the same name."""
    others = [a for a in results.arms if not a.control]
    every = [name(a) for a in others]
    return {a.id: heading(a) if every.count(name(a)) > 1 else name(a) for a in others}


def advice(results: Results, compared: Sequence[Line]) -> Advice:
    """The recommendation; on a pair without GPUs it says that it is about the procedure only."""
    if not comparing(results):
        return Advice(None, "Measured only; nothing was compared.")
    names, wrong = names_of(results), mixed_faults(results)
    found = recommend({line.title: line.compared for line in compared}, names, wrong)
    said = found.sentence
    said += "".join(f" {heading(a)} was {wrong[a.id]} as well." for a in results.arms if a.control and a.id in wrong)
    unseen = [a for a in names if not any(one.evidence for one in _attempts(results, results.arm(a)))]
    if found.arm in unseen or (unseen and any(w.kind == "mixed" for w in results.workloads)):
        arms = ", ".join(names[a] for a in unseen)
        said += f" There is no evidence about ordinary and guided requests in one batch for {arms}."
    if not results.procedure_only:
        return Advice(found.arm, said)
    said = said.removeprefix("No recommendation: ").replace(" Stock stays the setting to run.", "")
    said = f"are {said}" if said.startswith("inconclusive") else f"would say: {said}"
    return Advice(None, f"No recommendation, since this pair has no GPUs. Its figures by themselves {said}")


def by_class(results: Results, compared: Sequence[Line]) -> list[str]:
    """What the conclusive comparisons say, a sentence per class of text; empty when nothing was to be compared."""
    made = []
    for title, texts in CLASSES if comparing(results) else ():
        mine = [line for line in compared if line.work.text in texts]
        good = {line.title: line.compared for line in mine if line.compared.conclusive}
        if mine:
            said = verdicts(good, names_of(results)) if good else "nothing can be said"
            made.append(f"{title} ({len(good)} of {len(mine)} conclusive): {said}.")
    return made


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


def _texts(arm: ArmResult, work: Workload) -> list[str | None]:
    """sha256 of the output of every single run, None where the run is no measurement."""
    runs = arm.measured.get(work.name, Measured()).runs
    return [None if fault_of(r, work.tokens) else r.output_sha256 for r in runs]


def outputs(results: Results, work: Workload) -> str:
    """Whether the arms wrote the same text: a sentence about the good runs, empty for requests at once.

    Runs of one request at temperature 0 are all alike; others have their own nonce or seed, so run i of an arm is
    compared with run i of the other arms.
    """
    if work.kind != "single":
        return ""
    texts = {a.id: _texts(a, work) for a in results.arms}
    good = {a: {one for one in found if one} for a, found in texts.items()}
    every = set().union(*good.values())
    if not every:
        return ""
    part = ", so content may explain a part of a difference"
    if not work.greedy:
        runs = [{one for one in run if one} for run in zip(*(t for t in texts.values() if t), strict=False)]
        same = sum(len(found) == 1 for found in runs)
        alike = f"a run's output identical in every arm for {same} of {len(runs)} runs"
        return alike if same == len(runs) else alike + part
    if len(every) == 1:
        which = "every run" if all(all(t) for t in texts.values()) else "every good run"
        return f"output identical in {which} of every arm (sha256 {next(iter(every))[:12]})"
    unsteady = [a for a, found in good.items() if len(found) > 1]
    if unsteady:
        return f"output differs between runs of {', '.join(unsteady)}{part}"
    return f"output differs between arms{part}"


def temperature(arm: ArmResult) -> str:
    """Hottest reading of each rank over the arm's workloads, or that there is no sensor."""
    found: dict[str, list[float]] = {}
    for measured in arm.measured.values():
        for one in measured.temperatures:
            found.setdefault(one.host, []).extend([] if one.celsius is None else [one.celsius])
    parts = [f"{host} {max(known):.0f} °C" if known else f"{host}: no sensor" for host, known in found.items()]
    return "; ".join(parts) or "not read"


def sensors_missing(results: Results) -> list[str]:
    """Why ranks gave no temperature, each reason once, with the ranks."""
    found: dict[str, list[str]] = {}
    for arm in results.arms:
        for measured in arm.measured.values():
            for one in measured.temperatures:
                if one.missing and one.host not in found.setdefault(one.missing, []):
                    found[one.missing].append(one.host)
    return [f"No temperature of {', '.join(hosts)}: {why}" for why, hosts in found.items()]


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
