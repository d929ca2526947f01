"""Arms of a benchmark: which settings each one puts on top of the operator's. Controller only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STOCK, OFF, CURRENT = "stock", "off", "current"
DEFAULT = (STOCK, "7/3", "3/3", STOCK)
TRAINED = 7
ALLOWED = (
    "stock, off, current, or proposal/verify such as 7/3 or 3/3 (proposal 1 to 7; verify the same number, or 1 or 3 "
    "below it)"
)
LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"


class RefusedError(Exception):
    """The request cannot be measured; the message names the input, its value and what is allowed."""


@dataclass(frozen=True)
class Arm:
    """One arm: its label in the report (A1, B, ...), how it was asked for, and its settings (None: not deployed)."""

    id: str
    spec: str
    settings: dict[str, Any] | None

    @property
    def control(self) -> bool:
        """Whether others are compared with it."""
        return self.spec == STOCK


def _settings(spec: str) -> dict[str, Any] | None:
    if spec == CURRENT:
        return None
    if spec == OFF:
        return {"spec_method": "none", "verify_tokens": 0}
    if spec == STOCK:
        return {"spec_method": "dflash", "dflash_tokens": TRAINED, "verify_tokens": 0}
    found = re.fullmatch(r"([1-7])/([1-7])", spec)
    if found:
        proposal, verify = int(found[1]), int(found[2])
        if verify == proposal:
            return {"spec_method": "dflash", "dflash_tokens": proposal, "verify_tokens": 0}
        if verify < proposal and verify in {1, 3}:
            return {"spec_method": "dflash", "dflash_tokens": proposal, "verify_tokens": verify}
    raise RefusedError(f"arms = {spec!r}: is not an arm; allowed: {ALLOWED}")


def words(value: object, name: str) -> list[str]:
    """Items of a list, or of text with commas; empty items are refused with RefusedError."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise RefusedError(f"{name} = {value!r}: is not a list; allowed: a list, or names with commas between them")
    found = [str(item).strip() for item in items]
    if not all(found):
        raise RefusedError(f"{name} = {value!r}: holds an empty name")
    return found


def parse(value: object) -> list[Arm]:
    """Arms in their order, labelled as the discussion does: stock A1, A2, ..., every other B, C, ...

    Args:
        value: a list of specs, or text with commas; empty means the default bracket.

    Raises:
        RefusedError: a spec is unknown, or ``current`` stands beside arms that would replace what it measures.
    """
    specs: Sequence[str] = words(value, "arms") if value else DEFAULT
    specs = [STOCK if spec == f"{TRAINED}/{TRAINED}" else spec for spec in specs]
    if CURRENT in specs and len(specs) > 1:
        raise RefusedError(f"arms = {','.join(specs)!r}: current is measured alone, since other arms are deployed")
    if len(specs) - specs.count(STOCK) > len(LETTERS):
        raise RefusedError(f"arms: {len(specs)} arms are too many; allowed: {len(LETTERS)} beside stock")
    arms, stock, other = [], 0, 0
    for spec in specs:
        settings = _settings(spec)
        if spec == STOCK:
            stock += 1
            label = f"A{stock}"
        else:
            label = LETTERS[other]
            other += 1
        arms.append(Arm(label, spec, settings))
    return arms
