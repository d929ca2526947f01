"""Overlay folders of a checkout: read, validated, and digested. Controller only."""

from __future__ import annotations

import hashlib
from pathlib import Path


def overlay_digest(folder: Path) -> str:
    """Hex sha256 over the relative path and content of every file below ``folder``, without Python's caches."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if "__pycache__" in path.parts:
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()
