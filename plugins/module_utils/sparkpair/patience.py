"""Asks a rank again that can run no module in this moment, as while a package upgrade replaces sudo or Python.

Controller only. Ansible tries a connection again that is refused, but not a module that the rank could not even begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .runner import Sleep

TRIES, PAUSE = 7, 5.0
"""Half a minute in all; what a rank answers by itself, be it a failure, is taken at once."""


def answered(ask: Callable[[], dict[str, Any]], *, sleep: Sleep = time.sleep) -> dict[str, Any]:
    """The result of a module that may be run twice; ``ask`` runs it and returns what Ansible makes of its output.

    Where the rank said nothing that is a module's result, Ansible quotes what it said instead.
    """
    for _ in range(TRIES - 1):
        result = ask()
        if not (result.get("failed") and "module_stdout" in result):
            return result
        sleep(PAUSE)
    return ask()
