"""Run a command on this host, behind one callable that tests replace."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

TIMED_OUT = 124
"""Exit code of a command that was ended because its time was over, as timeout(1) gives it."""
KILL_PATIENCE = 2.0


@dataclass(frozen=True)
class Completed:
    """A finished command: exit code and decoded output (undecodable bytes are replaced)."""

    rc: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """True when the command exited with 0."""
        return self.rc == 0

    def why(self) -> str:
        """The last line of output that explains a failure, or the exit code when there is none."""
        return last_word(self.err or self.out) or f"exit code {self.rc}"


def last_word(text: str) -> str:
    """The last line that says something; "" when none does. Docker ends errors of ``run`` with a hint at its help."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(("See 'docker ", "Run 'docker "))]
    return said[-1] if said else ""


class Runner(Protocol):
    """Runs ``argv`` without a shell; ``timeout`` in seconds. Never raises for a command that fails."""

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        """Run and wait."""


class LineRunner(Protocol):
    """As Runner, and hands each line of output on as it comes."""

    def __call__(self, argv: Sequence[str], each: Callable[[str], None], *, timeout: float) -> Completed:
        """Run and wait."""


def follow(argv: Sequence[str], each: Callable[[str], None], *, timeout: float) -> Completed:
    """Run ``argv`` without input; ``each`` gets every line of output as it comes. Exit codes as with ``run``."""
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
            )
        except FileNotFoundError as error:
            return Completed(127, "", f"{argv[0]}: {error.strerror}")
        late = threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        timer, lines = threading.Timer(timeout, expire), list[str]()
        timer.start()
        try:
            with process:
                for line in process.stdout or ():
                    lines.append(line)
                    each(line.rstrip())
        finally:
            timer.cancel()
        if late.is_set():
            return Completed(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout:.0f} s")
        errors.seek(0)
        return Completed(process.returncode, "".join(lines), errors.read().decode(errors="replace"))


def run(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
    """Run ``argv`` with subprocess. A missing program gives rc 127, a timeout rc 124, as shells and timeout(1) do.

    It comes back in time also when the process cannot be killed.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        return Completed(127, "", f"{argv[0]}: {error.strerror}")
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that hangs in the kernel (a GPU that fell off the bus) cannot be killed: it is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_PATIENCE)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        return Completed(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout:.0f} s")
    return Completed(process.returncode, out, err)


Sleep = Callable[[float], None]
Clock = Callable[[], float]
