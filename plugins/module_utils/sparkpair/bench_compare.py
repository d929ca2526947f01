"""Compares two results files arm by arm. Controller only.

``.venv/bin/python -m sparkpair.bench_compare OLD.json NEW.json`` prints the comparison as Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .bench_report import pipe_table, rate, shown
from .bench_results import Results, load
from .bench_statistics import Interval, change_interval, middle, percent
from .bench_summary import PROCEDURE_ONLY, arm_sample, heading, lines, numbers_at_once, row_of
from .bench_workloads import Workload

FACTS = ("model", "image", "endpoint", "max_num_seqs", "ignore_eos", "procedure_only")


REQUEST = ("sha256", "tokens", "temperature", "top_p", "guide", "nonce")


def _rates(results: Results, label: str, work: Workload, number: int | None) -> tuple[float, ...]:
    """Rates of good runs; ``work`` is the one of these results."""
    return arm_sample(results.arm(label), work, number).rates


def _common(old: Results, new: Results) -> list[str]:
    """Labels of the arms that both have, by label and name."""
    return [a.id for a in new.arms if heading(a) in {heading(b) for b in old.arms}]


def differences(old: Results, new: Results) -> list[str]:
    """What differs between the two beside the figures, in sentences; each makes the comparison weaker."""
    found = [
        f"{fact}: {getattr(old, fact)} and {getattr(new, fact)}"
        for fact in FACTS
        if getattr(old, fact) != getattr(new, fact)
    ]
    for name in sorted({w.name for w in old.workloads} ^ {w.name for w in new.workloads}):
        found.append(f"workload {name} is in one of them only")
    for label in sorted({heading(a) for a in old.arms} ^ {heading(a) for a in new.arms}):
        found.append(f"arm {label} is in one of them only")
    for label in _common(old, new):
        before, after = old.arm(label).plan, new.arm(label).plan
        found += [
            f"arm {heading(new.arm(label))}, {key}: {before.get(key)} and {after.get(key)}"
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]
    return found


def open_reasons(results: Results) -> list[str]:
    """Why comparisons within these results are inconclusive; such figures are no ground for another comparison."""
    return [
        f"inconclusive in {results.id}, {line.title}: {'; '.join(line.compared.reasons)}"
        for line in lines(results)
        if not line.compared.conclusive
    ]


def rows(old: Results, new: Results) -> list[list[str]]:
    """One row per workload, number of requests at once, and arm that both measured: medians, change and its interval.

    A workload whose prompt, length or sampling differs is named with that instead of a change; what is inconclusive in
    one of the two is marked.
    """
    made = []
    unsure = {line.key for results in (old, new) for line in lines(results) if not line.compared.conclusive}
    earlier = {w.name: w for w in old.workloads}
    for work in (w for w in new.workloads if w.name in earlier):
        other = earlier[work.name]
        same = all(getattr(work, f) == getattr(other, f) for f in REQUEST)
        for number in numbers_at_once(new.arms, work):
            key, title = row_of(work, number)
            for label in _common(old, new):
                before, after = _rates(old, label, other, number), _rates(new, label, work, number)
                if not before or not after:
                    continue
                change: Interval | None = change_interval(after, [before]) if same else None
                made.append(
                    [
                        title,
                        heading(new.arm(label)),
                        rate(middle(before)),
                        rate(middle(after)),
                        shown(change.value) if change else "another request",
                        f"{percent(change.low)} to {percent(change.high)}" if change else "",
                        "inconclusive" if key in unsure else "",
                    ]
                )
    return made


def markdown(old: Results, new: Results) -> str:
    """The comparison as Markdown."""
    parts = [f"# {old.id} and {new.id}", ""]
    if old.procedure_only or new.procedure_only:
        parts += [f"**{PROCEDURE_ONLY.upper()}.**", ""]
    parts += [f"- {one}" for one in (*differences(old, new), *open_reasons(old), *open_reasons(new))]
    head = ["workload", "arm", old.id, new.id, "change", "95 % interval", ""]
    found = rows(old, new)
    return "\n".join([*parts, "", pipe_table(head, found) if found else "No arm and workload is in both."]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 2 when a file cannot be used."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 2:  # noqa: PLR2004
        print("usage: .venv/bin/python -m sparkpair.bench_compare OLD.json NEW.json", file=sys.stderr)
        return 2
    read = []
    for name in given:
        try:
            read.append(load(Path(name)))
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
    print(markdown(*read), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
