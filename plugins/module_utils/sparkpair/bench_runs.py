"""Where benchmark runs lie on the controller, and whether one goes on after an interruption. Controller only."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from .bench_arms import RefusedError
from .bench_results import FILE, Results, load

RESUME = ("auto", "true", "false")
STOP = "sparkpair-benchmark-stop"
"""File in Ansible's temporary folder of one run that asks the measurement to end after the answer at hand."""


def stamp() -> str:
    """The time in UTC, as results keep it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def folder(reports: Path) -> Path:
    """Folder of all runs below the folder of reports."""
    return (reports / "benchmark" / "runs").resolve()


def path_of(reports: Path, run_id: str) -> Path:
    """Folder of one run."""
    return folder(reports) / run_id


def unfinished(reports: Path) -> Results | None:
    """The newest run that was neither finished nor abandoned.

    A damaged file is passed over when a newer run can be read: that one could only begin once the older one needed
    nothing any more. Raises RefusedError when the newest file is damaged, since it may know what is to be put back.
    """
    readable = False
    for path in sorted(folder(reports).glob(f"*/{FILE}"), reverse=True):
        try:
            found = load(path)
        except (OSError, ValueError) as error:
            if readable:
                continue
            raise RefusedError(f"{path}: cannot be read ({error}); move its folder away to go on without it") from error
        readable = True
        if found.status == "unfinished":
            return found
    return None


def damaged(reports: Path) -> list[Path]:
    """Results files that cannot be read."""
    made = []
    for path in sorted(folder(reports).glob(f"*/{FILE}")):
        try:
            load(path)
        except (OSError, ValueError):
            made.append(path)
    return made


def open_run(reports: Path, fresh: Results, resume: str, *, theirs: bool = False) -> Results:
    """Continue the unfinished run, or take ``fresh``; nothing is written before ``begin``.

    Args:
        reports: folder of reports.
        fresh: a new run for the present request.
        resume: ``auto`` continues an unfinished run of the same request, and refuses when there is one of another
            request; ``true`` also refuses when there is none; ``false`` abandons it and begins anew.
        theirs: whether another verb brought what serves now.

    What served before the first arm is noted once: a run that takes over from one which did not put it back keeps that
    run's note, or the pair would end with an arm of the benchmark. Unless another verb has brought what serves now:
    that is what the operator wants since then.

    Raises:
        RefusedError: see ``resume``, or a results file cannot be read.
    """
    if resume not in RESUME:
        raise RefusedError(f"resume = {resume!r}: is not one of the accepted words; allowed: {', '.join(RESUME)}")
    old = unfinished(reports)
    if old is None:
        if resume == "true":
            raise RefusedError("resume = 'true': no run was interrupted; leave it out to begin one")
        opened = fresh
    elif resume == "false":
        opened = fresh if old.restored or theirs else fresh.model_copy(update={"before": old.before})
    elif old.request() == fresh.request():
        opened = old.model_copy(update={"before": fresh.before}) if old.restored or theirs else old
    else:
        arms = ", ".join(f"{a.id} {a.spec}" for a in old.arms)
        raise RefusedError(
            f"run {old.id} ({arms}; {len(old.workloads)} workloads) was interrupted, and this request is another one. "
            "Repeat its request to continue it, or begin anew with -e resume=false"
        )
    return opened


def begin(reports: Path, opened: Results) -> None:
    """Save an opened run; another one that is unfinished is abandoned for it."""
    old = unfinished(reports)
    if old is not None and old.id != opened.id:
        old.status = "abandoned"
        old.save(path_of(reports, old.id))
    opened.restored = not opened.deploys
    opened.save(path_of(reports, opened.id))


def free_id(reports: Path, stamp: str) -> str:
    """``stamp``, or with a number behind it when a run of that second is there already."""
    name, count = stamp, 1
    while path_of(reports, name).exists():
        count += 1
        name = f"{stamp}-{count}"
    return name
