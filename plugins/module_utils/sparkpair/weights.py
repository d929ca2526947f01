"""Weights in a Hugging Face cache: which files a pinned snapshot must hold, and whether they are there by content.

The layout is the one of the hub's own library: ``hub/models--<owner>--<name>/`` with ``snapshots/<revision>/<path>``
(links into ``blobs/``, or plain files) and ``refs/main``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

REVISION = re.compile(r"[0-9a-f]{40}")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
HF_TARGET = "/root/.cache/huggingface"
PARTIAL = ".sparkpair"
"""Folder of a repository for files that are still arriving; gone when the snapshot is complete."""


class WeightsError(Exception):
    """Weights cannot be checked or brought; the message names the path and what to do."""


@dataclass(frozen=True)
class Model:
    """A pinned model: the setting that names it, its repository, its commit, and its folder in ``hub/``."""

    setting: str
    repository: str
    revision: str
    folder: str

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Model:
        """Take a model from plain data. Raises WeightsError for a branch or tag, or a name that is not one."""
        made = cls(*(str(given[key]) for key in ("setting", "repository", "revision", "folder")))
        if not REVISION.fullmatch(made.revision):
            raise WeightsError(
                f"{made.setting}: {made.revision!r} is not a commit; a branch or a tag moves. "
                "Allowed: a commit of 40 lower-case hexadecimal digits"
            )
        if not REPOSITORY.fullmatch(made.repository) or not FOLDER.fullmatch(made.folder):
            raise WeightsError(f"{made.setting}: {made.repository!r} in {made.folder!r} is not a repository owner/name")
        return made


def repository_folder(repository: str, cache_name: str = "") -> str:
    """Folder of a repository in ``hub/``: the given name, or the one that the hub's library derives."""
    return cache_name or "models--" + repository.replace("/", "--")


def mounted_cache(rank: Mapping[str, Any]) -> str:
    """Hugging Face cache on a rank of the plan, taken from its mounts; "" when it has none."""
    return next((str(m["source"]) for m in rank["mounts"] if m["target"] == HF_TARGET), "")


def models_of(plan: Mapping[str, Any]) -> list[dict[str, str]]:
    """Target and, with DFlash, draft of a plan, as ``Model.read`` takes them."""
    settings = plan["settings"]
    names = ["model", *(["dflash_model"] if plan["spec_method"] == "dflash" else [])]
    return [
        {
            "setting": name,
            "repository": str(settings[name]),
            "revision": str(settings[name.removesuffix("_model") + "_revision"]),
            "folder": repository_folder(
                str(settings[name]), str(settings.get(name.removesuffix("_model") + "_cache_name") or "")
            ),
        }
        for name in names
    ]


@dataclass(frozen=True)
class Entry:
    """One file of a snapshot.

    ``path`` is relative to the snapshot, ``size`` in bytes. ``sha256`` is empty until the file was hashed when the hub
    only tells its git hash (``git``). ``blob`` is the name in ``blobs/``, empty for a plain file in the snapshot.
    """

    path: str
    size: int
    sha256: str = ""
    git: str = ""
    blob: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Entry:
        """Take an entry from plain data. Raises WeightsError when a name would leave the snapshot."""
        made = cls(
            str(given["path"]), int(given["size"]), *(str(given.get(k) or "") for k in ("sha256", "git", "blob"))
        )
        parts = PurePosixPath(made.path).parts
        if not parts or made.path.startswith("/") or ".." in parts or "\0" in made.path:
            raise WeightsError(f"{made.path!r} is not a path inside a snapshot")
        if (
            made.size < 0
            or (made.sha256 and not SHA256.fullmatch(made.sha256))
            or "/" in made.blob
            or made.blob == ".."
        ):
            raise WeightsError(f"the manifest's entry of {made.path} is malformed")
        return made


