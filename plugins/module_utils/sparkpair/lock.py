"""The rollout lock of one rank: a directory, so that taking it is atomic, with a note of who holds it and why.

The note is the run's journal as well: it names the phase that the run is in, and stays when the run is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import room
from .store import remove

FOLDER = "lock"
NOTE = "holder.json"
COPY = "holder-copy.json"


class LockError(Exception):
    """The lock is held by somebody else, or cannot be read or written; the message says by whom and what to do."""


class UnwritableError(LockError):
    """The rank takes no file, so no run can have its lock."""


@dataclass(frozen=True)
class Holder:
    """Who asks: ``run``, and the ``session`` (one start of ansible-playbook) in which it goes on.

    A benchmark that is continued has the name that its first try had, and so has the same command in a second terminal.
    """

    run: str
    session: str = ""

    def holds(self, found: Lock) -> bool:
        """Whether the lock is this run's, in this session."""
        return bool(found.held and self == Holder(str(found.holder.get("run")), str(found.holder.get("session", ""))))


@dataclass(frozen=True)
class Lock:
    """State of the lock: ``held``, the holder's note (empty when it is missing or damaged), and its age in seconds."""

    held: bool
    holder: dict[str, Any] = field(default_factory=dict)
    age: float = 0.0

    def text(self) -> str:
        """One sentence about the holder."""
        if not self.held:
            return "not held"
        if not self.holder:
            return f"held for {age(self.age)} by a run that left no note"
        by = f"{self.holder.get('who', '?')} on {self.holder.get('controller', '?')}"
        why = f"; reason: {self.holder['reason']}" if self.holder.get("reason") else ""
        phase = f" in phase {self.holder['phase']}" if self.holder.get("phase") else ""
        # A stop is of no release.
        of = f" of {self.holder['release']}" if self.holder.get("release") else ""
        what = f"{self.holder.get('verb', '?')}{of}{phase}"
        return f"held for {age(self.age)} by {by}, {what}{why}"


def age(seconds: float) -> str:
    """Seconds in the largest unit that fits: ``42 s``, ``7 min``, ``3 h``, ``2 d``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0.0, seconds))} s"


def read(root: Path, now: float | None = None) -> Lock:
    """Read the lock below ``root``. ``now`` is epoch seconds.

    Raises LockError where the disk does not tell: then nobody has released it, and nobody else has taken it.
    """
    folder = root / FOLDER
    try:
        since = folder.lstat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return Lock(held=False)
    except OSError as error:
        raise LockError(f"the lock cannot be read: {error}") from error
    holder = _holder(folder)
    started = holder.get("time")
    since = float(started) if isinstance(started, int | float) else since
    return Lock(held=True, holder=holder, age=max(0.0, (time.time() if now is None else now) - since))


def take(root: Path, note: dict[str, Any]) -> bool:
    """Take the lock; False when the same run holds it already.

    Raises:
        LockError: another run holds it, or this one kept it with a reason, which a person must have seen first.
        UnwritableError: nobody holds it, and nobody can.
    """
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        (root / FOLDER).mkdir(mode=0o755)
    except FileExistsError as error:
        found = read(root)
        if not found.held:
            # Its holder gave it back in this moment, or the root itself is a file.
            raise LockError(f"the lock cannot be taken, since {error.filename} was in the way; try again") from error
        refuse(found, note)
        return False
    except OSError as error:
        raise UnwritableError(f"the lock cannot be taken: {error}") from error
    try:
        room.reserve(root / FOLDER)
        _write(root, note)
    except (LockError, OSError) as error:
        # Without its note the lock would be nobody's, and this run could not give it back.
        shutil.rmtree(root / FOLDER, ignore_errors=True)
        raise UnwritableError(f"the lock cannot be taken: {error}") from error
    return True


def refuse(found: Lock, note: dict[str, Any]) -> None:
    """Raise what ``take`` says of a lock that is held, unless it is held by the run of this note.

    Raises:
        LockError: as for ``take``.
    """
    if not Holder(note["run"], note.get("session", "")).holds(found) or found.holder.get("reason"):
        raise LockError(
            f"the lock is {found.text()}. It is never taken over: wait, or look at the pair and then run "
            "playbooks/lock.yml -e lock=release -e reason='...'"
        )
    if found.holder.get("host") != note.get("host"):
        # Two names for one machine: the other machine would be left out, and this one done twice.
        raise LockError(
            f"{note.get('host')} and {found.holder.get('host')} lead to the same machine; correct ansible_host in the "
            "inventory"
        )


def spend(root: Path) -> bool:
    """Give up the room that the lock keeps in reserve on this disk; False when there is none any more."""
    return room.spend(root / FOLDER)


def keep(root: Path, run: Holder, reason: str) -> bool:
    """Note why the lock of ``run`` stays; False when that run does not hold it. Raises LockError.

    On a full disk the room that the lock keeps in reserve is given up for it.
    """
    found = read(root)
    if not run.holds(found):
        return False
    note = {**found.holder, "reason": reason}
    try:
        _write(root, note)
    except LockError as error:
        if not (room.full(error) and spend(root)):
            raise
        _write(root, note)
    return True


def advance(root: Path, run: Holder, phase: str) -> str:
    """Note the phase that ``run`` enters, so that an interruption can be told from the note.

    Returns why that was not possible, or "": a full disk is no reason to leave a pair half switched.

    Raises:
        LockError: the lock was released, or another run holds it.
    """
    found = read(root)
    if not run.holds(found):
        raise LockError(f"the lock is not this run's any more: it is {found.text()}")
    try:
        _write(root, {**found.holder, "phase": phase})
    except LockError as error:
        return str(error)
    return ""


def release(root: Path, run: Holder | None) -> bool:
    """Give the lock back when ``run`` holds it (None: whoever holds it); False when there was nothing to give back."""
    found = read(root)
    if not found.held or (run is not None and not run.holds(found)):
        return False
    aside = root / f".{FOLDER}-released"
    try:
        remove(aside)
        # Renamed first: a crash in between leaves a folder that nobody takes for the lock.
        (root / FOLDER).rename(aside)
        remove(aside)
    except OSError as error:
        raise LockError(f"the lock cannot be released: {error}") from error
    return True


def _holder(folder: Path) -> dict[str, Any]:
    unread: OSError | None = None
    for name in (NOTE, COPY):
        try:
            note = json.loads((folder / name).read_text())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            continue
        except OSError as error:
            unread = error
            continue
        if isinstance(note, dict) and note:
            return note
    if unread:
        raise LockError(f"the lock cannot be read: {unread}") from unread
    return {}


def _write(root: Path, note: dict[str, Any]) -> None:
    text = json.dumps(note, sort_keys=True) + "\n"
    # On disk before its name, or a power cut may leave it empty. Twice, since without its only note the lock would be
    # nobody's.
    for path in (root / FOLDER / NOTE, root / FOLDER / COPY):
        fresh = path.with_suffix(".next")
        try:
            with fresh.open("w") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(fresh, path)  # noqa: PTH105 - an atomic exchange is meant
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise LockError(f"the note of the lock cannot be written: {error}") from error
