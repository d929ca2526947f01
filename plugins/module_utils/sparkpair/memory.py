"""The memory of this host, as /proc/meminfo states it."""

from __future__ import annotations

from pathlib import Path

MARGIN = 3 * 512 * 1024 * 1024
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


def need(share: float, total: int) -> int:
    """Bytes that must be free before an engine that takes ``share`` of ``total`` bytes starts; 0 for no share."""
    return int(share * total) + MARGIN if share else 0
