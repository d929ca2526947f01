"""Callback ``sparkpair_stop``: the first Ctrl-C ends a benchmark in order, so that what served before is put back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's own name for it
from ansible.plugins.callback import CallbackBase
from sparkpair.bench_runs import STOP

DOCUMENTATION = r"""
name: sparkpair_stop
type: aggregate
short_description: End a benchmark in order at the first Ctrl-C
description:
  - After an interruption Ansible runs no further task, also none of an C(always) section, so an arm would stay. With
    this callback the first interruption of C(playbooks/benchmark.yml) only asks M(spark_benchmark) to end after the
    answer at hand; the play then fails, and its end puts back what served before. A second one ends it at once.
requirements:
  - enable in configuration
"""

PLAYBOOK = Path(__file__).resolve().parents[2] / "playbooks" / "benchmark.yml"
SAID = (
    b"\nStopping after the answer at hand, or after the arm that is being deployed; then what served before is put "
    b"back. Ctrl-C once more ends at once and puts nothing back.\n"
)


class CallbackModule(CallbackBase):
    """Replace the handler of one signal; callbacks run in the process that the terminal interrupts."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "sparkpair_stop"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Do so for the benchmark only."""
        if Path(playbook._file_name).resolve() != PLAYBOOK:
            return
        at_once = signal.getsignal(signal.SIGINT)

        def in_order(_signal: int, _frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, at_once)
            (Path(C.DEFAULT_LOCAL_TMP) / STOP).touch()
            # The signal may have met a write to the screen, and a buffered stream must not be entered twice.
            os.write(2, SAID)

        signal.signal(signal.SIGINT, in_order)
