"""Releases on one rank: staged whole, verified by content, switched by one rename.

A release directory is complete when its ``release.json`` lists every file with sha256 and mode, and the files agree.
Its ``secrets`` folder is not listed: it is written anew, with the same content on every rank, each time before a start,
beside the one in use, and takes its place in the switch: an engine that runs has that folder mounted.
Nothing here ever edits a release in place: a damaged or changed one is built anew beside it and exchanged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELEASE_ID = re.compile(r"[0-9a-f]{12}")
LISTING = "release.json"
SECRETS = "secrets"
SECRETS_NEXT = ".secrets-next"
SECRETS_LAST = ".secrets-last"
APART = (SECRETS, SECRETS_NEXT, SECRETS_LAST)
OVERLAYS = "overlays.json"


class StoreError(Exception):
    """A release cannot be staged, read or switched; the message names path and reason."""


@dataclass(frozen=True)
class File:
    """One file of a release: path relative to it, content in bytes, mode such as 0o644."""

    path: str
    content: bytes
    mode: int
    pinned: str = ""

    @property
    def sha256(self) -> str:
        """Hex digest of the content, or the pinned one of a file that is only compared and never written."""
        return self.pinned or hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Check:
    """What a release directory looks like: ``exists``, and the paths that are not as listed (with the reason)."""

    exists: bool
    damage: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True when the release exists and every file is as listed."""
        return self.exists and not self.damage


def _listing(files: list[File]) -> dict[str, Any]:
    entries = {f.path: {"mode": f"{f.mode:04o}", "sha256": f.sha256} for f in files}
    return {"schema": 1, "files": dict(sorted(entries.items()))}


