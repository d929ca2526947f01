"""Chooses the release that a rollback goes to, from what every rank recorded. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .containers import LABEL_RELEASE
from .history import accepted, noted, serving

STOCK = "stock"
PREVIOUS = "previous"
TRAINED = 7
MOVED = "names other bytes than when it was accepted"


class RollbackError(Exception):
    """There is nothing to go back to as asked; the message says what each rank holds."""


@dataclass(frozen=True)
class Target:
    """Where to go: a release that every rank holds complete, or None when stock must be planned anew (and why)."""

    release: str | None
    reason: str


def is_stock(plan: Mapping[str, Any]) -> bool:
    """True for the full trained width without any overlay."""
    width = plan["spec_method"] == "dflash" and plan["dflash_tokens"] == TRAINED and not plan["verify_tokens"]
    return bool(width and not plan["overlays"])


def _order(states: Mapping[int, Mapping[str, Any]], stock: bool | None) -> list[str]:
    """Releases that every rank accepted, in the head's order, the latest first."""
    per_rank = {rank: accepted(state["history"], stock=stock) for rank, state in states.items()}
    head = per_rank[min(per_rank)]
    return [release for release in head if all(release in found for found in per_rank.values())]


def _unusable(states: Mapping[int, Mapping[str, Any]], release: str) -> list[str]:
    return [
        f"{state['hostname']}: {'; '.join(state['checks'].get(release, [])) or 'missing'}"
        for _, state in sorted(states.items())
        if release not in state["checks"] or state["checks"][release]
    ]


def choose(wanted: str, states: Mapping[int, Mapping[str, Any]]) -> Target:
    """Choose the target.

    Args:
        wanted: ``stock`` (the last accepted stock release), ``previous`` (the accepted release before the current one)
            or a release id.
        states: rank to the state of ``spark_state``, of all ranks.

    Raises:
        RollbackError: the named release was never accepted on every rank, or is missing or damaged on one.
    """
    if wanted == STOCK:
        for release in _order(states, stock=True):
            if not _unusable(states, release):
                return Target(release, "the last accepted stock release")
        return Target(None, "no stock release was accepted and is complete on every rank, so stock is planned anew")
    order = _order(states, stock=None)
    known = ", ".join(order) or "none"
    if wanted == PREVIOUS:
        # Not the link: a rollback that was interrupted has moved it, and the same command must not turn back.
        last = serving(states[min(states)]["history"])
        candidates = [release for release in order if release != last]
        if not candidates:
            raise RollbackError(f"no release but {last or 'the current one'} was accepted; accepted: {known}")
        wanted = candidates[0]
    elif wanted not in order:
        raise RollbackError(f"release {wanted!r} was not accepted on every rank; accepted: {known}")
    unusable = _unusable(states, wanted)
    if unusable:
        raise RollbackError(f"release {wanted} cannot be used: {', '.join(unusable)}")
    return Target(wanted, "an accepted release")


def placed(
    states: Mapping[int, Mapping[str, Any] | None], addresses: Mapping[int, str]
) -> dict[int, dict[str, Any] | None]:
    """The states with more reasons against releases that are whole and could not be started all the same.

    One made for other ranks than the inventory's: it holds the files of its own rank, so after ranks are swapped the
    old head would start as a worker. One whose image is gone, or whose image's name leads to other bytes by now. One
    that has lost its API key.

    Args:
        states: rank to the state of ``spark_state`` with records, or None where it was not reached.
        addresses: rank to the fabric address that the inventory gives it.
    """
    found: dict[int, dict[str, Any] | None] = {}
    for rank, state in states.items():
        if state is None or "plans" not in state:
            found[rank] = dict(state) if state is not None else None
            continue
        checks = {release: list(damage) for release, damage in state["checks"].items()}
        for release in [r for r, damage in checks.items() if not damage and state["plans"].get(r)]:
            made = {int(r["rank"]): r["address"] for r in state["plans"][release]["ranks"]}
            if made != dict(addresses):
                was = ", ".join(f"rank {n} at {address}" for n, address in sorted(made.items()))
                checks[release].append(f"it was made for {was}, which the inventory has otherwise")
            checks[release] += _image_reasons(state, release)
            if release in state.get("keyless", []):
                checks[release].append("it has lost its api_key; set it, and deploy")
        found[rank] = {**state, "checks": checks}
    return found


