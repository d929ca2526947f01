"""Joins what the ranks said of their weights: what is lacking where, what that means, and lines for the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .memory import gib
from .screen import duration, table


@dataclass(frozen=True)
class Verdict:
    """What is to be done.

    ``complete``: every rank holds the head's files. ``head``: the head itself lacks some. ``compare``: hosts that must
    be told the head's manifest first; ``receivers``: hosts that lack files of it. ``problems`` end the run.
    """

    complete: bool
    head: bool
    compare: list[str]
    receivers: list[str]
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def judge(plan: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], *, transfer: str, dry: bool) -> Verdict:
    """Judge the last result of every host (by name) of the plan's ranks.

    ``transfer`` is ``fabric`` or ``none``: with none, what a worker lacks is a problem, and so is with either what
    stands in the way of bringing it. ``dry`` words the lines as what would be done.
    """
    ranks = sorted(plan["ranks"], key=lambda r: int(r["rank"]))
    head = str(ranks[0]["host"])
    wanted = [w["manifest"] for w in results[head]["weights"]]
    lacking_head = not all(w["complete"] for w in results[head]["weights"])
    compare, receivers, problems, rows = [], [], [], []
    for rank in ranks:
        host, result = str(rank["host"]), results[str(rank["host"])]
        known = host == head or [w["manifest"] for w in result["weights"]] == wanted
        whole = all(w["complete"] for w in result["weights"])
        if host != head and not (known and whole):
            compare.append(host)
        if host != head and known and any(w["files"] and not w["complete"] for w in result["weights"]):
            receivers.append(host)
            if transfer == "none":
                problems += [
                    f"{host}: {_lacks(w)}; with spark_weights_transfer none nothing is copied"
                    for w in result["weights"]
                    if not w["complete"]
                ]
        if (host == head and lacking_head) or host in receivers:
            problems += [f"{host}: {obstacle}" for obstacle in result["obstacles"]]
        rows += [
            (rank["rank"], host, w["repository"], w["revision"][:12], _state(w, known, dry=dry))
            for w in result["weights"]
        ]
    return Verdict(
        complete=not lacking_head and not compare,
        head=lacking_head,
        compare=compare,
        receivers=receivers,
        problems=problems,
        lines=table(("rank", "host", "weights", "revision", "state"), rows),
    )


def _lacks(w: Mapping[str, Any]) -> str:
    if not w["lacking"]:
        return f"{w['repository']}: {w['unlinked']} files are not linked"
    more = w["lacking_files"] - len(w["lacking"])
    return f"{w['repository']}: {'; '.join(w['lacking'])}{f'; and {more} more' if more > 0 else ''}"


def _state(w: Mapping[str, Any], known: bool, *, dry: bool) -> str:
    if w["unknown_bytes"]:
        return f"{gib(w['unknown_bytes'])} {'would be hashed' if dry else 'to hash'}"
    if not (known and w["files"]):
        return "not compared yet"
    if w["complete"]:
        return f"complete, {w['files']} files, {gib(w['bytes'])}"
    would = "would be brought" if dry else "to bring"
    if w["lacking_files"]:
        return (
            f"{gib(w['lacking_bytes'])} {would}, {w['lacking_files']} of {w['files']} files: {'; '.join(w['lacking'])}"
        )
    return f"{w['unlinked']} files {'would be linked' if dry else 'to link'}"


@dataclass
class Progress:
    """Lines about work that takes a while: bytes, rate, time left.

    ``left`` in bytes; rates come from the time since the first call of ``line``.
    """

    name: str
    doing: str
    total: int = 0
    begun: float = 0.0

    def line(self, left: int, now: float) -> str:
        """Line for the screen; ``now`` in seconds of any steady clock."""
        if left > self.total or not self.begun:
            self.total, self.begun = left, now
            return f"{self.name}: {self.doing}, {gib(left)}"
        done, seconds = self.total - left, now - self.begun
        rate = done / seconds if seconds > 0 else 0.0
        rest = f", {duration(left / rate)} left" if rate and left else ""
        return f"{self.name}: {self.doing}, {gib(done)} of {gib(self.total)}, {gib(rate)}/s{rest}"

    def ended(self, received: int, seconds: float) -> str:
        """Line for the end: how much it was, in bytes, and how long it took."""
        return f"{self.name}: {self.doing}, done: {gib(received or self.total)} in {duration(seconds)}"


def latest(names: Sequence[str], variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """First of the named results that a host has; {} when it has none (its task was skipped)."""
    return next((variables[n] for n in names if "weights" in variables.get(n, {})), {})
