"""Work on an image that takes minutes, in a process of its own: one call begins it, later calls look how far it is.

Between the calls the controller shows what the work noted. A controller that goes away does not end the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .apart import apart
from .images import ImageError, place
from .noting import Note
from .runner import Clock

PREFIX = "sparkpair-image-"
RESULT, NOTE, LOCK = "result.json", "note.json", "lock"
NOTE_SECONDS = 1.0
LOOK_SECONDS = 0.1


def _publish(path: Path, data: Mapping[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data))
    fresh.rename(path)


class Notes:
    """Keeps the last note in a file, written at most once a second."""

    def __init__(self, folder: Path, *, clock: Clock = time.monotonic) -> None:
        self._path, self._clock = folder / NOTE, clock
        self._doing, self._since, self._written = "", 0.0, -math.inf

    def __call__(self, doing: str, done: int = 0, of: int = 0, unit: str = "") -> None:
        """Keep a note."""
        now = self._clock()
        if doing != self._doing:
            self._doing, self._since, self._written = doing, now, -math.inf
        if now - self._written >= NOTE_SECONDS:
            self._written = now
            note = {"doing": doing, "done": done, "of": of, "unit": unit, "since": self._since, "at": now}
            # The work goes on, whatever becomes of a note about it.
            with contextlib.suppress(OSError):
                _publish(self._path, note)


def begin(work: Callable[[Note], dict[str, Any]]) -> Path:
    """Begin ``work``, which gets a place for its notes and returns the module's result; returns the job's folder."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place()))
    # Held by the process that works, so that its end shows however it comes.
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        apart(lambda: _publish(folder / RESULT, _outcome(work, Notes(folder))))
    finally:
        os.close(lock)
    return folder


def _outcome(work: Callable[[Note], dict[str, Any]], note: Note) -> dict[str, Any]:
    try:
        return work(note)
    except ImageError as error:
        return {"failed": True, "msg": str(error)}
    except Exception:
        return {"failed": True, "msg": traceback.format_exc()}


def _ended(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def look(folder: Path, hold: float, *, clock: Clock = time.monotonic) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Wait at most ``hold`` seconds for the end of a job.

    Returns the result of the work and {}, or None and its last note: ``doing``, ``done``, ``of``, ``unit``, ``seconds``
    since it does that, and ``rate`` in units per second; {} when nothing was noted yet. The folder goes with the
    result. Raises ImageError when the process is gone without a result.
    """
    if folder.parent != place() or not folder.name.startswith(PREFIX):
        raise ImageError(f"{folder} is no work on an image")
    until = clock() + hold
    while True:
        ended = _ended(folder)
        if (folder / RESULT).exists():
            result: dict[str, Any] = json.loads((folder / RESULT).read_text())
            shutil.rmtree(folder, ignore_errors=True)
            return result, {}
        if ended:
            shutil.rmtree(folder, ignore_errors=True)
            raise ImageError(
                "the process that worked on the image is gone (killed, or the host was restarted); run again"
            )
        if clock() >= until:
            return None, _last(folder, clock())
        time.sleep(LOOK_SECONDS)


def running() -> list[dict[str, Any]]:
    """Last notes of the jobs on this host that have not ended, those without one left out."""
    found = []
    for folder in sorted(place().glob(f"{PREFIX}*")):
        if not _ended(folder) and (note := _last(folder, time.monotonic())):
            found.append(note)
    return found


def _last(folder: Path, now: float) -> dict[str, Any]:
    try:
        note: dict[str, Any] = json.loads((folder / NOTE).read_text())
    except FileNotFoundError:
        return {}
    since, at = note.pop("since"), note.pop("at")
    return note | {"seconds": now - since, "rate": note["done"] / (at - since) if at > since else 0.0}
