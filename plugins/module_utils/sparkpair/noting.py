"""How work that takes minutes tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Note(Protocol):
    """Takes how far the work is."""

    def __call__(self, doing: str, done: int = 0, of: int = 0, unit: str = "") -> None:
        """``done`` of ``of`` (0: not known) in ``unit`` (``layers``, ``bytes``, or "" for work without a count)."""


def unnoted(doing: str, done: int = 0, of: int = 0, unit: str = "") -> None:
    """Note nothing."""
