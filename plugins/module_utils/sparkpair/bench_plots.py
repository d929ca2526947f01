"""Plots of a benchmark as SVG text for one HTML page. Controller only.

Every figure is about as wide as a phone, so that its text keeps its size there; a desktop shows them side by side.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .bench_results import Results
from .bench_summary import Line, arm_sample, drafts_of, heading, ttft

WIDTH = 3.9
ROW = 0.2
# matplotlib types its settings by a list of literal names.
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sparkpair",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a94a3",
    "axes.labelcolor": "#3a4450",
    "xtick.color": "#3a4450",
    "ytick.color": "#3a4450",
    "grid.color": "#e3e7ec",
}
# Distinguishable with the usual colour blindnesses; the controls are grey, so that the eye goes to the arms.
CONTROL_COLOURS = ("#5f6b7a", "#a7b0bc")
ARM_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKS = "osD^vP"


@dataclass(frozen=True)
class Plot:
    """One figure: its title, what it shows in a sentence (also for a screen reader), and the SVG."""

    title: str
    says: str
    svg: str


def _colours(results: Results) -> dict[str, str]:
    found, controls, arms = {}, 0, 0
    for arm in results.arms:
        if arm.control:
            found[arm.id] = CONTROL_COLOURS[controls % len(CONTROL_COLOURS)]
            controls += 1
        else:
            found[arm.id] = ARM_COLOURS[arms % len(ARM_COLOURS)]
            arms += 1
    return found


def _svg(name: str, height: float, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()[out.getvalue().index("<svg") :]
    # Ids of several figures meet in one page.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def _bars(axes: Axes, titles: Sequence[str], series: Mapping[str, Sequence[Any]], colours: Mapping[str, str]) -> None:
    """Groups of horizontal bars, the first group and series on top; an item is an Interval, a number or None."""
    thick = 0.8 / len(series)
    for number, (label, items) in enumerate(series.items()):
        for group, item in enumerate(items):
            if item is None:
                continue
            value = getattr(item, "value", item)
            error = [[value - item.low], [item.high - value]] if hasattr(item, "low") else None
            axes.barh(
                group - 0.4 + thick * (number + 0.5),
                value,
                height=thick * 0.92,
                color=colours[label.split(" ", 1)[0]],
                xerr=error,
                error_kw={"ecolor": "#1c2530", "elinewidth": 1, "capsize": 2},
                label=label if group == next(i for i, x in enumerate(items) if x is not None) else None,
            )
    axes.set_yticks(range(len(titles)), titles)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x")


def _legend(axes: Axes, columns: int) -> None:
    axes.figure.legend(loc="outside upper left", ncols=min(columns, 4), frameon=False, handlelength=1, columnspacing=1)


def throughput(results: Results, lines: Sequence[Line], kind: str) -> Plot | None:
    """Median rate of each arm, for the workloads of one kind; None when there is none."""
    rows = [line for line in lines if line.work.kind == kind and line.compared.medians]
    if not rows:
        return None
    series = {heading(a): [line.compared.medians.get(a.id) for line in rows] for a in results.arms}

    def draw(axes: Axes) -> None:
        _bars(axes, [_wrapped(line.title) for line in rows], series, _colours(results))
        axes.set_xlabel("tokens per second, median and 95 % interval")
        _legend(axes, len(series))

    alone = kind == "single"
    title = "Decode speed" if alone else "Several at once"
    says = "Median tokens per second of every arm, " + ("one request at a time." if alone else "all requests together.")
    return Plot(title, says, _svg(f"speed-{kind}", 0.9 + len(rows) * (0.2 + ROW * len(series)), draw))


def changes(results: Results, lines: Sequence[Line]) -> Plot | None:
    """Change of every arm against the control midpoint, with the drift of the controls as a band; None without one."""
    arms = [a for a in results.arms if not a.control and any(a.id in line.compared.changes for line in lines)]
    if not arms:
        return None
    colours, rows = _colours(results), [line for line in lines if line.compared.changes]

    def draw(axes: Axes) -> None:
        step = 0.7 / len(arms)
        for row, line in enumerate(rows):
            moved = abs(line.compared.drift or 0)
            axes.fill_betweenx([row - 0.45, row + 0.45], -moved, moved, color="#d5dae1", linewidth=0)
            for number, arm in enumerate(arms):
                found = line.compared.changes.get(arm.id)
                if found is None:
                    continue
                at = row - 0.35 + step * (number + 0.5)
                axes.plot([found.low, found.high], [at, at], color=colours[arm.id], linewidth=2)
                full = colours[arm.id] if line.compared.conclusive else "white"
                axes.plot(found.value, at, MARKS[number % len(MARKS)], color=colours[arm.id], mfc=full, markersize=6)
        for number, arm in enumerate(arms):
            axes.plot([], [], MARKS[number % len(MARKS)], color=colours[arm.id], label=heading(arm))
        axes.axvline(0, color="#1c2530", linewidth=1)
        axes.set_yticks(range(len(rows)), [_wrapped(line.title) for line in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("change against the control midpoint")
        _legend(axes, len(arms))

    says = "Change against stock with its 95 % interval. Grey band: drift between the controls. Hollow: inconclusive."
    return Plot("Against stock", says, _svg("change", 0.9 + len(rows) * (0.25 + 0.17 * len(arms)), draw))


def positions(results: Results) -> list[Plot]:
    """Acceptance per draft position, one figure per workload."""
    made, colours = [], _colours(results)
    for work in results.workloads:
        found = {a.id: d for a in results.arms if work.kind == "single" and (d := drafts_of(a, work))}
        if not found:
            continue

        def draw(axes: Axes, found: Mapping[str, Any] = found) -> None:
            for number, (arm, seen) in enumerate(found.items()):
                axes.plot(
                    range(len(seen.per_position)),
                    seen.per_position,
                    color=colours[arm],
                    marker=MARKS[number % len(MARKS)],
                    markersize=5 + 1.5 * (len(found) - number),
                    mfc="white",
                    label=heading(results.arm(arm)),
                )
            axes.set_ylim(-0.04, 1.04)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axes.set_xlabel("draft position")
            axes.grid(axis="y")
            _legend(axes, len(found))

        says = "Share of the steps that accepted the draft at this position."
        made.append(Plot(f"Accepted drafts: {work.title}", says, _svg(f"position-{work.name}", 2.3, draw)))
    return made


def drifting(results: Results) -> Plot | None:
    """Every run of the controls against the first control's median; None without two controls."""
    controls = [a for a in results.arms if a.control]
    works = [w for w in results.workloads if w.kind == "single" and all(w.name in a.measured for a in controls)]
    if len(controls) < 2 or not works:  # noqa: PLR2004
        return None

    def draw(axes: Axes) -> None:
        for number, work in enumerate(works):
            runs = [arm_sample(a, work).rates for a in controls]
            if not all(runs):
                continue
            base = median(runs[0])
            offset = (number - (len(works) - 1) / 2) * 0.09
            colour = ARM_COLOURS[number % len(ARM_COLOURS)]
            # The marks move on by one when the colours begin again, so that no two workloads look alike.
            mark = MARKS[(number + number // len(ARM_COLOURS)) % len(MARKS)]
            for place, rates in enumerate(runs):
                axes.plot(
                    [place + offset] * len(rates),
                    [r / base - 1 for r in rates],
                    mark,
                    color=colour,
                    markersize=4,
                    mfc="none",
                    label=work.title if place == 0 else None,
                )
        for bound in (-results.drift_bound, results.drift_bound):
            axes.axhline(bound, color="#b3261e", linewidth=1, linestyle="--")
        axes.set_xticks(range(len(controls)), [heading(a) for a in controls])
        axes.set_xlim(-0.6, len(controls) - 0.4)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.grid(axis="y")
        # One column: two of them cut the longer titles.
        axes.figure.legend(loc="outside lower left", frameon=False, handlelength=1)

    says = "Every good run of the controls against the median of the first. Dashed: the bound for the drift."
    return Plot("Drift of the controls", says, _svg("drift", 3.0 + 0.18 * len(works), draw))


def latency(results: Results) -> Plot | None:
    """Median time to the first token; None when nothing was measured."""
    works = [w for w in results.workloads if w.kind == "single"]
    series = {heading(a): [ttft(a, w) for w in works] for a in results.arms}
    series = {label: items for label, items in series.items() if any(i is not None for i in items)}
    if not series:
        return None

    def draw(axes: Axes) -> None:
        _bars(axes, [_wrapped(w.title) for w in works], series, _colours(results))
        axes.set_xlabel("seconds, median")
        _legend(axes, len(series))

    says = "Median time to the first token, one request at a time. "
    says += "Prompt cached by the warm-up" + (", except where it has a nonce." if any(w.nonce for w in works) else ".")
    return Plot("First token", says, _svg("latency", 0.9 + len(works) * (0.2 + ROW * 0.8 * len(series)), draw))


def _wrapped(title: str) -> str:
    """A title on two lines where it is long."""
    words = title.split(" ")
    if len(title) <= 14 or len(words) == 1:  # noqa: PLR2004
        return title
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(title) / 2))
    return " ".join(words[:cut]) + "\n" + " ".join(words[cut:])


def every(results: Results, lines: Sequence[Line]) -> list[Plot]:
    """All plots of a report that have something to show."""
    found = [
        throughput(results, lines, "single"),
        changes(results, lines),
        drifting(results),
        throughput(results, lines, "concurrent"),
        latency(results),
        *positions(results),
    ]
    return [plot for plot in found if plot is not None]
