"""What explains a failure on one rank: logs, containers, kernel lines, memory and Ray, without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import containers
from .runner import Runner
from .store import SECRETS, Store

LOG_LINES = 2000
KERNEL_LINES = 200
HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(r"token|secret|password|api_?key|credential", re.IGNORECASE)
_KERNEL = re.compile(r"xid|nvrm|nvidia|out of memory|oom|mlx5|rdma|hung task|blocked for more", re.IGNORECASE)


def collect(root: Path, runner: Runner) -> dict[str, str]:
    """File name to text. Whatever cannot be read becomes a text that says why, so that nothing is missing silently.

    Args:
        root: directory of releases on this rank; secrets of its releases are hidden wherever they occur.
        runner: runs docker, dmesg, free and ps.
    """
    texts = {
        "memory.txt": _said(runner, ["cat", "/proc/meminfo"]),
        "processes.txt": _said(runner, ["ps", "-eo", "pid,ppid,user,rss,etime,args", "--sort=-rss"]),
        "disk.txt": _said(runner, ["df", "-h"]),
        "kernel.txt": _kernel(runner),
        "gpu.txt": _said(runner, ["nvidia-smi", "-q", "-d", "MEMORY,TEMPERATURE,PIDS"]),
        "current.txt": f"current release: {Store(root).current() or 'none'}\n",
    }
    try:
        found = containers.find(runner)
    except containers.DockerError as error:
        texts["containers.txt"] = f"{error}\n"
        found = []
    for container in found:
        shown = container.as_dict()
        shown["environment"] = {
            key: HIDDEN if _SECRET_NAME.search(key) else value for key, value in container.environment.items()
        }
        texts[f"{container.name}.json"] = json.dumps(shown, indent=1, sort_keys=True) + "\n"
        texts[f"{container.name}.log"] = "\n".join(containers.logs(runner, container.id, tail=LOG_LINES)) + "\n"
        if container.running:
            texts[f"{container.name}-ray.txt"] = _said(runner, ["docker", "exec", container.id, "ray", "status"])
    hidden = _secrets(root)
    return {name: _without(text, hidden) for name, text in sorted(texts.items())}


def discreet(root: Path, watch: Mapping[str, Any]) -> dict[str, Any]:
    """What a look at an engine gives (``engine.Watch.as_dict``), without the secrets of this rank's releases.

    An engine that fails may print its environment, or a stack trace with values.
    """
    hidden = _secrets(root)
    texts = {key: _without(watch[key], hidden) for key in ("detail", "reason")}
    return {**watch, **texts, "lines": [_without(line, hidden) for line in watch["lines"]]}


def _said(runner: Runner, argv: list[str]) -> str:
    done = runner(argv, timeout=30.0)
    return done.out if done.ok else f"{' '.join(argv)}: {done.why()}\n"


def _kernel(runner: Runner) -> str:
    done = runner(["dmesg", "--ctime"], timeout=30.0)
    if not done.ok:
        return f"dmesg: {done.why()}\n"
    lines = [line for line in done.out.splitlines() if _KERNEL.search(line)]
    return "\n".join(lines[-KERNEL_LINES:]) + "\n"


def _secrets(root: Path) -> list[str]:
    texts: set[str] = set()
    for path in sorted((root / "releases").glob(f"*/{SECRETS}/*")):
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            # As it is, and as JSON and Python print it.
            texts |= {text, json.dumps(text)[1:-1], repr(text)[1:-1]}
    return sorted(texts, key=len, reverse=True)


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
