"""Commands, progress lines, and the Docker Engine of the machine that carries the local pair."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Programs and files, and the package of Debian and Ubuntu that brings each.
NEEDS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "ssh-keygen": "openssh-client",
    "iptables": "iptables",
    str(KEYRING): "debian-archive-keyring",
}
HEARTBEAT_SECONDS = 15.0
# Long enough for every command that only asks or tells; a command with much to do names its own.
COMMAND_SECONDS = 120.0


class LabError(Exception):
    """The local pair cannot be made; the message says which step, what was seen and what to do."""


def say(text: str) -> None:
    """Print one progress line with the time since the program started."""
    print(f"[lab {time.monotonic() - _STARTED:6.1f} s] {text}", flush=True)


_STARTED = time.monotonic()


def fail(message: str) -> NoReturn:
    """End the program with a message for the operator."""
    print(f"lab: {message}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def out(argv: Sequence[str], *, check: bool = True, stdin: str | None = None, timeout: float = COMMAND_SECONDS) -> str:
    """Standard output of a command.

    Raises LabError with its last lines when it fails and ``check`` is set, and always when it does not end in time.
    """
    done = _run(argv, timeout, stdin)
    if check and done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-8:])
        raise LabError(f"`{' '.join(argv[:6])}` ended with {done.returncode}:\n{tail}")
    return done.stdout


def ok(argv: Sequence[str], *, timeout: float = COMMAND_SECONDS) -> bool:
    """Tell whether a command ends with 0. Raises LabError when it does not end in time."""
    return _run(argv, timeout).returncode == 0


def _run(argv: Sequence[str], timeout: float, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    # Without input of its own a command must not wait for the operator's terminal.
    source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    try:
        return subprocess.run(
            list(argv), capture_output=True, text=True, errors="replace", check=False, timeout=timeout, **source
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(argv[:6])}` did not end within {timeout:.0f} s and was ended") from error


def follow(step: str, argv: Sequence[str], *, env: dict[str, str] | None = None) -> None:
    """Run a long command, with a line every few seconds that shows its last output. Raises LabError."""
    say(f"{step} ...")
    started = shown = time.monotonic()
    last: deque[str] = deque(maxlen=15)
    with subprocess.Popen(
        list(argv),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(env or {})},
    ) as process:
        assert process.stdout is not None  # noqa: S101 - stdout is a pipe
        for line in process.stdout:
            if line.strip():
                last.append(line.strip())
            if time.monotonic() - shown > HEARTBEAT_SECONDS:
                shown = time.monotonic()
                say(f"{step}: {shown - started:.0f} s, {last[-1][:100] if last else ''}")
    if process.returncode:
        tail = "\n  ".join(last)
        raise LabError(f"{step} ended with {process.returncode}; its last lines:\n  {tail}")
    say(f"{step}: done in {time.monotonic() - started:.0f} s")


def pipe(step: str, first: Sequence[str], second: Sequence[str]) -> str:
    """Run ``first | second`` and return what the second printed, with a line every few seconds that counts the bytes.

    Raises LabError when one of them fails.
    """
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(list(first), stdout=subprocess.PIPE, stderr=errors) as source,
    ):
        assert source.stdout is not None  # noqa: S101 - stdout is a pipe
        printed = feed(step, source.stdout, second)
        status = source.wait()
        if status:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip()[-2000:]
            raise LabError(f"{step}: `{' '.join(first[:6])}` ended with {status}: {tail}")
    return printed


def feed(step: str, source: IO[bytes], argv: Sequence[str]) -> str:
    """Run a command with ``source`` as its input and return what it printed, with heartbeats. Raises LabError."""
    with tempfile.TemporaryFile() as printed:
        sink = subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT)
        assert sink.stdin is not None  # noqa: S101 - stdin is a pipe
        with heartbeat(step) as count, contextlib.suppress(BrokenPipeError), sink.stdin:
            while block := source.read(1 << 20):
                sink.stdin.write(block)
                count(len(block))
        # The sink may have much to do after its last byte, and it may have ended before: then its status tells why.
        with heartbeat(f"{step}, all sent"):
            status = sink.wait()
        source.close()
        printed.seek(0)
        text = printed.read().decode(errors="replace").strip()
    if status:
        raise LabError(f"{step}: `{' '.join(argv[:6])}` ended with {status}: {text[-2000:]}")
    return text


@contextlib.contextmanager
def heartbeat(step: str, every: float = HEARTBEAT_SECONDS) -> Iterator[Callable[[int], None]]:
    """Say every few seconds how long a step runs already and how many bytes it was told of."""
    started, total, done = time.monotonic(), [0], threading.Event()

    def count(size: int) -> None:
        total[0] += size

    def beat() -> None:
        while not done.wait(every):
            size = f", {total[0] / 1e6:,.0f} MB" if total[0] else ""
            say(f"{step}: {time.monotonic() - started:.0f} s{size}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()


def _distribution() -> Iterable[str]:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return ()
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return [fields.get("ID", "").strip('"'), *fields.get("ID_LIKE", "").strip('"').split()]


def missing_packages() -> dict[str, str]:
    """What the lab needs and does not find (programs and files), with the package that brings each."""
    path = search_path()
    return {
        need: package
        for need, package in NEEDS.items()
        if not (Path(need).exists() if need.startswith("/") else shutil.which(need, path=path))
    }


def ensure_packages() -> None:
    """Install what is missing of the distribution's packages. Raises LabError where that is not possible."""
    missing = missing_packages()
    if not missing:
        return
    packages = sorted(set(missing.values()))
    if os.geteuid() != 0 or not {"debian", "ubuntu"} & set(_distribution()):
        raise LabError(
            f"missing: {', '.join(sorted(missing))}. As root on Debian or Ubuntu they are installed for you; "
            f"here, install {' '.join(packages)} (and a Docker Engine that this user may use) and run it again."
        )
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    follow("apt-get update", ["apt-get", "update", "-q"], env=env)
    # docker-cli exists apart from docker.io since trixie only. Nothing else is asked for: a machine with Docker's own
    # packages must not get Debian's engine because a keyring is missing.
    if "docker" in missing and ok(["apt-cache", "show", "docker-cli"]):
        packages.append("docker-cli")
    follow("apt-get install", ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], env=env)


def search_path() -> str:
    # A login without sbin on its PATH must find dockerd and debootstrap all the same.
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin"
