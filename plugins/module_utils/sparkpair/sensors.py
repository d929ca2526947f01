"""Temperatures of a Spark. Standard library only: runs on a rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .runner import Clock, Runner, Sleep

QUERY = ("nvidia-smi", "--query-gpu=index,temperature.gpu", "--format=csv,noheader,nounits")
ZONES = Path("/sys/class/thermal")
# Sensors that are not wired up report zero or a huge number.
BELIEVABLE = (1.0, 150.0)
COOLING_SECONDS = 5.0
PAUSE_CELSIUS = 90.0
PAUSE_SECONDS = 600.0
"""How long a gate waits for its rank to cool down, beside its deadline."""


def _zones(folder: Path) -> list[tuple[str, float]]:
    found = []
    for zone in sorted(folder.glob("thermal_zone*")):
        try:
            kind = (zone / "type").read_text().strip()
            found.append((f"{zone.name} {kind}", int((zone / "temp").read_text()) / 1000))
        except (OSError, ValueError):
            continue
    return found


def _gpus(text: str) -> list[tuple[str, float]]:
    found = []
    for line in text.splitlines():
        index, _, value = line.partition(",")
        if value.strip().isdigit():
            found.append((f"gpu {index.strip()}", float(value)))
    return found


def read(runner: Runner, zones: Path = ZONES) -> dict[str, Any]:
    """Read GPU and thermal zones once.

    Returns:
        ``readings`` (list of ``sensor`` and ``celsius``), ``hottest`` (one of them, or None) and ``missing`` (None, or
        why there is no reading).
    """
    done = runner(QUERY, timeout=20)
    found = (_gpus(done.out) if done.ok else []) + _zones(zones)
    readings = [{"sensor": name, "celsius": c} for name, c in found if BELIEVABLE[0] <= c <= BELIEVABLE[1]]
    hottest = max(readings, key=lambda r: float(str(r["celsius"])), default=None)
    missing = None
    if hottest is None:
        why = done.why() if not done.ok else "it names no temperature"
        missing = f"no sensor: nvidia-smi: {why}; no thermal zone below {zones}"
    return {"readings": readings, "hottest": hottest, "missing": missing}


def cool_down(
    runner: Runner,
    limit: float,
    patience: float,
    *,
    zones: Path = ZONES,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> float:
    """Wait while the hottest sensor is at ``limit`` C or above, at most ``patience`` seconds; returns the seconds.

    Without a sensor there is nothing to wait for; the gate about temperature says that it is missing. The time that a
    cool sensor takes to be read is no wait.
    """
    start, hot = clock(), False
    while (left := patience - (clock() - start)) > 0:
        hottest = read(runner, zones)["hottest"]
        if hottest is None or hottest["celsius"] < limit:
            break
        hot = True
        sleep(min(COOLING_SECONDS, left))
    return round(clock() - start, 1) if hot else 0.0
