"""Statistics of a benchmark: medians, bootstrap intervals, drift, and each arm against the controls. Pure functions.

Rates are tokens per second; changes are shares (-0.3777 is -37.77 %).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

RESAMPLES = 2000
COVER = 0.95
# A change within this share is no difference, however narrow its interval: two equal pairs differ by as much.
SMALLEST = 0.01
DRIFT_BOUND = 0.02
# A sentence that names more than these is not read; the reasons below it name all.
NAMED = 3
# Intervals of fewer runs are too narrow: they only know the runs that there were.
LEAST_RUNS = 5
LEAST_AT_ONCE = 3
RULE = (
    "An arm is recommended instead of stock when every workload, and every number of requests at once, is conclusive, "
    "and it is faster on at least one and slower on none; among several, the one with the highest mean speed against "
    f"stock. Faster or slower means that the whole 95 % interval of its change lies beyond {SMALLEST * 100:g} %, or "
    "beyond the control drift of that workload if that is larger. Conclusive needs at least "
    f"{LEAST_RUNS} runs of every arm ({LEAST_AT_ONCE} of several requests at once). An arm that answered wrongly in a "
    "batch of ordinary and guided requests is never recommended. Otherwise stock is recommended."
)


def percent(value: float, digits: int = 2) -> str:
    """A share as a signed percentage, such as ``-37.77 %``."""
    return f"{100 * value:+.{digits}f} %"


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95 % bootstrap interval; both ends equal it when there is one value only."""

    value: float
    low: float
    high: float


def bootstrap(groups: Sequence[Sequence[float]], statistic: Callable[[Sequence[Sequence[float]]], float]) -> Interval:
    """Percentile bootstrap of a statistic of independent groups, each resampled by itself; always the same result.

    Raises ValueError when there is no group, or an empty one.
    """
    if not groups or not all(groups):
        raise ValueError("a bootstrap needs at least one value in every group")
    # Seeded, so that a report made again from the same results says the same.
    chance = random.Random(0)  # noqa: S311 - resampling needs no secrecy
    found = sorted(statistic([chance.choices(g, k=len(g)) for g in groups]) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - COVER) / 2)
    return Interval(statistic(groups), found[cut], found[-1 - cut])


def middle(values: Sequence[float]) -> Interval:
    """Median with its interval; raises ValueError without a value."""
    return bootstrap([values], lambda groups: median(groups[0]))


def drift(first: float, last: float) -> float:
    """Change from the first control to the last. Raises ValueError when the first is not above 0."""
    if first <= 0:
        raise ValueError("drift needs a control rate above 0")
    return last / first - 1


def change(arm: float, controls: Sequence[float]) -> float:
    """Change of an arm's rate against the midpoint of the controls' rates. Raises ValueError without a control."""
    if not controls or min(controls) <= 0:
        raise ValueError("a change needs a control rate above 0")
    return arm / fmean(controls) - 1


def change_interval(arm: Sequence[float], controls: Sequence[Sequence[float]]) -> Interval:
    """Change of medians against the control midpoint, with its interval; the runs of every arm are resampled."""
    return bootstrap([arm, *controls], lambda g: change(median(g[0]), [median(c) for c in g[1:]]))


