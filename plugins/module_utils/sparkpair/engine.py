"""Drain and stop the engine of one rank, wait for its memory, and watch one that starts."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from . import containers, phases, traffic
from .memory import kib
from .runner import Clock, Runner, Sleep

LAST_LINES = 25
STOP_PATIENCE, RETRY = 45.0, 3.0
_REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class EngineError(Exception):
    """The engine could not be stopped; the message names the container and what Docker said."""


@dataclass(frozen=True)
class Stopped:
    """What stopping removed: container names with the release they belonged to."""

    removed: list[dict[str, str]]

    @property
    def changed(self) -> bool:
        """True when there was something to remove."""
        return bool(self.removed)


def stop(
    runner: Runner,
    grace: int,
    *,
    dry: bool = False,
    patience: float = 0.0,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> Stopped:
    """Stop and remove every container of ours, then verify that none is left.

    Args:
        runner: runs docker.
        grace: seconds that the engine gets to finish before Docker kills it.
        dry: only report.
        patience: seconds in which it is tried again, as while a package upgrade restarts or replaces Docker.
        clock: seconds, monotonic.
        sleep: waits; both are replaced in tests.

    Raises:
        EngineError: a container survived, or Docker did not answer.
    """
    start = clock()
    while True:
        try:
            return _stop(runner, grace, dry=dry)
        except EngineError:
            if clock() - start >= patience:
                raise
        sleep(RETRY)


def _stop(runner: Runner, grace: int, *, dry: bool) -> Stopped:
    try:
        found = containers.find(runner)
        if not dry:
            for container in found:
                containers.stop_and_remove(runner, container, grace)
            left = containers.find(runner)
            if left:
                raise EngineError("still there after docker rm: " + ", ".join(c.name for c in left))
    except containers.DockerError as error:
        raise EngineError(str(error)) from error
    return Stopped([{"name": c.name, "release": c.labels.get(containers.LABEL_RELEASE, "")} for c in found])


@dataclass(frozen=True)
class Drained:
    """How a drain ended: requests that the engine still had (None: it did not say), and the seconds it took."""

    requests: int | None
    seconds: float


def requests_in_engine(url: str, timeout: float = 3.0) -> int | None:
    """Running and waiting requests from the engine's metrics at ``url``; None when it gives no answer."""
    answer = traffic.get(url, timeout)
    if answer["error"] or answer["status"] != HTTPStatus.OK:
        return None
    try:
        found = [float(value) for value in _REQUESTS.findall(answer["text"] or "")]
    except ValueError:
        return None
    return int(sum(found)) if found else None


def drain(url: str, timeout: float, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> Drained:
    """Wait until the engine has no request, at most ``timeout`` seconds; an engine that is gone is drained."""
    start = clock()
    while True:
        left = requests_in_engine(url)
        spent = clock() - start
        if not left or spent >= timeout:
            return Drained(left, round(spent, 1))
        sleep(min(1.0, max(0.1, timeout - spent)))


@dataclass(frozen=True)
class Settled:
    """How the wait for memory ended; ``free`` and ``wanted`` are bytes of MemFree."""

    ok: bool
    free: int
    wanted: int
    seconds: float


def settle(
    wanted: int,
    timeout: float,
    *,
    meminfo: Path = Path("/proc/meminfo"),
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> Settled:
    """Wait until ``wanted`` bytes are free, at most ``timeout`` seconds.

    A stopped engine's unified memory comes back seconds to a minute after its container is gone, and vLLM refuses to
    start in that window.
    """
    start = clock()
    while True:
        free = kib(meminfo).get("MemFree", 0) * 1024
        spent = clock() - start
        if free >= wanted or spent >= timeout:
            return Settled(free >= wanted, free, wanted, round(spent, 1))
        sleep(min(1.0, max(0.1, timeout - spent)))


@dataclass(frozen=True)
class Watch:
    """One look at a starting engine.

    ``state`` is one of starting, ready (this rank has done its part), exited, failed (fatal line), missing and
    silent (Docker does not answer).
    ``cursor`` is handed back at the next look; ``lines`` are the last log lines, without timestamps.
    """

    state: str
    phase: str
    detail: str
    reason: str
    cursor: str
    log_growth: int
    lines: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a module result."""
        return asdict(self)


def healthy(url: str, timeout: float = 3.0) -> bool:
    """True when GET ``url`` answers 200, as a whole and in time; proxies are bypassed."""
    answer = traffic.get(url, timeout)
    return not answer["error"] and answer["status"] == HTTPStatus.OK


def watch(
    runner: Runner,
    release: str,
    *,
    health_url: str | None,
    cursor: str,
    phase: str,
    hold: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> Watch:
    """Look at the engine until its phase or state changes, at most ``hold`` seconds.

    Args:
        runner: runs docker.
        release: the release that must run; a container of another one counts as missing.
        health_url: on the rank that serves the API, the URL whose 200 means ready; None on the others, which are ready
            when their log says that they joined.
        cursor: empty at first, then what the last look returned.
        phase: phase that the caller knows already.
        hold: seconds to wait on this host before answering "no change".
        clock: seconds, monotonic.
        sleep: waits; both are replaced in tests.
    """
    known = phases.Progress(phase if phase in phases.PHASES else phases.PHASES[0], "", None)
    deadline = clock() + hold
    growth = 0
    while True:
        try:
            found = [c for c in containers.find(runner) if c.labels.get(containers.LABEL_RELEASE) == release]
        except containers.DockerError as error:
            return Watch("silent", known.phase, "", str(error), cursor, growth, [])
        if not found:
            return Watch(
                "missing", known.phase, "", f"no container of release {release} is on this rank", cursor, growth, []
            )
        container = found[0]
        fresh = containers.logs(runner, container.id, since=cursor or None)
        # Docker's --since is inclusive, so the line at the cursor comes again.
        fresh = [line for line in fresh if line.split(" ", 1)[0] > cursor]
        growth += len(fresh)
        if fresh:
            cursor = fresh[-1].split(" ", 1)[0]
        known = phases.follow(fresh, known)
        state, reason = _judge(container, known, health_url)
        # A rank that is ready waits for the others here, and not in calls that follow each other without a pause.
        news = state not in {"starting", "ready"} or known.phase != phase or (state == "ready" and health_url)
        if news or clock() >= deadline:
            tail = [phases.plain(line) for line in containers.logs(runner, container.id, tail=LAST_LINES)]
            return Watch(state, known.phase, known.detail, reason, cursor, growth, tail)
        sleep(min(1.0, max(0.1, deadline - clock())))


def _judge(container: containers.Container, known: phases.Progress, health_url: str | None) -> tuple[str, str]:
    if container.status == "paused":
        return "starting", ""
    if not container.running:
        why = "was killed for lack of memory" if container.oom_killed else f"ended with exit code {container.exit_code}"
        return "exited", f"{container.name} {why}" + (f": {known.fatal}" if known.fatal else "")
    if known.fatal:
        return "failed", known.fatal
    if health_url is None:
        return ("ready", "") if known.phase == "serving" else ("starting", "")
    return ("ready", "") if healthy(health_url) else ("starting", "")
