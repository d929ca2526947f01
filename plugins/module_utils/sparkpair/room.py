"""Room on a disk that is kept in reserve, for what must still be written when the disk is full.

A new release that fails may fail because it fills the disk, and its way back has files to write. Standard library only:
runs on the ranks and on the controller.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

FILE = "reserve"
BYTES = 16 * 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve(folder: Path, size: int = BYTES) -> None:
    """Keep ``size`` bytes in reserve in ``folder``, unless it does already. Raises OSError when there is no room."""
    path = folder / FILE
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        with os.fdopen(handle, "wb") as stream:
            # Blocks that are really taken: a file of zeros may take none.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                # macOS, where a controller may run.
                stream.write(os.urandom(size))
    except OSError:
        path.unlink(missing_ok=True)
        raise


def spend(folder: Path) -> bool:
    """Give the reserve in ``folder`` up; False when there was none."""
    try:
        (folder / FILE).unlink()
    except OSError:
        return False
    return True


def full(error: BaseException | None) -> bool:
    """Whether a full disk is what an error, or the one that it was raised from, tells of."""
    return error is not None and ((isinstance(error, OSError) and error.errno in FULL) or full(error.__cause__))
