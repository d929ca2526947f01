"""The append-only record of what was deployed to one rank: one JSON object per line of ``history.jsonl``."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "history.jsonl"
ACCEPTED = "accepted"
INTERRUPTED = "interrupted"
NEEDED = {"release": str, "outcome": str}
OPTIONAL: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("run", "verb", "phase", "time", "reason", "who", "controller"), str),
    **dict.fromkeys(("image_id", "image_layers", "spec_method", "previous", "returned_to"), str),
    **dict.fromkeys(("start_seconds", "verify_tokens", "dflash_tokens"), (int, float)),
    **dict.fromkeys(("phases", "figures", "memory_settings", "switch_settings", "gate_settings"), dict),
    **dict.fromkeys(("gates", "overlays", "advisory"), list),
}
"""Types of what is read back out of an entry; a field without a value counts as absent."""


@dataclass(frozen=True)
class History:
    """Entries, oldest first, and the numbers of lines that are no entry."""

    entries: list[dict[str, Any]]
    damaged: list[int]


def read(root: Path) -> History:
    """Read the record below ``root``; a missing file is an empty record, a damaged line is counted and passed over."""
    try:
        # Not splitlines: a text may hold what Unicode calls the end of a line, and JSON does not.
        lines = (root / FILE).read_text(errors="replace").split("\n")
    except OSError:
        return History([], [])
    entries, damaged = [], []
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is not None:
            entries.append(entry)
        elif line.strip():
            damaged.append(number)
    return History(entries, damaged)


def fault(root: Path) -> str:
    """Why the record below ``root`` cannot be read or continued, "" when it can. Changes nothing."""
    path = root / FILE
    try:
        if path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_APPEND))
        elif root.exists() and not os.access(root, os.W_OK):
            return f"no file can be made in {root}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _entry(line: str) -> dict[str, Any] | None:
    """The entry in a line, or None when it is none that can be worked with and sent on."""
    try:
        entry = json.loads(line)
        # JSON can name half of a character, which no text that leaves this process may hold.
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), kind) for name, kind in NEEDED.items()):
        return None
    if not all(entry.get(name) is None or isinstance(entry[name], kind) for name, kind in OPTIONAL.items()):
        return None
    gates, figures = entry.get("gates") or [], entry.get("figures") or {}
    whole = all(isinstance(gate, dict) and isinstance(gate.get("ok"), bool) for gate in gates)
    return entry if whole and all(isinstance(value, int | float) for value in figures.values()) else None


def append(root: Path, entry: dict[str, Any]) -> bool:
    """Add an entry; False when the last one has the same ``run`` and ``outcome``. Raises OSError.

    Only the last one counts: a benchmark that goes on puts back what served before under the name that its first try
    had, and in between other runs have changed the rank.
    """
    last = read(root).entries[-1:]
    if [(e.get("run"), e["outcome"]) for e in last] == [(entry.get("run"), entry["outcome"])]:
        return False
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = root / FILE
    # A crash may have left a line without its end; the new entry must not become part of it.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    text = ("\n" if broken else "") + json.dumps(entry, sort_keys=True, ensure_ascii=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    content = text.encode()
    try:
        before = os.fstat(handle).st_size
        if os.write(handle, content) != len(content):
            # A full disk takes a part; what is no whole entry must not stay, and must not pass for one.
            os.ftruncate(handle, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def accepted(entries: Sequence[dict[str, Any]], *, stock: bool | None = None) -> list[str]:
    """Accepted releases, the latest first, each once; with ``stock`` only those that are (or are not) stock."""
    found: list[str] = []
    for entry in reversed(entries):
        if entry["outcome"] != ACCEPTED or entry["release"] in found:
            continue
        if stock is None or bool(entry.get("stock")) == stock:
            found.append(entry["release"])
    return found


def noted(entries: Sequence[Mapping[str, Any]], release: str, field: str) -> Any:
    """What the last acceptance of a release that noted ``field`` says there; None when none did."""
    of_it = [e[field] for e in entries if (e["outcome"], e["release"]) == (ACCEPTED, release) and e.get(field)]
    return of_it[-1] if of_it else None


def serving(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """The release that serves after the last run on record that ended with one; None when none did."""
    ends = [e["release"] if e["outcome"] == ACCEPTED else e.get("returned_to") for e in entries]
    return next((str(release) for release in reversed(ends) if release), None)


def interrupted(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last entry when it tells of a run that never ended, else None."""
    return entries[-1] if entries and entries[-1]["outcome"] == INTERRUPTED else None


def _keyed(entries: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Entries by run, outcome and how often both stood before, which is the same on every rank that took part."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        run, outcome = str(entry.get("run")), str(entry["outcome"])
        found[run, outcome, seen[run, outcome]] = entry
        seen[run, outcome] += 1
    return found


def disagreements(states: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]) -> list[str]:
    """In which the ranks' records differ, one sentence for each rank that lacks something; empty when they agree.

    Args:
        states: rank to the state of ``spark_state`` with records.
        names: rank to the name to show.
    """
    known = {rank: set(_keyed(state["history"])) for rank, state in states.items()}
    every = set().union(*known.values()) if known else set()
    found = []
    for rank in sorted(states):
        damaged = states[rank]["history_damaged"]
        if damaged:
            lines = ", ".join(str(number) for number in damaged)
            found.append(f"{names[rank]}: line {lines} of {FILE} cannot be read and is passed over")
        missing = sorted({run for run, *_ in every - known[rank]})
        if missing:
            found.append(
                f"{names[rank]}: the record lacks {len(missing)} run(s) that another rank has "
                f"({', '.join(missing[-3:])}); only a release that every rank accepted counts as accepted"
            )
    return found


def start_seconds(entries: Sequence[Mapping[str, Any]]) -> list[float]:
    """How long the recorded starts took until the pair served, in seconds, oldest first."""
    found = [e.get("start_seconds") for e in entries]
    return [float(seconds) for seconds in found if isinstance(seconds, int | float) and seconds > 0]


def merged(states: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The runs of all ranks in order of time, each once, with the list ``ranks`` of those that hold it."""
    runs: dict[tuple[str, str, int], dict[str, Any]] = {}
    for rank, state in sorted(states.items()):
        for key, entry in _keyed(state["history"]).items():
            runs.setdefault(key, {**entry, "ranks": []})["ranks"].append(rank)
    return sorted(runs.values(), key=lambda entry: str(entry.get("time", "")))
