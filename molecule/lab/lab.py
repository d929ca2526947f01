"""Command line of the local pair: up, down, status, client."""

from __future__ import annotations

import argparse
import fcntl
import os

from sparklab import layout, pair
from sparklab.host import LabError, ensure_engine, fail


def main() -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="lab.py", description="A pair of Sparks on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make the Sparks, or heal what is missing of them")
    up.add_argument("--ranks", type=int, default=None, help="how many (default: as before, else 2)")
    down = commands.add_parser("down", help="remove the Sparks; images and their engines' data stay")
    down.add_argument("--purge", action="store_true", help="remove everything that the lab ever made")
    commands.add_parser("status", help="one line per Spark")
    client = commands.add_parser("client", help="run a command at a third address of the lab's network")
    client.add_argument("argv", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        if getattr(args, "ranks", None) is not None:
            os.environ["SPARK_LAB_RANKS"] = str(args.ranks)
        count = layout.ranks()
        ensure_engine()
        layout.home().mkdir(parents=True, exist_ok=True)
        with (layout.home() / "lock").open("w") as lock:
            if args.command in {"up", "down"}:
                # Two clones of the project may share the machine; one at a time makes or removes the pair.
                fcntl.flock(lock, fcntl.LOCK_EX)
            if args.command == "up":
                pair.up(count)
            elif args.command == "down":
                pair.down(purge=args.purge)
            elif args.command == "status":
                print("\n".join(pair.status()))
            else:
                return pair.third_party(args.argv)
    except (LabError, ValueError) as error:
        fail(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
