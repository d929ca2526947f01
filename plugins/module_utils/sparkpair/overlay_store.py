"""Results of overlays on a rank's disk: the whole set, or what was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from .store import remove

MODE = 0o644
FOLDER_MODE = 0o755


def same(destination: Path, files: Mapping[str, bytes]) -> bool:
    """True when ``destination`` holds exactly ``files`` (path to content), ours, 0644, and nothing else.

    Without files that means that there is no destination.
    """
    if not files:
        return not os.path.lexists(destination)
    if destination.is_symlink() or not destination.is_dir():
        return False
    folders = {parent for path in files for parent in Path(path).parents}
    for path in [destination, *destination.rglob("*")]:
        inside, info = path.relative_to(destination), path.lstat()
        if info.st_uid != os.geteuid():
            return False
        if stat.S_ISDIR(info.st_mode):
            if inside not in folders or stat.S_IMODE(info.st_mode) != FOLDER_MODE:
                return False
        elif str(inside) not in files or not stat.S_ISREG(info.st_mode) or stat.S_IMODE(info.st_mode) != MODE:
            return False
    return all(
        (destination / path).is_file() and (destination / path).read_bytes() == content
        for path, content in files.items()
    )


def place(destination: Path, files: Mapping[str, bytes]) -> None:
    """Make ``destination`` hold exactly ``files``; without files it is removed. Raises OSError.

    The new tree is written beside the old one and takes its place by rename: a reader sees the old set, for an instant
    none, or the new one. It never sees a mixture.
    """
    fresh = destination.with_name(f".{destination.name}.new")
    old = destination.with_name(f".{destination.name}.old")
    for leftover in (fresh, old):
        remove(leftover)
    if not files:
        remove(destination)
        return
    destination.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    try:
        _folder(fresh)
        for path, content in sorted(files.items()):
            _write(fresh, path, content)
        for folder, _, _ in os.walk(fresh):
            _sync(Path(folder))
        if os.path.lexists(destination):
            destination.rename(old)
        try:
            fresh.rename(destination)
        except OSError:
            if os.path.lexists(old):
                old.rename(destination)
            raise
    except OSError:
        remove(fresh)
        raise
    remove(old)
    _sync(destination.parent)


def _write(base: Path, path: str, content: bytes) -> None:
    for parent in reversed(Path(path).parents):
        _folder(base / parent)
    handle = os.open(base / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        # The mode of open is subject to the umask of the login shell.
        os.fchmod(stream.fileno(), MODE)
        stream.flush()
        os.fsync(stream.fileno())


def _folder(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(FOLDER_MODE)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
