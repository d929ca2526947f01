"""Follows a starting pair from the controller: one loop per rank, each told by the others how they fare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Look = Callable[[str, str, float], dict[str, Any]]
"""Asks the rank: (cursor, phase, hold in seconds) -> a watch as ``sparkpair.engine.Watch.as_dict`` gives it."""

LOST_SECONDS = 45.0
"""How long a rank, or its Docker, may say nothing: a package upgrade takes less."""
HEARTBEAT = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a rank's wait ended: ``ok``, why not, its last log lines, and when each phase was reached (seconds)."""

    ok: bool
    reason: str
    seconds: float
    lines: list[str] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)


@dataclass
class Wait:
    """One rank's wait.

    ``name`` is the rank's name on the screen, ``serves`` tells whether it answers the API; ``timeout`` and ``stall``
    (no log line at all) are seconds; ``hold`` is how long one look may block on the rank.
    """

    name: str
    serves: bool
    timeout: float
    stall: float
    look: Look
    show: Callable[[str], None]
    tell: Callable[[dict[str, Any]], None]
    others: Callable[[], Mapping[str, dict[str, Any]]]
    hold: float = 5.0
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Outcome:
        """Look until this rank and, on a worker, the head are ready, or until any rank has failed."""
        start = self.clock()
        cursor, phase, grown, shown = "", "", start, start
        lost: float | None = None
        reached: dict[str, float] = {}
        while True:
            asked = self.clock()
            seen = self.look(cursor, phase, self.hold)
            now = self.clock()
            watch = seen.get("watch") or {"state": "silent", "reason": seen.get("msg", "unknown")}
            if watch["state"] == "silent":
                if lost is None:
                    lost = asked
                    self.show(f"{self.name}: no answer ({watch['reason']})")
                if now - lost >= LOST_SECONDS:
                    return self._end(start, f"no answer for {now - lost:.0f} s ({watch['reason']})", [], reached)
                continue
            lost = None
            cursor = watch["cursor"]
            grown = now if watch["log_growth"] else grown
            if watch["phase"] != phase:
                phase, shown = watch["phase"], now
                reached[phase] = round(now - start, 1)
                self.show(f"{self.name}: {phase} ({now - start:.0f} s) {watch['detail']}".rstrip())
            elif now - shown > HEARTBEAT and self.serves:
                shown = now
                self.show(f"{self.name}: still {phase} ({now - start:.0f} s)")
            failure = self._failure(watch, start, now, grown)
            if failure:
                return self._end(start, failure, watch["lines"], reached)
            ready = watch["state"] == "ready"
            self.tell({"ready": ready, "serves": self.serves, "failed": ""})
            # A head that serves has its workers; with executor mp a worker's own log never says that it joined.
            if ready if self.serves else self._head_serves():
                return Outcome(True, "", round(now - start, 1), watch["lines"], reached)

    def _failure(self, watch: Mapping[str, Any], start: float, now: float, grown: float) -> str:
        if watch["state"] in {"exited", "failed", "missing"}:
            return str(watch["reason"])
        for other in self.others().values():
            if other["failed"]:
                return f"stopped waiting because {other['failed']}"
        if now - start > self.timeout:
            return f"not ready within {self.timeout:.0f} s; it was {watch['phase']}"
        if self.serves and now - grown > self.stall:
            return f"no log line for {now - grown:.0f} s; it was {watch['phase']}"
        return ""

    def _head_serves(self) -> bool:
        return any(o["ready"] and o["serves"] for o in self.others().values())

    def give_up(self, reason: str) -> None:
        """Tell the other ranks that this one is no longer followed, so that they do not wait for it."""
        self.tell({"ready": False, "serves": self.serves, "failed": f"{self.name}: {reason}"})

    def _end(self, start: float, reason: str, lines: list[str], reached: dict[str, float]) -> Outcome:
        self.give_up(reason)
        return Outcome(False, reason, round(self.clock() - start, 1), lines, reached)