def _image_reasons(state: Mapping[str, Any], release: str) -> list[str]:
    reference = str(state["plans"][release].get("image") or "")
    if reference not in state.get("images", {}):
        return []
    now, then = state["images"][reference], noted(state["history"], release, "image_layers")
    if now is None:
        return [f"its image {reference} is not on this rank"]
    return [f"its image {reference} {MOVED}"] if now and then and now != then else []


def _runs(states: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The release whose engine runs on every rank; None when there is no such."""
    running = {
        rank: {c["labels"].get(LABEL_RELEASE) for c in state["containers"] if c["running"]}
        for rank, state in states.items()
    }
    first = running[min(running)]
    return first.copy().pop() if len(first) == 1 and all(found == first for found in running.values()) else None


def accepted_anywhere(states: Mapping[int, Mapping[str, Any]], release: str) -> bool:
    """Whether a rank has accepted a release, from states with records."""
    return any(release in accepted(state["history"]) for state in states.values())


def no_way_back(states: Mapping[int, Mapping[str, Any] | None], wanted: str) -> str:
    """Why the pair that runs must not be stopped for ``wanted``: it could not come back; else "".

    That is a pair whose release was accepted and cannot be used any more, and one whose release is not known here.

    Args:
        states: rank to the state of ``spark_state`` with records, as ``placed`` returns them.
        wanted: the release to roll out.
    """
    known = {rank: state for rank, state in states.items() if state is not None}
    if len(known) != len(states) or not known:
        return ""
    release = _runs(known)
    if release is not None and not any(release in state["checks"] for state in known.values()):
        return (
            f"an engine of release {release} runs on every rank, and none of them holds that release: it was deployed "
            "below another root, or its files are gone. A rollout that fails could not go back to it; deploy with its "
            "root, or give the pair up first with playbooks/stop.yml"
        )
    if release is None or not accepted_anywhere(known, release):
        return ""
    back = fallback(states, wanted)
    # A new release may fail, and must find the one that served. One on record is a way out, as an older one is then.
    if back is not None and (release == wanted or accepted_anywhere(known, wanted)):
        return ""
    against = _unusable(known, release)
    if not against or (release == wanted and not any(MOVED in reason for reason in against)):
        return ""
    return (
        f"release {release} runs, and a rollout that fails could not go back to it ({', '.join(against)}); mend that, "
        "or give the pair up first with playbooks/stop.yml"
    )


def fallback(states: Mapping[int, Mapping[str, Any] | None], wanted: str) -> str | None:
    """The release to return to when ``wanted`` fails; None when there is none.

    That is the current one when every rank accepted it (or one of them, where the others have lost their record and all
    of them run it), else the last that every rank accepted, complete on every rank.
    ``wanted`` itself is no candidate: what just failed would fail again.
    """
    if not states or any(state is None for state in states.values()):
        return None
    known = {rank: state for rank, state in states.items() if state is not None}
    order = _order(known, stock=None)
    current = {state["current"] for state in known.values()}
    runs = _runs(known)
    lost = [runs] if runs and current == {runs} and accepted_anywhere(known, runs) else []
    first = [release for release in [*order, *lost] if current == {release}]
    for release in [*first, *order]:
        if release != wanted and not _unusable(known, release):
            return release
    return None


def to_keep(
    states: Mapping[int, Mapping[str, Any] | None], live: str, before: str | None, keep: int
) -> dict[int, list[str]]:
    """Releases that pruning must leave on each rank.

    Args:
        states: rank to the state of ``spark_state`` with records.
        live: the release that was accepted just now.
        before: the release that was live before it.
        keep: how many further accepted releases stay.
    """
    kept: dict[int, list[str]] = {}
    for rank, state in states.items():
        if state is None:
            continue
        order = [r for r in accepted(state["history"]) if r not in {live, before}]
        stock = accepted(state["history"], stock=True)[:1]
        kept[rank] = sorted({live, *order[:keep], *stock, *([before] if before else [])})
    return kept
