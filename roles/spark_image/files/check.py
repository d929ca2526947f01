"""Runs while the image is built: the pinned Ray can be imported, and what it requires is there."""

import importlib.metadata
import sys

from packaging.requirements import Requirement


def lacking(name: str) -> list[str]:
    """Requirements of an installed package, without its extras, that this Python does not meet."""
    found = []
    for text in importlib.metadata.requires(name) or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            have = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{wanted} (not installed)")
            continue
        if not wanted.specifier.contains(have, prereleases=True):
            found.append(f"{wanted} (the image has {have})")
    return found


def main() -> None:
    """End with a message when Ray is not what was pinned, or lacks something."""
    wanted = sys.argv[1]
    missing = lacking("ray")
    if missing:
        sys.exit(f"Ray {wanted} needs {', '.join(missing)}")
    import ray  # noqa: PLC0415 - its import must not hide what it lacks

    if ray.__version__ != wanted:
        sys.exit(f"Ray {ray.__version__} is imported, wanted {wanted}")


if __name__ == "__main__":
    main()
