"""Work on a Hugging Face cache: hash it in parallel, describe a snapshot, keep owners, refs, and an eye on room."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from .weights import PARTIAL, SHA256, Cache, Entry, Hashes, Manifest, Model, WeightsError, git_hash

Clock = Callable[[], float]


def stored_bytes(root: Path) -> int:
    """Size of the regular files below ``root``, links not followed: blobs count once, unfinished ones as well."""
    total = 0
    with suppress(OSError):
        for path in root.rglob("*"):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    total += path.stat().st_size
    return total


def credited_bytes(repository: Path, snapshot: Path) -> int:
    """Bytes of a repository that a snapshot does not need again: what its files lead to, and what is unfinished.

    Of an unfinished blob nothing says which snapshot it is for, so it counts.
    """
    found: dict[str, int] = {}
    reached = [path for path in _below(snapshot) if path.is_file()]
    unfinished = [path for path in _below(repository / "blobs") if path.suffix == ".incomplete"]
    for path in (*reached, *unfinished, *_below(repository / PARTIAL)):
        with suppress(OSError):
            real = os.path.realpath(path)
            found[real] = Path(real).stat().st_size if Path(real).is_file() else 0
    return sum(found.values())


def _below(folder: Path) -> list[Path]:
    try:
        return list(folder.rglob("*"))
    except OSError:
        return []


def hash_all(
    unknown: Mapping[str, int], hashes: Hashes, *, threads: int, seconds: float, clock: Clock = time.monotonic
) -> None:
    """Hash files side by side, largest first; no further one is begun after ``seconds``. Raises WeightsError."""
    end, waiting, guard = clock() + seconds, sorted(unknown, key=lambda p: -unknown[p]), threading.Lock()
    count = len(waiting)

    def work() -> None:
        while True:
            with guard:
                if not waiting or (len(waiting) < count and clock() >= end):
                    return
                real = waiting.pop(0)
            hashes.make(real)

    try:
        with ThreadPoolExecutor(max(1, threads)) as pool:
            for done in [pool.submit(work) for _ in range(max(1, threads))]:
                done.result()
    except OSError as error:
        raise WeightsError(f"cannot read {error.filename}: {error.strerror}") from error


def excluded(path: str, exclude: Sequence[str]) -> bool:
    """Whether a path of a snapshot matches a pattern of files that are not wanted; ``name/`` means all below."""
    return any(fnmatch(path, pattern + "*" if pattern.endswith("/") else pattern) for pattern in exclude)


def files_of(snapshot: Path, exclude: Sequence[str]) -> list[str]:
    """Paths of a snapshot's files relative to it, sorted, without those that match a pattern of ``exclude``."""
    found = []
    for folder, _, names in os.walk(snapshot):
        for name in names:
            path = (Path(folder) / name).relative_to(snapshot).as_posix()
            if not excluded(path, exclude):
                found.append(path)
    return sorted(found)


def gaps(snapshot: Path, present: Iterable[str]) -> list[str]:
    """Files that a snapshot lacks to be whole: a usable ``config.json``, weights, and every shard of its index."""
    names, lacking = set(present), []
    try:
        if not isinstance(json.loads((snapshot / "config.json").read_text()), dict):
            lacking.append("config.json is not an object")
    except (OSError, ValueError):
        lacking.append("config.json")
    for index in sorted(n for n in names if n.endswith(".index.json")):
        try:
            listed = json.loads((snapshot / index).read_text())["weight_map"].values()
            lacking += sorted({str(shard) for shard in listed} - names)
        except (OSError, ValueError, KeyError, AttributeError):
            lacking.append(f"{index} cannot be read")
    if not any(n.endswith((".safetensors", ".bin")) for n in names):
        lacking.append("any file of weights")
    return lacking


def describe(
    cache: Cache, model: Model, exclude: Sequence[str], hashes: Hashes
) -> tuple[Manifest | None, dict[str, int]]:
    """Manifest of the files that a snapshot holds, or what must be hashed before (real path to size in bytes).

    Names in ``blobs/`` are the hub's own hashes, so a file that differs from its name is refused. Raises WeightsError,
    also when the snapshot lacks files that it needs.
    """
    snapshot = cache.snapshot(model)
    paths = files_of(snapshot, exclude)
    lacking = gaps(snapshot, paths) if paths else ["every file"]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""  # noqa: PLR2004 - enough for a message
        raise WeightsError(f"{snapshot} lacks {', '.join(lacking[:3])}{more}")
    entries, unknown = [], {}
    for path in paths:
        real = os.path.realpath(snapshot / path)
        try:
            info = Path(real).stat()
        except OSError as error:
            raise WeightsError(f"{snapshot / path} leads to {real}: {error.strerror}") from error
        sha256 = hashes.known(real, info)
        if sha256 is None:
            unknown[real] = info.st_size
            continue
        blob = _blob(cache, model, path)
        if (SHA256.fullmatch(blob) and blob != sha256) or (len(blob) == 40 and git_hash(Path(real)) != blob):  # noqa: PLR2004
            raise WeightsError(
                f"{real} does not hold what its name says (sha256 {sha256}); remove it and download it again"
            )
        entries.append(Entry(path, info.st_size, sha256, "", blob))
    if unknown:
        return None, unknown
    return Manifest(model.repository, model.revision, "cache", tuple(entries), tuple(exclude)), {}


