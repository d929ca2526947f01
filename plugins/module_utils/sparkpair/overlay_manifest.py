"""Overlay folders of a checkout: read, validated, digested, and pinned anew. Controller only."""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from .overlay import bad_path

MANIFEST = "manifest.json"
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Text = Annotated[str, StringConstraints(min_length=1)]


class ManifestError(Exception):
    """An overlay folder is not usable; the message names the file and what is wrong with it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(_Model):
    """One known text of a target.

    ``engine`` lists the releases (or build hashes) that have it, ``pin`` tells how the pin came about: ``tested`` when
    the diff was applied to this very text and the result exercised, ``expected`` when nobody has seen the text in an
    image of that engine.
    """

    engine: Annotated[list[Text], Field(min_length=1)]
    sha256_before: Digest
    sha256_after: Digest
    diff: FileName
    diff_sha256: Digest
    pin: Literal["tested", "expected"]
    note: str = ""


class Target(_Model):
    """A file to edit: its possible paths inside the package, and texts that only an edited file contains."""

    paths: Annotated[list[Text], Field(min_length=1)]
    markers: Annotated[list[Text], Field(min_length=1)]
    sources: Annotated[list[Source], Field(min_length=1)]

    @field_validator("paths")
    @classmethod
    def _inside(cls, paths: list[str]) -> list[str]:
        for path in paths:
            if reason := bad_path(path):
                raise ValueError(f"{path!r} {reason}")
        return paths

    @model_validator(mode="after")
    def _distinct(self) -> Target:
        before = [s.sha256_before for s in self.sources]
        after = [s.sha256_after for s in self.sources]
        if len(set(before)) != len(before):
            raise ValueError("two sources pin the same text")
        if set(before) & set(after):
            raise ValueError("a text is both the source and the result of an edit")
        return self


class Manifest(_Model):
    """The whole of manifest.json. ``environment`` names the variables that the edited code reads."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    description: Text
    environment: list[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]]
    selfcheck: FileName
    targets: Annotated[list[Target], Field(min_length=1)]


def overlay_digest(folder: Path) -> str:
    """Hex sha256 over the relative path and content of every file below ``folder``, without Python's caches."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if "__pycache__" in path.parts:
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def load(folder: Path) -> Manifest:
    """Read and validate ``folder``/manifest.json. Raises ManifestError."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors())
        raise ManifestError(f"{path}: {reasons}") from error
    if manifest.name != folder.name:
        raise ManifestError(f"{path}: names overlay {manifest.name}, but its folder is {folder.name}")
    return manifest


def ship(root: Path, wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Content of the overlays below ``root`` that ``wanted`` names, as plain data for the module on a Spark.

    Each entry of ``wanted`` has a ``name`` and may have the ``digest`` that the plan holds. Diffs are base64 text, so
    that no conversion on the way can change a byte of them.

    Raises:
        ManifestError: with every reason, such as a folder that changed since it was planned.
    """
    problems: list[str] = []
    shipped: list[dict[str, Any]] = []
    for entry in wanted:
        name = str(entry.get("name", ""))
        try:
            shipped.append(_ship(root, name, entry.get("digest")))
        except ManifestError as error:
            problems.append(str(error))
    if problems:
        raise ManifestError("\n".join(problems))
    return shipped


def _ship(root: Path, name: str, digest: str | None) -> dict[str, Any]:
    folder = root / name
    if not name.isidentifier() or not folder.is_dir():
        known = ", ".join(sorted(p.parent.name for p in root.glob(f"*/{MANIFEST}")))
        raise ManifestError(f"there is no overlay {name!r} in {root} (known: {known or 'none'})")
    found = overlay_digest(folder)
    if digest is not None and found != digest:
        raise ManifestError(
            f"overlay {name} was edited after it was planned: its folder has digest {found}, the plan {digest}"
        )
    manifest = load(folder)
    try:
        names = sorted({s.diff for t in manifest.targets for s in t.sources})
        diffs = {n: base64.b64encode((folder / n).read_bytes()).decode() for n in names}
        selfcheck = (folder / manifest.selfcheck).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"overlay {name}: {error}") from error
    return {
        "name": name,
        "digest": found,
        "manifest": manifest.model_dump(by_alias=True, mode="json"),
        "diffs": diffs,
        "selfcheck": selfcheck,
    }


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


class Proposal:
    """New texts of files in overlay folders, made from what ``spark_overlay`` saw in an image."""

    def __init__(self, root: Path, looks: Sequence[Mapping[str, Any]]) -> None:
        """Args: ``root`` holds the overlay folders; ``looks`` are survey entries with ``overlay``, ``paths``,
        ``proposal`` (a manifest source, or None) and ``diff`` (base64 of a new diff file, or empty)."""
        self.root = root
        self.files: dict[Path, bytes] = {}
        for name in sorted({str(look["overlay"]) for look in looks if look.get("proposal")}):
            self._add(name, [look for look in looks if look["overlay"] == name and look.get("proposal")])

    def _add(self, name: str, looks: Sequence[Mapping[str, Any]]) -> None:
        path = self.root / name / MANIFEST
        data = json.loads(path.read_text(encoding="utf-8"))
        for look in looks:
            proposal = dict(look["proposal"])
            target = next(t for t in data["targets"] if t["paths"] == list(look["paths"]))
            target["sources"] = [s for s in target["sources"] if s["sha256_before"] != proposal["sha256_before"]] + [
                proposal
            ]
            if look.get("diff"):
                self.files[self.root / name / proposal["diff"]] = base64.b64decode(look["diff"])
        # What is written must load again, so an accepted proposal cannot break the next deploy.
        Manifest.model_validate_json(json.dumps(data))
        self.files[path] = _text(data).encode()

    def diff(self) -> str:
        """The proposal as a unified diff of the checkout, for a person to read; empty when there is none."""
        parts: list[str] = []
        for path, content in sorted(self.files.items()):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            name = path.relative_to(self.root.parent).as_posix()
            parts += difflib.unified_diff(
                before.splitlines(keepends=True),
                content.decode(errors="replace").splitlines(keepends=True),
                f"a/{name}" if path.exists() else os.devnull,
                f"b/{name}",
            )
        return "".join(parts)

    def write(self) -> list[str]:
        """Write the files, each by rename, manifests last; returns their paths."""
        for path, content in sorted(self.files.items(), key=lambda item: item[0].name == MANIFEST):
            handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".")
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(fresh).chmod(0o644)
            Path(fresh).rename(path)
        return sorted(str(p) for p in self.files)
