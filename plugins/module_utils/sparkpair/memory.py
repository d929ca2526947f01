"""The memory of this host, as /proc/meminfo states it."""

from __future__ import annotations

import time
from pathlib import Path

from .runner import Clock, Runner

GIB = 1024**3
MARGIN = 3 * GIB // 2
"""Bytes that must be free beyond the engine's share; 1.5 GiB, as the recipe's operators found by experience."""


def kib(meminfo: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """MemTotal, MemFree and MemAvailable in KiB; {} when the file cannot be read."""
    values = {}
    try:
        for line in meminfo.read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in {"MemTotal", "MemFree", "MemAvailable"}:
                values[key] = int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        return {}
    return values


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 2 else f"{size / 1024**2:.0f} MiB"


def need(share: float, total: int, margin: int = MARGIN) -> int:
    """Bytes that must be free before an engine that takes ``share`` of ``total`` bytes starts; 0 for no share."""
    return int(share * total) + margin if share else 0


def drop_caches(runner: Runner, timeout: float, *, clock: Clock = time.monotonic) -> list[str]:
    """Write dirty pages back and drop the page cache; returns what could not be done, and never raises.

    ``sync`` and ``sysctl`` share ``timeout`` seconds: on a bad disk or a lost network file system they may hang.
    """
    began, problems = clock(), list[str]()
    for argv in (["sync"], ["sysctl", "-q", "-w", "vm.drop_caches=3"]):
        done = runner(argv, timeout=max(1.0, timeout - (clock() - began)))
        if not done.ok:
            problems.append(f"{' '.join(argv)}: {done.why()}")
    return problems
