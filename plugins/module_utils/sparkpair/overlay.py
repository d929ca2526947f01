"""Overlays: checksum-pinned edits of engine sources, resolved against an image, all or nothing.

Nothing here touches an image or a disk. ``resolve`` gets a reader for the image's files and a judge that is the image's
own Python, and returns what to mount, or raises ``OverlayError`` with every reason at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from . import udiff

PIN_COMMAND = "ansible-playbook playbooks/pin.yml"
APPLIED = "applied"
ALREADY = "already_present"


class OverlayError(Exception):
    """The overlays cannot be put on this image; ``messages`` holds every reason."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = list(messages)


class ImageError(Exception):
    """The image as a whole cannot be read; the message says why."""


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Source:
    """One known text of a target, and the diff that goes with it."""

    engine: tuple[str, ...]
    sha256_before: str
    sha256_after: str
    diff: str
    diff_sha256: str
    pin: str
    note: str = ""

    def __str__(self) -> str:
        return f"vLLM {', '.join(self.engine)}"


@dataclass(frozen=True)
class Target:
    """A file that the overlay edits. The engine's releases may have it under one of several paths."""

    paths: tuple[str, ...]
    markers: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Overlay:
    """A manifest together with the bytes of its diffs and its self-check."""

    name: str
    targets: tuple[Target, ...]
    diffs: Mapping[str, bytes]
    selfcheck: str = ""

    @classmethod
    def from_data(cls, manifest: Mapping[str, Any], diffs: Mapping[str, bytes], selfcheck: str = "") -> Overlay:
        """Build from a manifest that the controller has validated. Raises OverlayError when it lost its shape since."""
        try:
            targets = tuple(
                Target(
                    paths=tuple(str(p) for p in t["paths"]),
                    markers=tuple(str(m) for m in t["markers"]),
                    sources=tuple(Source(**{**s, "engine": tuple(str(e) for e in s["engine"])}) for s in t["sources"]),
                )
                for t in manifest["targets"]
            )
            return cls(str(manifest["name"]), targets, dict(diffs), selfcheck)
        except (KeyError, TypeError) as error:
            raise OverlayError(
                [f"a manifest does not have the shape of one: {type(error).__name__} {error}"]
            ) from error


@dataclass(frozen=True)
class Found:
    """What the image has at a path: ``kind`` is file, missing, or what else it is (link, directory, ...)."""

    kind: str
    content: bytes = b""
    detail: str = ""


# Reads paths below the package root out of the image, all in one go. Raises ImageError.
Reader = Callable[[Sequence[str]], Mapping[str, Found]]
# Asks the image's own Python about files: path to text to compile, or to None for a file that stays as it is. Returns a
# reason for each path that is not all right: the text does not compile, or the path leads out of the package.
Judge = Callable[[Mapping[str, bytes | None]], Mapping[str, str]]


@dataclass(frozen=True)
class Result:
    """One target that is settled: what the image has, and what the container is to see instead."""

    overlay: str
    path: str
    state: str
    source: Source
    before: bytes
    after: bytes
    sha256_before: str


def bad_path(path: str) -> str:
    """Why ``path`` cannot be a file inside the package, or an empty text."""
    pure = PurePosixPath(path)
    if pure.is_absolute():
        return "is absolute"
    if ".." in pure.parts:
        return "leaves the package"
    if not path or path != str(pure) or pure.suffix != ".py" or any(c in path for c in "\0\n\\"):
        return "is not a plain path of a Python file"
    return ""