@dataclass(frozen=True)
class Manifest:
    """All files of a snapshot but those that ``exclude`` names by patterns.

    ``source`` is where it comes from: ``hub``, or the cache that was hashed.
    """

    repository: str
    revision: str
    source: str
    entries: tuple[Entry, ...]
    exclude: tuple[str, ...] = ()

    @property
    def sealed(self) -> bool:
        """Whether every file is pinned by its sha256."""
        return all(e.sha256 for e in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(e.size for e in self.entries)

    @property
    def digest(self) -> str:
        """Hex sha256 over names, sizes and hashes: equal on ranks that must hold equal files; "" while unsealed."""
        if not self.sealed:
            return ""
        rows = sorted((e.path, e.size, e.sha256) for e in self.entries)
        return hashlib.sha256(json.dumps([self.repository, self.revision, rows]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Plain data, as ``read`` takes it."""
        return asdict(self) | {"entries": [{k: v for k, v in asdict(e).items() if v != ""} for e in self.entries]}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Manifest:
        """Take a manifest from plain data. Raises WeightsError when it is malformed or empty."""
        try:
            entries = tuple(Entry.read(e) for e in given["entries"])
            exclude = tuple(map(str, given.get("exclude") or ()))
            made = cls(str(given["repository"]), str(given["revision"]), str(given["source"]), entries, exclude)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WeightsError(f"a manifest is malformed: {error!r}") from error
        if not entries:
            raise WeightsError(f"the manifest of {made.repository} at {made.revision} lists no file")
        return made


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), 0o644)
    Path(name).replace(path)


class Manifests:
    """Manifests of this rank, in ``<root>/weights/<folder>/<revision>.json``."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "weights"

    def _path(self, model: Model) -> Path:
        return self.folder / model.folder / f"{model.revision}.json"

    def load(self, model: Model) -> Manifest | None:
        """The stored manifest; None when there is none, or none of this repository and revision."""
        try:
            found = Manifest.read(json.loads(self._path(model).read_text()))
        except (OSError, ValueError, WeightsError):
            return None
        return found if (found.repository, found.revision) == (model.repository, model.revision) else None

    def store(self, model: Model, manifest: Manifest) -> bool:
        """Keep a manifest; tells whether anything was written."""
        text = json.dumps(manifest.to_json(), indent=1) + "\n"
        path = self._path(model)
        with suppress(OSError):
            if path.read_text() == text:
                return False
        write_whole(path, text)
        return True


@dataclass(frozen=True)
class Cache:
    """A Hugging Face cache: ``home`` is what the engine mounts, ``hub`` the folder of repositories in it."""

    home: Path
    hub: Path

    @classmethod
    def at(cls, home: str) -> Cache:
        """The cache of a rank."""
        return cls(Path(home), Path(home) / "hub")

    @classmethod
    def anywhere(cls, folder: str) -> Cache:
        """A cache to import from: a HF_HOME, or its ``hub`` folder alone."""
        path = Path(folder)
        return cls(path, path / "hub" if (path / "hub").is_dir() else path)

    def repository(self, model: Model) -> Path:
        """Folder of a model."""
        return self.hub / model.folder

    def snapshot(self, model: Model) -> Path:
        """Folder of a model's pinned snapshot."""
        return self.repository(model) / "snapshots" / model.revision

    def blob(self, model: Model, entry: Entry) -> Path:
        """Where the content of an entry belongs."""
        return self.repository(model) / "blobs" / entry.blob if entry.blob else self.snapshot(model) / entry.path

    def partial(self, model: Model, entry: Entry) -> Path:
        """Where an entry's content arrives; named by content, so that no other file is ever continued."""
        return self.repository(model) / PARTIAL / entry.sha256

    def ref_is_right(self, model: Model) -> bool:
        """Whether ``refs/main`` names the pin."""
        try:
            return (self.repository(model) / "refs" / "main").read_text().strip() == model.revision
        except (OSError, UnicodeDecodeError):
            return False


class Hashes:
    """sha256 by file, remembered as long as inode, size, mtime and ctime stay; in ``<root>/weights/hashes.json``.

    A change of content that leaves all four alone (decay of the disk) is only found with ``fresh``.
    """

    def __init__(self, root: Path, *, fresh: bool = False) -> None:
        self.path = root / "weights" / "hashes.json"
        self.hashed = 0
        self._known: dict[str, list[Any]] = {}
        self._dirty = False
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text())
            if isinstance(found, dict) and not fresh:
                self._known = found

    @staticmethod
    def _key(info: os.stat_result) -> list[int]:
        return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]

    def known(self, real: str, info: os.stat_result) -> str | None:
        """The hash of a file that did not change since, or None."""
        found = self._known.get(real)
        return str(found[4]) if isinstance(found, list) and found[:4] == self._key(info) else None

    def remember(self, real: str, info: os.stat_result, sha256: str) -> None:
        """Note the hash of a file."""
        self._known[real] = [*self._key(info), sha256]
        self._dirty = True

    def make(self, real: str) -> str:
        """Hash a file, and remember the result unless the file changed meanwhile. Raises OSError."""
        with open(real, "rb", buffering=0) as stream:  # noqa: PTH123 - unbuffered, into one buffer
            before = os.fstat(stream.fileno())
            sha256 = sha256_of(stream)
            drop_from_memory(stream.fileno())
        if self._key(Path(real).stat()) == self._key(before):
            self.remember(real, before, sha256)
        self.hashed += before.st_size
        return sha256

    def save(self) -> None:
        """Write what is new; files that are gone are forgotten."""
        if self._dirty:
            self._known = {real: entry for real, entry in self._known.items() if os.path.exists(real)}  # noqa: PTH110
            write_whole(self.path, json.dumps(self._known))
            self._dirty = False


def sha256_of(stream: Any) -> str:
    """Hex sha256 of a binary stream from where it stands; other threads run meanwhile."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 22))
    while size := stream.readinto(buffer):
        digest.update(buffer[:size])
    return digest.hexdigest()


def drop_from_memory(handle: int) -> None:
    """Let the kernel forget a file's pages: on unified memory page cache counts as memory that a GPU cannot have."""
    with suppress(OSError, AttributeError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def git_hash(path: Path) -> str:
    """Hash under which git, and so the hub, knows a small file. Raises OSError."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Survey:
    """What a snapshot holds, against its manifest.

    ``bring`` must be fetched (entry and why), ``link`` is there as a blob and only not linked, ``unknown`` are real
    paths that must be hashed before anything can be said of them, with their sizes in bytes.
    """

    bring: list[tuple[Entry, str]] = field(default_factory=list)
    link: list[Entry] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every file is there and right."""
        return not (self.bring or self.link or self.unknown)


def survey(cache: Cache, model: Model, manifest: Manifest, hashes: Hashes) -> Survey:
    """Compare a snapshot with its manifest, without reading content that was hashed before."""
    found, home = Survey(), os.path.realpath(cache.home)
    for entry in manifest.entries:
        path = cache.snapshot(model) / entry.path
        why = _judge(str(path), entry, home, hashes, found)
        if not why:
            continue
        other = cache.blob(model, entry)
        # The content may be there under its name in blobs/, from another snapshot or behind a wrong link.
        if entry.blob and os.path.realpath(path) != os.path.realpath(other):
            reason = _judge(str(other), entry, home, hashes, found)
            if not reason:
                found.link.append(entry)
                continue
        found.bring.append((entry, why))
    return found


def _judge(path: str, entry: Entry, home: str, hashes: Hashes, found: Survey) -> str:
    """Say why a file is not its entry, or ""; a file that was never hashed is noted as unknown and passes."""
    real = os.path.realpath(path)
    try:
        info = os.stat(real)  # noqa: PTH116 - a hundred files in milliseconds
    except OSError:
        return "is missing"
    if not stat.S_ISREG(info.st_mode):
        return "is not a file"
    if not real.startswith(home + os.sep):
        return f"leads to {real}, outside of the cache that the engine mounts"
    if info.st_size != entry.size:
        return f"holds {info.st_size} of {entry.size} bytes"
    return _content(real, info, entry, hashes, found)


def _content(real: str, info: os.stat_result, entry: Entry, hashes: Hashes, found: Survey) -> str:
    if not entry.sha256:
        return "" if git_hash(Path(real)) == entry.git else "differs from the hub's file"
    seen = hashes.known(real, info)
    if seen is None:
        found.unknown[real] = info.st_size
        return ""
    return "" if seen == entry.sha256 else f"has sha256 {seen[:12]}, wanted {entry.sha256[:12]}"
