"""One at a time: clones of the project on one machine share one pair, and only one of them makes or removes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .host import heartbeat, say

LOCK = "lock"


@contextlib.contextmanager
def turn(home: Path, what: str) -> Iterator[None]:
    """Hold the lab's lock. While another run holds it, say so and for whom this one waits."""
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = _hold(home / LOCK)
    try:
        lock.truncate(0)
        lock.write(f"`{what}` of {Path.cwd()}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n")
        lock.flush()
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.truncate(0)
        lock.close()


def _hold(path: Path) -> IO[str]:
    while True:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "a run that did not leave its name"
            say(f"the pair is in other hands, waiting for {holder}")
            with heartbeat(f"waiting for {holder}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            # A purge removes the file; a lock on a removed file keeps nobody out.
            if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                return lock
        except FileNotFoundError:
            pass
        lock.close()