def resolve(overlays: Sequence[Overlay], image: str, reader: Reader, judge: Judge) -> list[Result]:
    """Settle every target of every overlay against ``image``.

    Raises:
        OverlayError: with one message per reason. Then nothing may be mounted.
    """
    problems = _conflicts(overlays)
    for overlay in overlays:
        problems += _damage(overlay)
    if problems:
        raise OverlayError(problems)
    wanted = sorted({path for overlay in overlays for target in overlay.targets for path in target.paths})
    try:
        found = reader(wanted) if wanted else {}
        results: list[Result] = []
        for overlay in overlays:
            settled, wrong = _settle(overlay, image, found)
            results += settled
            problems += wrong
        if problems:
            raise OverlayError(problems)
        verdicts = judge({r.path: r.after if r.state == APPLIED else None for r in results}) if results else {}
    except ImageError as error:
        raise OverlayError([f"image {image} cannot be read: {error}"]) from error
    problems = [f"{path} in image {image}: {reason}" for path, reason in sorted(verdicts.items())]
    if problems:
        raise OverlayError(problems)
    return results


def _conflicts(overlays: Sequence[Overlay]) -> list[str]:
    owner: dict[str, str] = {}
    problems: list[str] = []
    for overlay in overlays:
        for path in (p for target in overlay.targets for p in target.paths):
            if reason := bad_path(path):
                problems.append(f"overlay {overlay.name}: target {path!r} {reason}")
            elif path in owner:
                problems.append(f"overlays {owner[path]} and {overlay.name} both edit {path}; one file, one overlay")
            else:
                owner[path] = overlay.name
    return problems


def _damage(overlay: Overlay) -> list[str]:
    """Reasons why this overlay's own files are not what its manifest pins."""
    problems: list[str] = []
    for target in overlay.targets:
        for source in target.sources:
            content = overlay.diffs.get(source.diff)
            where = f"overlay {overlay.name}: {source.diff}"
            if content is None:
                problems.append(f"{where} is missing")
            elif sha256(content) != source.diff_sha256:
                problems.append(
                    f"{where} was edited or truncated: sha256 {sha256(content)}, the manifest pins {source.diff_sha256}"
                )
            else:
                try:
                    named = udiff.parse(content).path
                except udiff.DiffError as error:
                    problems.append(f"{where} is not a sound diff: {error}")
                else:
                    if named not in target.paths:
                        problems.append(f"{where} edits {named}, which is not its target")
    return problems


def _settle(overlay: Overlay, image: str, found: Mapping[str, Found]) -> tuple[list[Result], list[str]]:
    results: list[Result] = []
    problems: list[str] = []
    for target in overlay.targets:
        try:
            results.append(_settle_one(overlay, target, image, found))
        except OverlayError as error:
            problems += error.messages
    states = {r.state for r in results}
    if len(states) > 1:
        held = ", ".join(r.path for r in results if r.state == ALREADY)
        lacking = ", ".join(r.path for r in results if r.state == APPLIED)
        problems.append(
            f"image {image} has a part of overlay {overlay.name} already: {held} is edited, {lacking} is not"
        )
    if not problems and not set.intersection(*(set(r.source.engine) for r in results)):
        texts = "; ".join(f"{r.path} is that of {r.source}" for r in results)
        problems.append(
            f"image {image} mixes files that overlay {overlay.name} knows from different engines: {texts}. "
            f"To try and pin this image: {PIN_COMMAND}"
        )
    return results, problems


def locate(target: Target, image: str, found: Mapping[str, Found]) -> str:
    """The one path of ``target`` that the image has as a regular file. Raises OverlayError."""
    there = [path for path in target.paths if found[path].kind != "missing"]
    if not there:
        raise OverlayError([f"{' or '.join(target.paths)}: not in image {image}"])
    if len(there) > 1:
        raise OverlayError([f"image {image} has {' and '.join(there)}; which of them the engine uses cannot be told"])
    here = found[there[0]]
    if here.kind == "link":
        raise OverlayError(
            [f"{there[0]} in image {image} is a link to {here.detail}; an overlay edits the package only"]
        )
    if here.kind != "file":
        raise OverlayError([f"{there[0]} in image {image} is not a regular file but a {here.kind}{here.detail}"])
    return there[0]


