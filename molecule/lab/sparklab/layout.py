"""Names and addresses of the local pair. Standard library only: the inventory script imports nothing else."""

from __future__ import annotations

import os
from pathlib import Path

PREFIX = "sparkpair-lab"
NETWORK = PREFIX
SUBNET = os.environ.get("SPARK_LAB_SUBNET", "10.213.77.0/24")
USER = "spark"
INTERFACE = "eth0"
DEFAULT_RANKS = 2
MAX_RANKS = 8


def home() -> Path:
    """Folder of everything that outlives a checkout: key, host keys, models, how many ranks there are.

    One machine carries one pair, so every clone on it shares this folder.
    """
    named = os.environ.get("SPARK_LAB_HOME")
    if named:
        return Path(named)
    return Path("/var/lib/sparkpair-lab") if os.geteuid() == 0 else Path.home() / ".local/share/sparkpair-lab"


def name(rank: int) -> str:
    """Host name of a rank."""
    return f"spark-{rank}"


def container(rank: int) -> str:
    """Name of the container that is this rank's Spark."""
    return f"{PREFIX}-{rank}"


def volume(rank: int) -> str:
    """Volume with the Docker Engine's data of this rank."""
    return f"{PREFIX}-docker-{rank}"


def address(rank: int) -> str:
    """Fixed address of a rank on the lab's network."""
    return SUBNET.rsplit(".", 1)[0] + f".{10 + rank}"


def ranks() -> int:
    """How many ranks there are: SPARK_LAB_RANKS, else what the last ``up`` made, else 2. Raises ValueError."""
    text = os.environ.get("SPARK_LAB_RANKS", "")
    if not text:
        try:
            text = (home() / "ranks").read_text().strip()
        except OSError:
            text = str(DEFAULT_RANKS)
    count = int(text)
    if not 1 <= count <= MAX_RANKS:
        raise ValueError(f"SPARK_LAB_RANKS is {count}; allowed are 1 to {MAX_RANKS}")
    return count
