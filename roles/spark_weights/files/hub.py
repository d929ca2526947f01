"""Asks the hub for a snapshot's files, or downloads them. Runs in the engine image, whose library it uses.

Usage: ``hub.py list|download REPOSITORY REVISION [EXCLUDED PATTERN ...]``. Prints one line per file, and the reason of
a failure, behind marks that nothing else prints.
"""

from __future__ import annotations

import json
import sys

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.utils import filter_repo_objects

MARK_FILE = "SPARKPAIR_FILE "
MARK_ERROR = "SPARKPAIR_ERROR "


def listed(repository: str, revision: str, exclude: list[str]) -> None:
    """Print path, size, git hash and, where the hub knows it, sha256 of every file."""
    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=30)
    if info.sha != revision:
        raise ValueError(f"the hub answers with commit {info.sha}")
    wanted = set(filter_repo_objects([s.rfilename for s in info.siblings or []], ignore_patterns=exclude))
    for sibling in info.siblings or []:
        if sibling.rfilename in wanted:
            sha256 = sibling.lfs.sha256 if sibling.lfs else ""
            entry = {"path": sibling.rfilename, "size": sibling.size, "sha256": sha256, "git": sibling.blob_id}
            print(MARK_FILE + json.dumps(entry))


def main() -> int:
    """Do what the arguments say."""
    action, repository, revision, *exclude = sys.argv[1:]
    try:
        if action == "list":
            listed(repository, revision, exclude)
        else:
            snapshot_download(repository, revision=revision, ignore_patterns=exclude)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        print(f"{MARK_ERROR}{type(error).__name__}: {' '.join(lines[:2])}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