@dataclass(frozen=True)
class Sample:
    """What an arm measured of one workload: rates of the good runs, and what is wrong with the others, in words."""

    rates: tuple[float, ...]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One workload over all arms.

    ``medians`` and ``changes`` are by arm label; changes only for arms that are no control. ``drift`` is None with
    fewer than two controls. ``reasons`` say why nothing may be concluded; empty when something may.
    """

    medians: dict[str, Interval]
    changes: dict[str, Interval]
    drift: float | None
    reasons: tuple[str, ...]

    @property
    def conclusive(self) -> bool:
        """Whether the figures may be used."""
        return not self.reasons

    def verdict(self, arm: str) -> str:
        """``faster``, ``slower``, ``equal`` or ``inconclusive``, by the rule in RULE."""
        if not self.conclusive or arm not in self.changes:
            return "inconclusive"
        bound = max(SMALLEST, abs(self.drift or 0.0))
        found = self.changes[arm]
        if found.low > bound:
            return "faster"
        return "slower" if found.high < -bound else "equal"


def compare(
    samples: Mapping[str, Sample],
    controls: Sequence[str],
    wanted_runs: int,
    bound: float = DRIFT_BOUND,
    *,
    least: int = 1,
    alone: bool = False,
) -> Compared:
    """Compare one workload's arms with the midpoint of the controls.

    Args:
        samples: arm label to what it measured, in the order of the arms; without rates where it measured nothing.
        controls: labels of the control arms, in their order.
        wanted_runs: good runs that every arm must have.
        bound: largest drift, as a share, with which anything may be concluded.
        least: runs without which nothing may be concluded.
        alone: nothing is to be compared, so missing controls and few runs are no reason.
    """
    by_fault: dict[str, list[str]] = {}
    for label, sample in samples.items():
        for fault in sample.faults:
            by_fault.setdefault(fault, []).append(label)
    reasons = [f"{', '.join(labels)}: {fault}" for fault, labels in by_fault.items()]
    for label, sample in samples.items():
        if not sample.faults and len(sample.rates) < wanted_runs and (sample.rates or label not in controls):
            reasons.append(f"{label}: {len(sample.rates)} of {wanted_runs} runs")
    if wanted_runs < least and not alone:
        runs = "1 run" if wanted_runs == 1 else f"{wanted_runs} runs"
        reasons.append(f"{runs} of each arm, and a recommendation needs {least}")
    there = [c for c in controls if c in samples and samples[c].rates]
    missing = [c for c in controls if c not in there]
    reasons += [f"control {c} has no good run" for c in missing]
    if alone:
        pass
    elif not there and not missing:
        reasons.append("there is no control arm, so nothing to compare with")
    elif len(there) == 1 and not missing:
        reasons.append(f"there is only one control arm ({there[0]}), so the drift is not known")
    medians = {label: middle(s.rates) for label, s in samples.items() if s.rates}
    moved = drift(medians[there[0]].value, medians[there[-1]].value) if len(there) > 1 else None
    if moved is not None and abs(moved) > bound:
        way = f"from {there[0]} to {there[-1]}"
        reasons.append(f"the controls drifted by {percent(moved)} {way}; the bound is {bound * 100:g} %")
    against = [samples[c].rates for c in there]
    changes = {
        label: change_interval(s.rates, against)
        for label, s in samples.items()
        if against and s.rates and label not in controls
    }
    return Compared(medians, changes, moved, tuple(reasons))


@dataclass(frozen=True)
class Advice:
    """A recommendation: the label of the arm (None for stock), the sentence, and the rule behind it."""

    arm: str | None
    sentence: str
    rule: str = RULE


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _figures(compared: Mapping[str, Compared], arm: str, titles: Sequence[str]) -> str:
    return _listed([f"{t} ({percent(compared[t].changes[arm].value)})" for t in titles])


def _titles(compared: Mapping[str, Compared], arm: str, verdict: str) -> list[str]:
    return [t for t, c in compared.items() if c.verdict(arm) == verdict]


def verdicts(compared: Mapping[str, Compared], names: Mapping[str, str]) -> str:
    """What each arm does on these, such as ``7/3 is slower on count (-37.77 %); 3/3 makes no difference``."""
    parts = []
    for arm, name in names.items():
        faster, slower = (_titles(compared, arm, v) for v in ("faster", "slower"))
        said = [
            f"{way} on {_figures(compared, arm, titles)}"
            for way, titles in (("faster", faster), ("slower", slower))
            if titles
        ]
        parts.append(f"{name} is {' and '.join(said)}" if said else f"{name} makes no difference")
    return "; ".join(parts)


def recommend(
    compared: Mapping[str, Compared], names: Mapping[str, str], barred: Mapping[str, str] | None = None
) -> Advice:
    """Say which arm to run.

    Args:
        compared: workload title to its comparison.
        names: label to the arm's name, such as ``7/3``, of the arms that are no control.
        barred: label to why an arm is not recommended whatever its speed.
    """
    open_ones = [title for title, c in compared.items() if not c.conclusive]
    if not compared or not names:
        return Advice(None, "No recommendation: nothing was compared with a control.")
    because = "".join(f" {names[a]} is barred: {why}." for a, why in (barred or {}).items() if a in names)
    if open_ones:
        few = len(open_ones) <= NAMED
        where = _listed(open_ones) if few else f"{len(open_ones)} of {len(compared)} comparisons"
        return Advice(None, f"No recommendation: inconclusive for {where}. Stock stays the setting to run.{because}")

    def mean(arm: str) -> float:
        return fmean(c.changes[arm].value for c in compared.values())

    winners = [
        a
        for a in names
        if a not in (barred or {}) and _titles(compared, a, "faster") and not _titles(compared, a, "slower")
    ]
    if winners:
        best = max(winners, key=mean)
        gains = _figures(compared, best, _titles(compared, best, "faster"))
        return Advice(best, f"Run {names[best]}: faster than stock on {gains}, slower on nothing.{because}")
    return Advice(None, f"Run stock: {verdicts(compared, names)}.{because}")