def keeping(made: Manifest, known: Manifest) -> Manifest:
    """A manifest made of the files that are there, with what an earlier one knows of those that are still wanted."""
    kept = {e.path: e for e in known.entries if not excluded(e.path, made.exclude)}
    return replace(made, entries=tuple(({e.path: e for e in made.entries} | kept).values()))


def _blob(cache: Cache, model: Model, path: str) -> str:
    """Name in ``blobs/`` that a snapshot's file links to; "" for a plain file."""
    with suppress(OSError):
        target = (cache.snapshot(model) / path).parent / os.readlink(cache.snapshot(model) / path)  # noqa: PTH115
        if os.path.realpath(target.parent) == os.path.realpath(cache.repository(model) / "blobs"):
            return target.name
    return ""


def seal(cache: Cache, model: Model, manifest: Manifest, hashes: Hashes) -> Manifest:
    """Pin every file of a complete snapshot by sha256, and note how it is stored. Raises OSError."""

    def sealed(entry: Entry) -> Entry:
        real = os.path.realpath(cache.snapshot(model) / entry.path)
        sha256 = entry.sha256 or hashes.known(real, Path(real).stat()) or hashes.make(real)
        return replace(entry, sha256=sha256, blob=_blob(cache, model, entry.path))

    return replace(manifest, entries=tuple(sealed(e) for e in manifest.entries))


@dataclass(frozen=True)
class Owner:
    """Who new files of a cache belong to."""

    uid: int
    gid: int

    @classmethod
    def of(cls, cache: Cache) -> Owner:
        """Owner of the cache, or of the closest folder above it that exists."""
        info = nearest(cache.home).stat()
        return cls(info.st_uid, info.st_gid)

    @property
    def name(self) -> str:
        """Login name, or the number of a user that this host does not know."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def give(self, path: Path | str) -> None:
        """Hand a new file, link or folder to this owner; only root can, and for others it is theirs already."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def mkdir(self, path: Path) -> None:
        """Make a folder and those above it that are missing, all of this owner."""
        for folder in reversed([path, *path.parents]):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                folder.chmod(0o755)
                self.give(folder)


def nearest(path: Path) -> Path:
    """The path itself, or its closest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _folders(cache: Cache, model: Model) -> Iterator[Path]:
    repository = cache.repository(model)
    yield from (cache.home, cache.hub, repository)
    yield from (repository / name for name in ("blobs", "refs", "snapshots", PARTIAL))
    yield cache.snapshot(model)


def barred(cache: Cache, model: Model) -> str:
    """Say which folder of the cache its owner cannot write to and how to change that, or ""."""
    for link in (cache.hub, cache.repository(model)):
        real = Path(os.path.realpath(link))
        if not real.is_relative_to(os.path.realpath(cache.home)):
            return f"{link} leads to {real}, which the engine does not mount: set spark_hf_home to where it is"
    owner = Owner.of(cache)
    for folder in _folders(cache, model):
        with suppress(OSError):
            info = folder.stat()
            theirs = Owner(info.st_uid, info.st_gid)
            if os.geteuid() != 0 and not os.access(folder, os.W_OK | os.X_OK):
                return f"{folder} belongs to {theirs.name} and cannot be written: run with become, or change its owner"
            if theirs.uid != owner.uid and not info.st_mode & 0o002:
                return (
                    f"{folder} belongs to {theirs.name}, but the cache {cache.home} to {owner.name}: "
                    f"chown -R {owner.name}: {folder}"
                )
    return ""


def odd_owner(cache: Cache) -> str:
    """Say that a cache in somebody's home belongs to root, or ""."""
    if not cache.home.exists():
        return ""
    owner, above = Owner.of(cache), Owner(*_ids(cache.home.parent))
    if owner.uid == 0 and above.uid != 0:
        return (
            f"{cache.home} belongs to root, inside a folder of {above.name}, who cannot add to it: "
            f"chown -R {above.name}: {cache.home}"
        )
    return ""


def _ids(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_uid, info.st_gid


def free_bytes(path: Path) -> int:
    """Bytes that can still be written where ``path`` is or will be."""
    return shutil.disk_usage(nearest(path)).free


def repair_ref(cache: Cache, model: Model) -> None:
    """Have ``refs/main`` name the pin. Raises OSError."""
    owner, path = Owner.of(cache), cache.repository(model) / "refs" / "main"
    owner.mkdir(path.parent)
    fresh = path.with_name(f".main-{os.getpid()}")
    fresh.write_text(model.revision)
    fresh.chmod(0o644)
    owner.give(fresh)
    fresh.replace(path)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep a second run from bringing weights to this rank at the same time. Raises WeightsError."""
    path = root / "weights" / "lock"
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WeightsError("another run is bringing weights to this rank; wait until it has ended") from None
        yield
