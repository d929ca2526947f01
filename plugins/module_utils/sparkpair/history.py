"""The append-only record of what was deployed to one rank: one JSON object per line of ``history.jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "history.jsonl"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class History:
    """Entries, oldest first, and the numbers of lines that are no entry."""

    entries: list[dict[str, Any]]
    damaged: list[int]


def read(root: Path) -> History:
    """Read the record below ``root``; a missing file is an empty record, a damaged line is counted and passed over."""
    try:
        lines = (root / FILE).read_text(errors="replace").splitlines()
    except OSError:
        return History([], [])
    entries, damaged = [], []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict) and isinstance(entry.get("release"), str) and isinstance(entry.get("outcome"), str):
            entries.append(entry)
        elif line.strip():
            damaged.append(number)
    return History(entries, damaged)


def append(root: Path, entry: dict[str, Any]) -> bool:
    """Add an entry; False when one with the same ``run`` and ``outcome`` is there already. Raises OSError."""
    same = [e for e in read(root).entries if e.get("run") == entry.get("run") and e["outcome"] == entry["outcome"]]
    if same:
        return False
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = root / FILE
    # A crash may have left a line without its end; the new entry must not become part of it.
    broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    text = ("\n" if broken else "") + json.dumps(entry, sort_keys=True, ensure_ascii=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, text.encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def accepted(entries: Sequence[dict[str, Any]], *, stock: bool | None = None) -> list[str]:
    """Accepted releases, the latest first, each once; with ``stock`` only those that are (or are not) stock."""
    found: list[str] = []
    for entry in reversed(entries):
        if entry["outcome"] != ACCEPTED or entry["release"] in found:
            continue
        if stock is None or bool(entry.get("stock")) == stock:
            found.append(entry["release"])
    return found
