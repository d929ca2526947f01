"""Names and addresses of the local pair. Standard library only: the inventory script imports nothing else."""

from __future__ import annotations

import os
import shutil
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


MARKER = ".sparkpair-lab"
# All that the lab ever puts into its home; nothing else of that folder is ever removed.
CONTENTS = (MARKER, "dockerd.json", "lock", "models", "ranks", "ssh")


def claim() -> Path:
    """Make the lab's home, or mark the one that is there as the lab's. Raises ValueError when it holds other things."""
    folder = home()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in CONTENTS)
        if foreign:
            raise ValueError(
                f"{folder} (SPARK_LAB_HOME) holds {', '.join(foreign[:3])}, not of the lab: name a folder of its own"
            )
        (folder / MARKER).write_text("made by lab.py up; lab.py down --purge removes this folder\n")
    return folder


def require_claim() -> None:
    """Raise ValueError when the lab's home was not made by ``up``, so that nobody else's folder is ever removed."""
    folder = home()
    if folder.exists() and any(entry.name != "lock" for entry in folder.iterdir()) and not (folder / MARKER).is_file():
        raise ValueError(
            f"{folder} (SPARK_LAB_HOME) has no file {MARKER}, so `up` did not make it, and --purge leaves it alone; "
            "`up` adds the file to a home of an older lab"
        )


def discard() -> None:
    """Remove what the lab put into its home, and the home when nothing else is in it. Raises ValueError."""
    require_claim()
    folder = home()
    # The marker last: a purge that is cut off can be run again.
    for entry in sorted(CONTENTS, key=lambda entry: entry == MARKER):
        path = folder / entry
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


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
