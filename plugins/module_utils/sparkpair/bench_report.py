"""Writes the report of a benchmark: report.md and a self-contained report.html. Controller only.

``python -m sparkpair.bench_report reports/benchmark/runs/<id>/results.json`` makes both again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import bench_plots
from .bench_results import ArmResult, Attempt, Results, load
from .bench_statistics import Interval, percent
from .bench_summary import (
    PROCEDURE_ONLY,
    PROCEDURE_WHY,
    Drafts,
    Line,
    advice,
    arm_sample,
    attempt_fault,
    by_class,
    comparing,
    drafts_of,
    fault_of,
    heading,
    incomplete,
    lines,
    outputs,
    sensors_missing,
    temperature,
    ttft,
)
from .bench_workloads import Workload

TEMPLATES = Path(__file__).resolve().parents[3] / "roles" / "spark_benchmark" / "templates"
NONE = "-"
PROTOCOL = (
    "One warm-up, then the measured runs, of every workload in every arm, one request at a time unless it says "
    "otherwise; thinking off, fixed seeds, streamed. Decode speed is (completion tokens - 1) / (end - first token). "
    "Counters are the growth of the engine's own between just before and just after a run. Intervals are 95 % "
    "percentile bootstraps of the median (2000 resamples, fixed seed). The control midpoint is the mean of the "
    "controls' medians."
)
MIXED_NOTE = (
    "Every measured attempt is shown; the warm-up attempt is not kept. The overlap is the time in which both streams "
    "ran, and counts only when each has at least two pieces in it. An attempt without overlap says nothing about mixed "
    "batches."
)


def shown(value: float | None) -> str:
    """A change as text."""
    return NONE if value is None else percent(value)


def rate(found: Interval | None) -> str:
    """Tokens per second."""
    return NONE if found is None else f"{found.value:.2f}"


def span(found: Interval | None) -> str:
    """The ends of an interval of rates."""
    return "" if found is None else f"{found.low:.2f} to {found.high:.2f}"


def comparison(results: Results, rows: list[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows in the form of the discussion: every arm, each against the control midpoint, and the drift."""
    others = [a for a in results.arms if not a.control] if comparing(results) else []
    drifts = sum(a.control for a in results.arms) > 1
    header = ["workload", *map(heading, results.arms), *(f"{a.id} vs control" for a in others)]
    header += ["drift"] * drifts + [""] * bool(others)
    body = [
        [
            line.title,
            *(rate(line.compared.medians.get(a.id)) for a in results.arms),
            *(shown(i.value if (i := line.compared.changes.get(a.id)) else None) for a in others),
            *[shown(line.compared.drift)] * drifts,
            *["" if line.compared.conclusive else "inconclusive"] * bool(others),
        ]
        for line in rows
    ]
    return header, body


def short_line(results: Results, line: Line) -> str:
    """What a narrow screen shows of a comparison without scrolling: changes, drift and verdict, a line each."""
    parts = [f"{arm} {shown(found.value)}" for arm, found in line.compared.changes.items()]
    if line.compared.drift is not None:
        parts.append(f"drift {shown(line.compared.drift)}")
    if comparing(results) and not line.compared.conclusive:
        parts.append("inconclusive")
    return "\n".join(parts)


def pipe_table(header: list[str], body: list[list[str]]) -> str:
    """A Markdown table."""
    cells = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells)


def reasons(rows: list[Line]) -> list[str]:
    """Why workloads are inconclusive."""
    return [f"{line.title}: {'; '.join(line.compared.reasons)}" for line in rows if not line.compared.conclusive]


def settings_of(arm: ArmResult) -> str:
    """The settings that make the arm."""
    plan = arm.plan
    if plan["spec_method"] == "none":
        return "speculation off"
    if plan["spec_method"] != "dflash":
        return f"{plan['spec_method']}, {plan['expected_width']} per step"
    verified = plan["verify_tokens"] or plan["dflash_tokens"]
    # With the full width there is nothing that batches with a guided request could keep.
    guided = f", structured_width {plan['structured_width']}" if plan["verify_tokens"] else ""
    return f"proposal {plan['dflash_tokens']}, verify {verified}{guided}"


def times_of(arm: ArmResult) -> str:
    """When the arm was measured."""
    return f"{arm.started} to {arm.finished or 'now'}" if arm.started else "not on record"


def served(results: Results) -> str:
    """What served before the first arm, and what came of it."""
    before = results.before
    said = (before.release or "no accepted release") + ("" if before.serving else " (not serving)")
    if not results.deploys:
        return said
    if not results.restored:
        return f"{said}, not put back yet"
    if results.left:
        return f"{said}; left as it is, release {results.left} by another run"
    return f"{said}, {'restored' if before.serving else 'stopped again'}"