class Store:
    """The directory ``root`` (for example /opt/sparkpair) with ``releases/`` and the link ``current``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.releases = root / "releases"
        self.link = root / "current"
        self._next = root / ".current-next"

    def path(self, release: str) -> Path:
        """Directory of a release; raises StoreError for anything that is not an id of ours."""
        if not RELEASE_ID.fullmatch(release):
            raise StoreError(f"{release!r} is not a release id (12 hexadecimal digits)")
        return self.releases / release

    def current(self) -> str | None:
        """The id that ``current`` points to, or None."""
        try:
            target = self.link.readlink()
        except OSError:
            return None
        return target.name if RELEASE_ID.fullmatch(target.name) else None

    def ids(self) -> list[str]:
        """Ids of all release directories, sorted."""
        if not self.releases.is_dir():
            return []
        return sorted(p.name for p in self.releases.iterdir() if RELEASE_ID.fullmatch(p.name) and p.is_dir())

    def check(self, release: str) -> Check:
        """Compare a release directory with its own listing; a missing or stray file is damage as well."""
        base = self.path(release)
        if not base.is_dir():
            return Check(exists=False)
        try:
            listed = _read_listing(base / LISTING)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Check(exists=True, damage=[f"{LISTING}: {error}"])
        damage = []
        present = {p.relative_to(base) for p in base.rglob("*") if not p.is_dir() or p.is_symlink()} - {Path(LISTING)}
        for path in sorted(str(p) for p in present if p.parts[0] not in APART and str(p) not in listed):
            damage.append(f"{path}: not part of the release")
        for path, wanted in sorted(listed.items()):
            reason = _compare(base / path, wanted)
            if reason:
                damage.append(f"{path}: {reason}")
        return Check(exists=True, damage=damage)

    def read(self, release: str, path: str) -> str | None:
        """Text of one file of a release, or None when it is not readable."""
        try:
            return (self.path(release) / path).read_text()
        except (OSError, UnicodeDecodeError):
            return None

    def overlays(self, release: str) -> list[dict[str, str]]:
        """Overlay files of a release: ``target`` in the container, ``source`` in the release, ``sha256`` as found."""
        try:
            listed = json.loads(self.read(release, OVERLAYS) or "[]")
            return [
                {
                    **{key: str(o[key]) for key in ("name", "path") if key in o},
                    "sha256_after": str(o.get("sha256_after", "")),
                    "target": str(o["target"]),
                    "source": str(o["source"]),
                    "sha256": hashlib.sha256((self.path(release) / o["source"]).read_bytes()).hexdigest(),
                }
                for o in listed
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def matches(self, release: str, files: list[File]) -> bool:
        """True when the release is complete and holds exactly these files."""
        if not self.check(release).complete:
            return False
        try:
            return bool(json.loads((self.path(release) / LISTING).read_text()) == _listing(files))
        except (OSError, ValueError):
            return False

    def stage(self, release: str, files: list[File]) -> None:
        """Write a release whole, or not at all. Raises StoreError.

        The exchange with an older copy of the same release is two renames; a crash between them leaves the
        release missing, never mixed, and the next staging writes it again.
        """
        base = self.path(release)
        # Names of their own: two controllers may stage the same release at once, before either has the lock.
        own = f"{release}-{uuid.uuid4().hex[:8]}"
        fresh, old = self.releases / f".staging-{own}", self.releases / f".replaced-{own}"
        try:
            self.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
            _mkdir(fresh, 0o755)
            listing = File(LISTING, (json.dumps(_listing(files), indent=1) + "\n").encode(), 0o644)
            for file in [*files, listing]:
                _write(fresh, file)
            _sync_tree(fresh)
            with _alone(self.releases):
                if self.matches(release, files):
                    # The other of two controllers was faster.
                    remove(fresh)
                    return
                self._exchange(base, fresh, old)
            _sync(self.releases)
        except (OSError, StoreError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise StoreError(f"cannot stage release {release} below {self.releases}: {error}") from error

    def _exchange(self, base: Path, fresh: Path, old: Path) -> None:
        if not base.exists():
            fresh.rename(base)
            return
        base.rename(old)
        try:
            # The folder itself and no copy: it is mounted where the release serves while it is mended.
            _hand_over(old, fresh)
            fresh.rename(base)
        except OSError:
            _hand_over(fresh, old)
            old.rename(base)
            raise
        remove(old)

    def arm(self, release: str, secrets: dict[str, str], *, keep: Sequence[str] = ()) -> None:
        """Lay the secrets (name to text) of a release ready for ``switch``: folder 0700, files 0600. Raises StoreError.

        A name in ``keep`` keeps the text that the release has already, where it has one.
        """
        base = self.path(release)
        if not base.is_dir():
            raise StoreError(f"release {release} is not on this rank, so it cannot be started")
        held = {name: found for name in keep if (found := self._held(base, name))}
        gone = [name for name in keep if not secrets.get(name) and name not in held]
        if gone:
            # With an empty key it would serve everybody until a gate sees it.
            raise StoreError(f"release {release} has lost its {', '.join(gone)} on this rank; set it, and deploy")
        fresh = base / SECRETS_NEXT
        try:
            remove(fresh)
            _mkdir(fresh, 0o700)
            for name, text in secrets.items():
                _write(fresh, File(name, held.get(name, text.encode()), 0o600))
            _sync_tree(fresh)
            _sync(base)
        except (OSError, StoreError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise StoreError(f"cannot write the secrets of release {release}: {error}") from error

    def holds(self, release: str, secret: str) -> bool:
        """True when a release on this rank has a secret of its own, which a start without a new one goes on with."""
        return bool(self._held(self.path(release), secret))

    def _held(self, base: Path, name: str) -> bytes:
        # An exchange that was cut short leaves the old ones or the new ones, under one name or another.
        for folder in APART:
            try:
                if found := (base / folder / name).read_bytes():
                    return found
            except OSError:
                continue
        return b""

    def _take_secrets(self, base: Path) -> None:
        if not (base / SECRETS_NEXT).is_dir():
            return
        remove(base / SECRETS_LAST)
        if (base / SECRETS).is_symlink() or (base / SECRETS).exists():
            (base / SECRETS).rename(base / SECRETS_LAST)
        (base / SECRETS_NEXT).rename(base / SECRETS)
        remove(base / SECRETS_LAST)
        _sync(base)

    def prepare(self, release: str) -> None:
        """Have everything on disk that ``switch`` needs, so that only a rename is left. Raises StoreError.

        A release that is not complete is refused here, while the old one still serves.
        """
        check = self.check(release)
        if not check.complete:
            raise StoreError(f"release {release} is not complete: {'; '.join(check.damage) or 'it is missing'}")
        if self.link.exists() and not self.link.is_symlink():
            raise StoreError(f"{self.link} is not a link, so it cannot be moved to another release; move it away")
        try:
            for other in self.ids():
                # What was laid ready for a switch that will not happen any more.
                remove(self.path(other) / SECRETS_NEXT)
            self._next.unlink(missing_ok=True)
            self._next.symlink_to(Path("releases") / release)
            _sync(self.root)
        except OSError as error:
            raise StoreError(f"cannot prepare {self.link}: {error}") from error

    def unprepare(self, release: str) -> bool:
        """Take back what ``prepare`` laid ready for a switch that will not happen; False when nothing lay there.

        Raises StoreError.
        """
        laid = [self._next] if self._next.is_symlink() and self._next.readlink().name == release else []
        laid += [path for path in [self.path(release) / SECRETS_NEXT] if path.exists()]
        try:
            for path in laid:
                remove(path)
        except OSError as error:
            raise StoreError(f"cannot remove {laid[0]}: {error}") from error
        return bool(laid)

    def switch(self, release: str | None) -> None:
        """Point ``current`` at a release, with the secrets that lie ready, or remove the link with None.

        All of it is renames. Raises StoreError.
        """
        if release is not None and not self.path(release).is_dir():
            raise StoreError(f"release {release} is not on this rank, so 'current' stays as it is")
        try:
            if release is None:
                self._next.unlink(missing_ok=True)
                self.link.unlink(missing_ok=True)
                return
            if not self._next.is_symlink() or self._next.readlink().name != release:
                self._next.unlink(missing_ok=True)
                self._next.symlink_to(Path("releases") / release)
            self._take_secrets(self.path(release))
            self._next.rename(self.link)
            _sync(self.root)
        except OSError as error:
            raise StoreError(f"cannot move {self.link}: {error}") from error

    def remove(self, release: str) -> None:
        """Remove a release that is not current. Raises StoreError."""
        if release == self.current():
            raise StoreError(f"release {release} is current and cannot be removed")
        try:
            remove(self.path(release))
        except OSError as error:
            raise StoreError(f"cannot remove release {release}: {error}") from error

    def leftovers(self) -> list[str]:
        """Names of what an interrupted run left behind: half-written directories, and a link that was not moved."""
        found = [str(p.relative_to(self.releases)) for p in self._half_written()]
        return sorted([*found, self._next.name] if self._next.is_symlink() else found)

    def clear(self) -> list[str]:
        """Remove the leftovers and return their names; only for a run that holds the lock. Raises StoreError."""
        found = self.leftovers()
        try:
            for release in self.ids():
                base = self.path(release)
                # An exchange that was cut short between its two renames; the old ones are what its engine has.
                if not (base / SECRETS).exists() and (base / SECRETS_LAST).is_dir():
                    (base / SECRETS_LAST).rename(base / SECRETS)
            for path in [*self._half_written(), self._next]:
                remove(path)
        except OSError as error:
            raise StoreError(f"cannot remove what an interrupted run left: {error}") from error
        return found

    def _half_written(self) -> list[Path]:
        if not self.releases.is_dir():
            return []
        beside = [self.path(release) / name for release in self.ids() for name in (SECRETS_NEXT, SECRETS_LAST)]
        return [
            *(p for p in self.releases.iterdir() if p.name.startswith((".staging-", ".replaced-"))),
            *(p for p in beside if p.exists()),
        ]


def _read_listing(path: Path) -> dict[str, dict[str, Any]]:
    listed = json.loads(path.read_text())["files"]
    if not isinstance(listed, dict) or not all(isinstance(entry, dict) for entry in listed.values()):
        raise TypeError("the list of files is malformed")
    return listed


def _compare(path: Path, wanted: dict[str, Any]) -> str | None:
    try:
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        # A bad block of a release that nobody needs must not end every verb.
        return f"cannot be read ({error.strerror or error})"
    if not stat.S_ISREG(info.st_mode):
        return "not a regular file"
    if f"{stat.S_IMODE(info.st_mode):04o}" != wanted.get("mode"):
        return f"mode {stat.S_IMODE(info.st_mode):04o}, wanted {wanted.get('mode')}"
    if hashlib.sha256(content).hexdigest() != wanted.get("sha256"):
        return "content differs from the release's listing"
    return None


def _write(base: Path, file: File) -> None:
    path = base / file.path
    # Both sides resolved: the root itself may lie behind a link.
    if base.resolve() not in path.resolve().parents:
        raise StoreError(f"{file.path}: leaves the release directory")
    for parent in reversed(path.relative_to(base).parents):
        if str(parent) != ".":
            _mkdir(base / parent, 0o755)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(file.content)
        # fchmod and not the mode of open: the umask of the login shell must not decide.
        os.fchmod(stream.fileno(), file.mode)
        stream.flush()
        os.fsync(stream.fileno())


def _mkdir(path: Path, mode: int) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    # chmod and not the mode of mkdir, for the same reason.
    path.chmod(mode)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(base: Path) -> None:
    for folder, _, _ in os.walk(base):
        _sync(Path(folder))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time past; a process that dies gives its turn back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _hand_over(giver: Path, taker: Path) -> None:
    for name in APART:
        if (giver / name).is_dir() and not (taker / name).exists():
            (giver / name).rename(taker / name)


def remove(path: Path) -> None:
    """Remove a directory, a file or a link; nothing when it is not there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
