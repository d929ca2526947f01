"""Command line of the local pair: up, down, status, client."""

from __future__ import annotations

import argparse
import os

from sparklab import layout, pair
from sparklab.engine import ensure_engine
from sparklab.host import LabError, fail
from sparklab.turn import turn


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
        if args.command == "up":
            layout.claim()
        elif getattr(args, "purge", False):
            layout.require_claim()
        if args.command in {"up", "down"}:
            # Two clones of the project may share the machine; one at a time makes or removes the pair.
            with turn(layout.home(), f"lab.py {args.command}"):
                ensure_engine(layout.home())
                if args.command == "up":
                    layout.claim()
                    pair.up(count)
                else:
                    pair.down(purge=args.purge)
            return 0
        ensure_engine(layout.home())
        if args.command == "client":
            return pair.third_party(args.argv)
        print("\n".join(pair.status()))
    except (LabError, ValueError) as error:
        fail(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
