"""Compares two results files arm by arm: ``python -m sparkpair.bench_compare OLD.json NEW.json``. Controller only."""

from __future__ import annotations

import sys
from pathlib import Path

from .bench_report import pipe_table, rate, shown
from .bench_results import Results, load
from .bench_statistics import Interval, change_interval, middle, percent
from .bench_summary import PROCEDURE_ONLY, heading, sample_of

FACTS = ("model", "image", "endpoint", "max_num_seqs", "ignore_eos", "procedure_only")


def _rates(results: Results, label: str, workload: str) -> tuple[float, ...]:
    measured = results.arm(label).measured.get(workload)
    return sample_of(measured.runs, results.workload(workload).tokens).rates if measured else ()


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
    return found


def rows(old: Results, new: Results) -> list[list[str]]:
    """One row per workload of one request at a time, and arm, that both measured: medians, change and its interval.

    A workload whose prompt, length or sampling differs is named with that instead of a change.
    """
    made = []
    labels = [a.id for a in new.arms if heading(a) in {heading(b) for b in old.arms}]
    earlier = {w.name: w for w in old.workloads}
    for work in (w for w in new.workloads if w.kind == "single" and w.name in earlier):
        other = earlier[work.name]
        same = all(getattr(work, f) == getattr(other, f) for f in ("sha256", "tokens", "temperature", "top_p", "guide"))
        for label in labels:
            before, after = (_rates(r, label, work.name) for r in (old, new))
            if not before or not after:
                continue
            change: Interval | None = change_interval(after, [before]) if same else None
            made.append(
                [
                    work.title,
                    heading(new.arm(label)),
                    rate(middle(before)),
                    rate(middle(after)),
                    shown(change.value) if change else "another request",
                    f"{percent(change.low)} to {percent(change.high)}" if change else "",
                ]
            )
    return made


def markdown(old: Results, new: Results) -> str:
    """The comparison as Markdown."""
    parts = [f"# {old.id} and {new.id}", ""]
    if old.procedure_only or new.procedure_only:
        parts += [f"**{PROCEDURE_ONLY.upper()}.**", ""]
    parts += [f"- {one}" for one in differences(old, new)]
    head = ["workload", "arm", old.id, new.id, "change", "95 % interval"]
    found = rows(old, new)
    return "\n".join([*parts, "", pipe_table(head, found) if found else "No arm and workload is in both."]) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 2 when a file cannot be used."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 2:  # noqa: PLR2004
        print("usage: python -m sparkpair.bench_compare OLD.json NEW.json", file=sys.stderr)
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