def _settle_one(overlay: Overlay, target: Target, image: str, found: Mapping[str, Found]) -> Result:
    path = locate(target, image, found)
    before = found[path].content
    digest = sha256(before)
    for source in target.sources:
        if digest == source.sha256_after:
            return Result(overlay.name, path, ALREADY, source, before, before, source.sha256_before)
    for source in target.sources:
        if digest == source.sha256_before:
            after = _apply(overlay, target, source, path, before)
            return Result(overlay.name, path, APPLIED, source, before, after, digest)
    marks = [marker for marker in target.markers if marker.encode() in before]
    if marks:
        every = "all marks" if len(marks) == len(target.markers) else "some marks"
        raise OverlayError(
            [
                f"{path} in image {image} (sha256 {digest}) carries {every} of overlay {overlay.name} ({marks}), "
                f"but is not what a pinned diff gives: edited by other means, or a part of the overlay"
            ]
        )
    raise OverlayError(
        [
            f"{path} in image {image} has sha256 {digest}, which overlay {overlay.name} does not know. Nearest known "
            f"source: {nearest(overlay, target, before)}. To look at this image and pin it: {PIN_COMMAND}"
        ]
    )


def _apply(overlay: Overlay, target: Target, source: Source, path: str, before: bytes) -> bytes:
    where = f"overlay {overlay.name}: {source.diff} on {path}"
    try:
        after = udiff.apply(udiff.parse(overlay.diffs[source.diff]), before)
    except udiff.DiffError as error:
        raise OverlayError(
            [f"{where}: {error}, although the source is the pinned one; the manifest was edited"]
        ) from error
    if sha256(after) != source.sha256_after:
        raise OverlayError(
            [f"{where} gives sha256 {sha256(after)}, the manifest pins {source.sha256_after}; nothing is mounted"]
        )
    missing = [m for m in target.markers if m.encode() not in after or m.encode() in before]
    if missing:
        raise OverlayError(
            [f"{where}: marks {missing} must be in the result and not in the source; the manifest was edited"]
        )
    return after


def nearest(overlay: Overlay, target: Target, content: bytes) -> str:
    """Name the known source whose diff fits ``content`` best, and how well."""
    fits = [(udiff.fit(udiff.parse(overlay.diffs[s.diff]), content), s) for s in target.sources]
    best, source = min(fits, key=lambda f: f[0].distance)
    if best.exact:
        return f"{source}, whose diff applies as it is"
    return f"{source} (of its diff, {best})"


# --- a look at an image that need not be known ----------------------------------------------------------------------


@dataclass
class Look:
    """What a target looks like in an image, and what a person may pin.

    ``known`` is one of pinned, already present, partly present, unknown, unreadable. ``proposal`` is a manifest source,
    ``diff`` the text of a diff that it needs and the overlay does not have yet.
    """

    overlay: str
    paths: tuple[str, ...]
    path: str = ""
    sha256: str = ""
    known: str = "unreadable"
    problem: str = ""
    tried: list[dict[str, Any]] = field(default_factory=list)
    proposal: dict[str, Any] | None = None
    diff: bytes = b""
    before: bytes = b""
    after: bytes = b""


def survey(overlays: Sequence[Overlay], image: str, engine: str, reader: Reader, judge: Judge) -> list[Look]:
    """Look at every target in ``image``, try every diff, and propose pins under the engine label ``engine``.

    Raises OverlayError only when the overlays' own files are damaged or the image cannot be read at all.
    """
    problems = _conflicts(overlays)
    for overlay in overlays:
        problems += _damage(overlay)
    if problems:
        raise OverlayError(problems)
    try:
        found = reader(sorted({p for o in overlays for t in o.targets for p in t.paths}))
        looks = [_look(overlay, target, image, engine, found) for overlay in overlays for target in overlay.targets]
        verdicts = judge({look.path: look.after or None for look in looks if look.path})
    except ImageError as error:
        raise OverlayError([f"image {image} cannot be read: {error}"]) from error
    for look in looks:
        if look.path in verdicts:
            look.problem, look.proposal = verdicts[look.path], None
    return looks


