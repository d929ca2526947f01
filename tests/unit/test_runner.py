"""Commands that end, that take too long, and that cannot be ended."""

from __future__ import annotations

import subprocess
import time

import pytest
from sparkpair import runner


def test_a_command_gives_its_output_and_takes_input() -> None:
    assert runner.run(["cat"], stdin="in") == runner.Completed(0, "in", "")
    assert runner.run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == runner.Completed(3, "out\n", "err\n")
    assert runner.run(["sh", "-c", "printf '\\377'"]).out == "\ufffd"
    assert runner.run(["no-such-program"]).rc == 127


def test_a_command_that_takes_too_long_is_ended() -> None:
    done = runner.run(["sleep", "60"], timeout=0.2)
    assert (done.rc, done.why()) == (runner.TIMED_OUT, "sleep: no answer within 0 s")


def test_a_command_that_hangs_in_the_kernel_was_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi does so when a GPU has fallen off the bus: no signal ends it."""
    started: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen.kill

    def in_vain(process: subprocess.Popen[str]) -> None:
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", in_vain)
    monkeypatch.setattr(runner, "KILL_PATIENCE", 0.1)
    begun = time.monotonic()
    done = runner.run(["sleep", "60"], timeout=0.2)
    try:
        assert done.rc == runner.TIMED_OUT
        assert started[0].poll() is None
        assert time.monotonic() - begun < 30
    finally:
        kill(started[0])
        started[0].wait()
