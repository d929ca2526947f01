"""What the processes of one ansible-playbook run share on the controller.

Ansible runs the action of each host in a process of its own. All of them are forked by one parent, whose private
temporary directory disappears with the run.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from ansible import constants


def folder() -> Path:
    """Where the processes of this run share; made when it is missing."""
    path = Path(constants.DEFAULT_LOCAL_TMP) / "sparkpair"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _publish(path: Path, text: str) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    return Path(name)


def once(folder: Path, name: str) -> str:
    """A random text of 64 hexadecimal digits, the same for every process that asks for ``name`` in ``folder``."""
    path = folder / name
    if not path.exists():
        fresh = _publish(path, secrets.token_hex(32))
        try:
            # link fails when another process was first, so all of them read the same text.
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text()


def tell(folder: Path, name: str, message: dict[str, Any]) -> None:
    """Leave a message for the other processes; the last one under a name counts."""
    path = folder / name
    _publish(path, json.dumps(message)).rename(path)


def heard(folder: Path, prefix: str) -> dict[str, dict[str, Any]]:
    """Messages of all processes whose name starts with ``prefix``, by name."""
    if not folder.is_dir():
        return {}
    return {p.name: json.loads(p.read_text()) for p in sorted(folder.glob(f"{prefix}*"))}
