"""What this host's kernel says about GPU errors and a lack of memory. Standard library only: runs on a rank."""

from __future__ import annotations

import re
from typing import Any

from .runner import Runner

LINES = 20
# The driver names itself when it is loaded; any other line of it is for a person to read.
_GPU = r"NVRM: (?!loading NVIDIA UNIX )|\bXid \("
_MEMORY = r"oom-kill|oom_reaper|Out of memory: Killed"
_ALARM = re.compile(f"{_GPU}|{_MEMORY}", re.IGNORECASE)


def since(runner: Runner, moment: str) -> dict[str, Any]:
    """Alarming kernel lines from ``moment`` (RFC 3339, as Docker prints the start of a container) on.

    Returns:
        ``lines`` (at most the last 20) and ``missing`` (None, or why the kernel log cannot be read).
    """
    argv = ["journalctl", "--dmesg", "--quiet", "--no-pager", "--output=short-iso", f"--since={_for_journal(moment)}"]
    done = runner(argv, timeout=30.0)
    if not done.ok:
        return {"lines": [], "missing": f"the kernel log cannot be read: {done.why()}"}
    return {"lines": [line for line in done.out.splitlines() if _ALARM.search(line)][-LINES:], "missing": None}


def _for_journal(moment: str) -> str:
    date, _, rest = moment.partition("T")
    return f"{date} {rest[:8]} UTC"
