"""Workloads of a benchmark: the manifest of prompts, and prompts of the user. Controller only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .bench_arms import RefusedError

PROMPTS = Path(__file__).resolve().parents[3] / "files" / "prompts"
MANIFEST = "manifest.yml"


class Workload(BaseModel):
    """One workload as README.md of the prompts explains it, with the text of its prompt and its JSON schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    title: str
    kind: Literal["single", "concurrent", "mixed"]
    text: Literal["structured", "code", "prose"]
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    schema_file: str | None = None
    tokens: int = Field(ge=2)
    runs: int = Field(ge=1)
    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    widths: list[int] = []
    nonce: bool = False
    prompt: str = ""
    guide: dict[str, Any] | None = None

    @property
    def greedy(self) -> bool:
        """Whether two arms may be expected to write the same text."""
        return self.temperature == 0 and not self.nonce


def _content(path: Path, wanted: str | None) -> tuple[str, str]:
    """Text and sha256 of a prompt file; RefusedError when it is missing, no text, or another one than wanted."""
    try:
        raw = path.read_bytes()
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"prompt {path}: cannot be read as UTF-8 text: {error}") from error
    found = hashlib.sha256(raw).hexdigest()
    if wanted is not None and found != wanted:
        raise RefusedError(f"prompt {path}: has sha256 {found}, the manifest says {wanted}")
    if not text.strip():
        raise RefusedError(f"prompt {path}: is empty")
    return text, found


def load(folder: Path = PROMPTS) -> list[Workload]:
    """Workloads of the manifest in ``folder``, with every prompt read and its sha256 compared; raises RefusedError."""
    try:
        listed = yaml.safe_load((folder / MANIFEST).read_text(encoding="utf-8"))["workloads"]
        found = [Workload.model_validate(entry) for entry in listed]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValidationError) as error:
        raise RefusedError(f"{folder / MANIFEST}: {error}") from error
    made = []
    for one in found:
        text, _ = _content(folder / one.file, one.sha256)
        guide = json.loads((folder / one.schema_file).read_text(encoding="utf-8")) if one.schema_file else None
        made.append(one.model_copy(update={"prompt": text, "guide": guide}))
    return made


def own(paths: Sequence[str]) -> list[Workload]:
    """A workload for each of the user's prompt files, named as the file; raises RefusedError."""
    made = []
    for given in paths:
        path = Path(given).expanduser()
        text, digest = _content(path, None)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "prompt"
        made.append(
            Workload(
                name=name,
                title=path.name,
                kind="single",
                text="prose",
                file=path.name,
                sha256=digest,
                tokens=400,
                runs=5,
                temperature=0,
                top_p=1,
                nonce=True,
                prompt=text,
            )
        )
    return made


def choose(
    names: Sequence[str] = (), prompts: Sequence[str] = (), *, runs: int | None = None, tokens: int | None = None
) -> list[Workload]:
    """Workloads to run: those named (all of the manifest when none is), then the user's.

    Args:
        names: names of the manifest.
        prompts: paths of the user's prompt files; without names, they come after the whole manifest.
        runs: measured runs of every workload, instead of the manifest's.
        tokens: tokens of every answer, instead of the manifest's.

    Raises:
        RefusedError: a name is unknown or stands twice, a file cannot be used, or a number is out of range.
    """
    if runs is not None and runs < 1:
        raise RefusedError(f"runs = {runs}: is out of range; allowed: 1 or more")
    if tokens is not None and tokens < 2:  # noqa: PLR2004
        raise RefusedError(f"tokens = {tokens}: is out of range; allowed: 2 or more, since a rate needs two")
    known = {w.name: w for w in load()}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise RefusedError(f"workloads = {', '.join(unknown)!r}: is no workload; allowed: {', '.join(known)}")
    chosen = [known[n] for n in names or known] + own(prompts)
    twice = sorted({w.name for w in chosen if [v.name for v in chosen].count(w.name) > 1})
    if twice:
        raise RefusedError(f"workloads: {', '.join(twice)} stands twice; rename the prompt file or name it once")
    change = {k: v for k, v in (("runs", runs), ("tokens", tokens)) if v is not None}
    return [w.model_copy(update=change) for w in chosen]
