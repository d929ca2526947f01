"""A process that outlives the call of a module which begins it."""

from __future__ import annotations

import os
from collections.abc import Callable


def apart(work: Callable[[], object]) -> None:
    """Run ``work`` in a session of its own without input and output; the caller does not wait for it.

    The caller keeps its own copies of what was open. What ``work`` raises is lost.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                null = os.open(os.devnull, os.O_RDWR)
                for handle in (0, 1, 2):
                    os.dup2(null, handle)
                work()
        finally:
            # Nothing of the parent may run here: neither its exit handlers nor its removal of temporary files.
            os._exit(0)
    os.waitpid(child, 0)
