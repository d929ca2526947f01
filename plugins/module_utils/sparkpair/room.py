"""Room on a disk that is kept in reserve, for what must still be written when the disk is full.

A new release that fails may fail because it fills the disk, and its way back has files to write. Standard library only:
runs on the ranks and on the controller.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

KEPT = "reserve"
BYTES = 16 * 1024 * 1024
FILES = 32
FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve(folder: Path, size: int = BYTES, files: int = FILES) -> None:
    """Keep ``size`` bytes and ``files`` inodes in reserve in ``folder``, unless it does already.

    Raises OSError when there is no room.
    """
    kept = folder / KEPT
    try:
        kept.mkdir(mode=0o700)
    except FileExistsError:
        return
    try:
        for number in range(files):
            (kept / str(number)).touch(mode=0o600)
        with (kept / "0").open("wb") as stream:
            # Blocks that are really taken: a file of zeros may take none.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                # macOS, where a controller may run.
                stream.write(os.urandom(size))
    except OSError:
        shutil.rmtree(kept, ignore_errors=True)
        raise


def spend(folder: Path) -> bool:
    """Give the reserve in ``folder`` up; False when there was none."""
    try:
        shutil.rmtree(folder / KEPT)
    except OSError:
        return False
    return True


def full(error: BaseException | None) -> bool:
    """Whether a full disk is what an error, or the one that it was raised from, tells of."""
    return error is not None and ((isinstance(error, OSError) and error.errno in FULL) or full(error.__cause__))