def ends_of_text(results: Results) -> str:
    """What became of answers whose text ends early."""
    if not results.ignore_eos:
        return "kept; an answer that ends early makes its comparison inconclusive"
    guided = [w.title for w in results.workloads if w.guide is not None]
    return "ignored, so that every answer has its length" + (f"; kept for {', '.join(guided)}" if guided else "")


def facts(results: Results) -> list[list[str]]:
    """What was measured, where and when, as pairs."""
    made = [
        ["model", f"{results.model} at {results.endpoint}"],
        ["ranks", ", ".join(results.ranks)],
        ["engine image", results.image],
        ["max_num_seqs", f"{results.max_num_seqs} requests decoded at once"],
        ["measured", f"{results.started} to {results.finished or 'now'}"],
    ]
    if results.resumed:
        made.append(["interrupted", f"and went on at {', '.join(results.resumed)}"])
    return [
        *made,
        ["bound for the drift", f"{results.drift_bound * 100:g} %"],
        ["ends of text", ends_of_text(results)],
        ["served before", served(results)],
    ]


def cached(work: Workload) -> str:
    """What the time to the first token of a workload means."""
    return "" if work.nonce else "the prompt is cached by the warm-up, so the first token comes without its prefill"


def intervals(results: Results, rows: list[Line]) -> list[list[str]]:
    """One row per comparison and arm: median, its interval, change, its interval, verdict, and every single rate."""
    made = []
    for line in rows:
        number = int(line.key.removeprefix(f"{line.work.name}-")) if line.work.kind == "concurrent" else None
        for arm in results.arms:
            found, change = line.compared.medians.get(arm.id), line.compared.changes.get(arm.id)
            if found is None:
                continue
            rates = arm_sample(arm, line.work, number).rates
            made.append(
                [
                    line.title,
                    heading(arm),
                    f"{found.value:.4f}",
                    span(found),
                    percent(change.value) if change else "control" if arm.control else NONE,
                    f"{percent(change.low)} to {percent(change.high)}" if change else "",
                    line.compared.verdict(arm.id) if change else "",
                    ", ".join(f"{one:.2f}" for one in rates),
                ]
            )
    return made


INTERVALS = ["workload", "arm", "median", "95 % interval", "change", "95 % interval", "verdict", "runs"]


def attempt_row(attempt: Attempt, tokens: int) -> list[str]:
    """One attempt at a mixed batch as table cells: skew, overlap, both answers, counters, evidence."""
    wrong = attempt_fault(attempt)
    if not wrong and attempt.ordinary.tokens < tokens:
        wrong = f"ordinary: {fault_of(attempt.ordinary, tokens)}"
    counted = attempt.counted
    steps = f"{counted.draft_tokens / counted.drafts:.2f}" if counted and counted.drafts else NONE
    steps = attempt.counters_error or steps
    return [
        NONE if attempt.skew is None else f"{1000 * attempt.skew:.2f} ms",
        f"{attempt.overlap:.3f} s",
        wrong or "both right",
        steps,
        "yes" if attempt.evidence else "no: never decoded together",
    ]


def drafts_row(found: Drafts | None) -> list[str]:
    """Width, acceptance ratio, accepted and output tokens per step."""
    if found is None:
        return [NONE] * 4
    return [f"{found.width:.2f}", f"{found.ratio:.1%}", f"{found.per_step:.2f}", f"{found.per_step + 1:.2f}"]


def workload_rows(results: Results, work: Workload) -> list[list[str]]:
    """One row per arm: first token, time between pieces, drafts, finish reasons, output."""
    made = []
    for arm in results.arms:
        measured = arm.measured.get(work.name)
        if measured is None or not measured.runs:
            continue
        seconds = ttft(arm, work)
        gaps = [r.pieces_ms for r in measured.runs if r.pieces_ms]
        pieces = f"{median(g[0] for g in gaps):.1f} / {median(g[1] for g in gaps):.1f} ms" if gaps else NONE
        ends = sorted({f"{r.tokens} {r.finish_reason}" for r in measured.runs})
        hashes = sorted({r.output_sha256[:8] for r in measured.runs if not fault_of(r, work.tokens)})
        made.append(
            [
                heading(arm),
                NONE if seconds is None else f"{seconds:.3f} s",
                pieces,
                *drafts_row(drafts_of(arm, work)),
                ", ".join(ends),
                hashes[0] if len(hashes) == 1 else f"{len(hashes)} different" if hashes else NONE,
            ]
        )
    return made