def _look(overlay: Overlay, target: Target, image: str, engine: str, found: Mapping[str, Found]) -> Look:
    look = Look(overlay.name, target.paths)
    try:
        look.path = locate(target, image, found)
    except OverlayError as error:
        look.problem = str(error)
        return look
    look.before = found[look.path].content
    look.sha256 = sha256(look.before)
    if any(look.sha256 == s.sha256_after for s in target.sources):
        look.known = "already present"
        return look
    if any(m.encode() in look.before for m in target.markers):
        look.known = "partly present"
        look.problem = "the file carries marks of the overlay and is not a pinned result"
        return look
    look.known = "pinned" if any(look.sha256 == s.sha256_before for s in target.sources) else "unknown"
    look.tried, candidate = _try(overlay, target, look)
    if candidate is None:
        look.problem = look.problem or f"no diff of overlay {overlay.name} fits"
        return look
    source, look.after, moved = candidate
    if look.known == "pinned":
        if engine not in source.engine:
            look.proposal = {**_plain(source), "engine": [*source.engine, engine]}
        return look
    name = f"{PurePosixPath(look.path).stem}-{engine}.diff" if moved else source.diff
    content = moved or overlay.diffs[source.diff]
    look.diff = moved
    look.proposal = {
        "engine": [engine],
        "sha256_before": look.sha256,
        "sha256_after": sha256(look.after),
        "diff": name,
        "diff_sha256": sha256(content),
        "pin": "tested",
        "note": f"Pinned on first contact; closest to {source}.",
    }
    return look


def _plain(source: Source) -> dict[str, Any]:
    data: dict[str, Any] = {
        "engine": list(source.engine),
        "sha256_before": source.sha256_before,
        "sha256_after": source.sha256_after,
        "diff": source.diff,
        "diff_sha256": source.diff_sha256,
        "pin": source.pin,
    }
    return data | ({"note": source.note} if source.note else {})


def _try(
    overlay: Overlay, target: Target, look: Look
) -> tuple[list[dict[str, Any]], tuple[Source, bytes, bytes] | None]:
    """Try every diff; the best candidate is (source, patched text, text of the moved diff or nothing)."""
    tried: list[dict[str, Any]] = []
    exact: list[tuple[Source, bytes, bytes]] = []
    moved: list[tuple[float, int, Source, bytes, bytes]] = []
    for source in target.sources:
        diff = udiff.parse(overlay.diffs[source.diff])
        fit = udiff.fit(diff, look.before)
        entry: dict[str, Any] = {"diff": source.diff, "engine": list(source.engine), "fits": str(fit)}
        try:
            after = udiff.apply(diff, look.before)
            entry["sha256_after"] = sha256(after)
            # A pinned text has exactly one diff that gives its pinned result.
            if look.known == "unknown" or sha256(after) == source.sha256_after:
                exact.append((source, after, b""))
        except udiff.DiffError:
            try:
                text = udiff.relocate(diff, look.before)
                after = udiff.apply(udiff.parse(text), look.before)
                entry["sha256_after_moved"] = sha256(after)
                moved.append((fit.distance, len(moved), source, after, text))
            except udiff.DiffError as error:
                entry["problem"] = str(error)
        tried.append(entry)
    if exact:
        return tried, exact[0]
    return tried, (min(moved, key=lambda m: m[:2])[2:] if moved else None)


def differences(ranks: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """What the overlay results of the ranks (host name to list of result entries) do not agree on; [] when equal.

    Each message names the file and what each rank has.
    """
    keys = ("sha256_before", "sha256_after", "state")
    tables = {
        host: {str(e["target"]): tuple(str(e[k]) for k in keys) for e in entries} for host, entries in ranks.items()
    }
    problems: list[str] = []
    for target in sorted({t for table in tables.values() for t in table}):
        if len({table.get(target) for table in tables.values()}) > 1:
            shown = "; ".join(
                f"{host}: "
                + (f"{e[2]}, source {e[0][:12]}, result {e[1][:12]}" if (e := table.get(target)) else "absent")
                for host, table in sorted(tables.items())
            )
            problems.append(f"{target} is not the same on all ranks ({shown}); give them the same image")
    return problems
