"""Commands, progress lines, and the Docker Engine of the machine that carries the local pair."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

# Debian and Ubuntu name them alike; docker-cli exists apart from docker.io since trixie only.
PACKAGES = ("docker.io", "debootstrap", "debian-archive-keyring", "iptables", "openssh-client", "python3-venv")
SOCKET = Path("/var/run/docker.sock")
DAEMON_LOG = Path("/var/log/sparkpair-lab-dockerd.log")
START_SECONDS = 60.0
HEARTBEAT_SECONDS = 15.0


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


def out(argv: Sequence[str], *, check: bool = True, stdin: str | None = None) -> str:
    """Standard output of a command. Raises LabError with its last lines when it fails and ``check`` is set."""
    done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace", input=stdin, check=False)
    if check and done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-8:])
        raise LabError(f"`{' '.join(argv[:6])}` ended with {done.returncode}:\n{tail}")
    return done.stdout


def ok(argv: Sequence[str]) -> bool:
    """Tell whether a command ends with 0."""
    return subprocess.run(list(argv), capture_output=True, check=False).returncode == 0


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
    """Run ``first | second`` and return what the second printed. Raises LabError when one of them fails."""
    with subprocess.Popen(list(first), stdout=subprocess.PIPE) as source:
        sink = subprocess.run(list(second), stdin=source.stdout, capture_output=True, text=True, check=False)
    if source.returncode or sink.returncode:
        raise LabError(f"{step}: {sink.stderr.strip() or f'{first[0]} ended with {source.returncode}'}")
    return sink.stdout.strip()


def _distribution() -> Iterable[str]:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return ()
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return [fields.get("ID", "").strip('"'), *fields.get("ID_LIKE", "").strip('"').split()]


def ensure_packages() -> None:
    """Install what is missing of the distribution's packages. Raises LabError where that is not possible."""
    programs = {
        "dockerd": "docker.io",
        "docker": "docker.io",
        "debootstrap": "debootstrap",
        "ssh-keygen": "openssh-client",
        "iptables": "iptables",
    }
    missing = sorted(program for program in programs if shutil.which(program, path=_path()) is None)
    if not missing:
        return
    if os.geteuid() != 0 or not {"debian", "ubuntu"} & set(_distribution()):
        packages = " ".join(sorted({programs[m] for m in missing}))
        raise LabError(
            f"missing: {', '.join(missing)}. As root on Debian or Ubuntu they are installed for you; "
            f"here, install {packages} (and a Docker Engine that this user may use) and run the command again."
        )
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    follow("apt-get update", ["apt-get", "update", "-q"], env=env)
    wanted = [*PACKAGES, *(["docker-cli"] if ok(["apt-cache", "show", "docker-cli"]) else [])]
    follow("apt-get install", ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted], env=env)


def _path() -> str:
    # A login without sbin on its PATH must find dockerd and debootstrap all the same.
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin"


def ensure_engine() -> None:
    """Have a Docker Engine that answers; start one when none does. Raises LabError."""
    os.environ["PATH"] = _path()
    ensure_packages()
    if ok(["docker", "info"]):
        return
    if os.geteuid() != 0:
        raise LabError("the Docker Engine does not answer, and only root may start one: start it, or run this as root")
    if Path("/run/systemd/system").is_dir():
        follow("start the Docker Engine", ["systemctl", "start", "docker"])
    else:
        _start_daemon()
    deadline = time.monotonic() + START_SECONDS
    while not ok(["docker", "info"]):
        if time.monotonic() > deadline:
            tail = "\n  ".join(DAEMON_LOG.read_text().splitlines()[-12:]) if DAEMON_LOG.exists() else "(no log)"
            raise LabError(f"the Docker Engine gave no answer for {START_SECONDS:.0f} s; its log ends with\n  {tail}")
        time.sleep(0.5)
    say(f"Docker Engine {out(['docker', 'version', '--format', '{{.Server.Version}}']).strip()} answers")


def _start_daemon() -> None:
    _clear_remains()
    say(f"starting dockerd (log: {DAEMON_LOG})")
    with DAEMON_LOG.open("ab") as log:
        subprocess.Popen(["dockerd"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")


def _clear_remains() -> None:
    """Remove what a killed engine left: processes without a parent, pid files, sockets."""
    for pid in _processes(("dockerd", "containerd", "containerd-shim-runc-v2", "docker-proxy")):
        with_pid = f"process {pid} of an engine that no longer answers"
        say(f"ending {with_pid}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    time.sleep(0.3)
    for stale in ("/var/run/docker.pid", "/var/run/docker/containerd/containerd.pid", str(SOCKET)):
        Path(stale).unlink(missing_ok=True)
    # The run state below /var/run/docker stays: a killed shim leaves its container running, and only with this state
    # does the next containerd find and end it. Without it a second system boots on the same volume and address.


def _processes(names: Iterable[str]) -> list[int]:
    wanted, found = set(names), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = Path((entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")).name
            namespace = (entry / "ns" / "pid").stat().st_ino
        except OSError:
            continue
        # Engines inside a Spark run in its own process namespace and are none of our business here.
        if program in wanted and namespace == Path("/proc/self/ns/pid").stat().st_ino:
            found.append(int(entry.name))
    return found
