"""Compares the live pair with what was recorded when it was accepted. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import history, parity
from .live import named, rank_reasons


def _accepted(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The acceptance of what the record says serves: the last one, or that of the release a later return went to."""
    entries = state["history"]
    taken = [e for e in entries if e["outcome"] == history.ACCEPTED]
    return next((e for e in reversed(taken) if e["release"] == history.serving(entries)), None)


def rank_drift(rank: int, name: str, state: Mapping[str, Any]) -> list[str]:
    """In which one rank differs from its own record: release, content of its files, container and image."""
    entry = _accepted(state)
    if entry is None:
        return [f"{name}: no release was ever accepted here, so there is nothing to compare with"]
    release = str(entry["release"])
    found = rank_reasons(rank, name, state, release)
    running = parity.live(state, release)
    if running and entry.get("image_id") and running["image_id"] != entry["image_id"]:
        found.append(f"{name}: the engine runs image {running['image_id']}, accepted was {entry['image_id']}")
    return found


def drift(states: Mapping[int, Mapping[str, Any] | None], names: Mapping[int, str]) -> list[str]:
    """Everything in which the pair differs from its record, one sentence each; empty when nothing does.

    Args:
        states: rank to the state of ``spark_state`` with records, or None for a rank that was not reached.
        names: rank to the name to show.
    """
    found = []
    known: dict[int, Mapping[str, Any]] = {}
    for rank in sorted(names):
        state = states.get(rank)
        if state is None:
            found.append(f"{names[rank]}: not reached")
            continue
        known[rank] = state
        found += rank_drift(rank, names[rank], state)
    last = {names[rank]: str((_accepted(state) or {}).get("release", "none")) for rank, state in known.items()}
    if len(set(last.values())) > 1:
        found.append(f"the ranks accepted different releases last: {', '.join(f'{n} {r}' for n, r in last.items())}")
    head = known.get(0)
    entry = _accepted(head) if head else None
    plan = head["plans"].get(entry["release"]) if head and entry else None
    if plan and len(known) == len(names):
        found += [text for text in parity.differences(named(plan, names), known) if text not in found]
    return found