def content(results: Results) -> dict[str, Any]:
    """Everything that both forms of the report show, as the template takes it."""
    rows = lines(results)
    header, body = comparison(results, rows)
    found = advice(results, rows)
    mixed = [w for w in results.workloads if w.kind == "mixed"]
    singles = [w for w in results.workloads if w.kind == "single"]
    return {
        "results": results,
        "banner": PROCEDURE_ONLY if results.procedure_only else "",
        "banner_why": PROCEDURE_WHY,
        "advice": found,
        "header": header,
        "body": body,
        "short_lines": [short_line(results, line) for line in rows],
        "rows": rows,
        "reasons": reasons(rows),
        "reasons_title": "Inconclusive" if comparing(results) else "Not as asked",
        "comparing": comparing(results),
        "classes": by_class(results, rows),
        "incomplete": incomplete(results),
        "protocol": PROTOCOL,
        "mixed_note": MIXED_NOTE,
        "singles": [(w, workload_rows(results, w), outputs(results, w)) for w in singles],
        "attempts": [
            [heading(arm), str(n), *attempt_row(attempt, w.tokens)]
            for w in mixed
            for arm in results.arms
            if w.name in arm.measured
            for n, attempt in enumerate(arm.measured[w.name].attempts, 1)
        ],
        "arms_head": ["arm", "settings", "release", "measured", "temperature after workloads"],
        "arms": [
            [heading(a), settings_of(a), str(a.plan["release"]), times_of(a), temperature(a)] for a in results.arms
        ],
        "sensors": sensors_missing(results),
        "facts": facts(results),
        "cached": cached,
        "intervals_head": INTERVALS,
        "intervals": intervals(results, rows),
    }


def markdown(results: Results) -> str:
    """The report as Markdown: the table of the discussion, why something is inconclusive, drafts and evidence."""
    page = content(results)
    parts = [f"# Benchmark {results.id}", ""]
    if page["banner"]:
        parts += [f"**{page['banner'].upper()}.** {PROCEDURE_WHY}", ""]
    parts += [
        f"**{page['advice'].sentence}**",
        "",
        *(f"- {one}" for one in page["classes"]),
        "",
        page["advice"].rule,
        "",
    ]
    parts += ["Median decode tokens per second:", "", pipe_table(page["header"], page["body"]), ""]
    for title, found in (
        (f"{page['reasons_title']}:", page["reasons"]),
        ("To know:", page["incomplete"] + results.messages),
    ):
        if found:
            parts += [title, "", *(f"- {one}" for one in found), ""]
    drafted = [[work.title, row[0], *row[3:7]] for work, table, _ in page["singles"] for row in table if row[3] != NONE]
    if drafted:
        head = ["workload", "arm", "draft tokens per step", "accepted", "accepted per step", "output tokens per step"]
        parts += [pipe_table(head, drafted), ""]
    if page["attempts"]:
        head = ["arm", "attempt", "request skew", "decode overlap", "answers", "draft tokens per step", "evidence"]
        parts += [
            "Ordinary and guided at once, every attempt:",
            "",
            pipe_table(head, page["attempts"]),
            "",
            MIXED_NOTE,
            "",
        ]
    if page["intervals"]:
        parts += ["Every median with its interval, and the runs:", "", pipe_table(INTERVALS, page["intervals"]), ""]
    parts += [pipe_table(page["arms_head"], page["arms"]), "", *(f"- {one}" for one in page["sensors"]), ""]
    ends = [[w.title, row[0], row[1], row[7]] for w, table, _ in page["singles"] for row in table]
    if ends:
        head = [
            "workload",
            "arm",
            "first token (prompt cached by the warm-up, unless it has a nonce)",
            "tokens and finish",
        ]
        parts += [pipe_table(head, ends), ""]
    parts += [pipe_table(["", ""], page["facts"]), ""]
    parts += [f"- {work.title}: {said}" for work, _, said in page["singles"] if said]
    prompts = [
        [w.title, str(w.tokens), str(w.runs), f"{w.temperature:g}", f"{w.top_p:g}", w.file, w.sha256]
        for w in results.workloads
    ]
    head = ["workload", "tokens", "runs", "temperature", "top-p", "prompt", "sha256"]
    parts += ["", PROTOCOL, "", pipe_table(head, prompts)]
    return "\n".join(parts).rstrip() + "\n"


def html(results: Results) -> str:
    """The report as one HTML page that loads nothing."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = content(results)
    page["plots"] = bench_plots.every(results, page["rows"])
    # A sign of percent never begins a line.
    return environment.get_template("report.html.j2").render(page).replace(" %", "\N{NO-BREAK SPACE}%")


def write(results: Results, folder: Path) -> list[Path]:
    """Write report.md and report.html into ``folder`` and return their paths."""
    made = []
    for name, text in (("report.html", html(results)), ("report.md", markdown(results))):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        made.append(path)
    return made


def main(argv: list[str] | None = None) -> int:
    """Make the report of a results file again, beside it."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 1:
        print("usage: python -m sparkpair.bench_report RESULTS.json", file=sys.stderr)
        return 2
    path = Path(given[0])
    try:
        found = load(path)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    for made in write(found, path.parent):
        print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
