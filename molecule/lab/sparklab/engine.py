"""The Docker Engine of the machine: one that answers is used, one that died is started again. Others are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .host import LabError, ensure_packages, follow, ok, out, say, search_path

SOCKET = Path("/var/run/docker.sock")
PID_FILE = Path("/var/run/docker.pid")
# Where an engine without --exec-root keeps its containerd.
RUN_FOLDER = "/var/run/docker"
SETTINGS = Path("/etc/docker/daemon.json")
DAEMON_LOG = Path("/var/log/sparkpair-lab-dockerd.log")
RECORD = "dockerd.json"
START_SECONDS = 60.0
ANSWER_SECONDS = 10.0


def _answers() -> bool:
    try:
        return ok(["docker", "info"], timeout=ANSWER_SECONDS)
    except LabError:
        return False


def endpoint() -> str:
    """Address of the Docker Engine that the docker command talks to (DOCKER_HOST, else the current context)."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    return out(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], check=False).strip()


def is_default(address: str) -> bool:
    """Tell whether an engine's address is the default socket of this machine."""
    return address in {"", "unix:///var/run/docker.sock", "unix:///run/docker.sock", "unix://", "fd://"}


def ensure_engine(home: Path) -> None:
    """Have a Docker Engine that answers; start the machine's own when it does not. Raises LabError.

    ``home`` remembers which engine was started here, so that only that one is ever ended.
    """
    os.environ["PATH"] = search_path()
    ensure_packages()
    address = endpoint()
    named = "DOCKER_HOST" if os.environ.get("DOCKER_HOST") else "the current docker context"
    undo = "unset DOCKER_HOST, or run `docker context use default`"
    if not is_default(address) and not address.startswith("unix://"):
        raise LabError(f"{named} names {address}, and the lab runs on the engine of this machine only: {undo}")
    if _answers():
        return
    if not is_default(address):
        raise LabError(
            f"the Docker Engine at {address} ({named}) does not answer. The lab starts no other engine than the one at "
            f"unix://{SOCKET}: start yours, or {undo}"
        )
    if os.geteuid() != 0:
        raise LabError("the Docker Engine does not answer, and only root may start one: start it, or run this as root")
    if Path("/run/systemd/system").is_dir():
        follow("start the Docker Engine", ["systemctl", "start", "docker"])
    elif not _comes_up(processes()):
        _clear_remains(home)
        _start_daemon(home)
    deadline = time.monotonic() + START_SECONDS
    while not _answers():
        if time.monotonic() > deadline:
            raise LabError(
                f"the Docker Engine gave no answer for {START_SECONDS:.0f} s; its log ends with\n  {_log_tail()}"
            )
        time.sleep(0.5)
    say(f"Docker Engine {out(['docker', 'version', '--format', '{{.Server.Version}}']).strip()} answers")


@dataclass(frozen=True)
class Process:
    """One process of this machine; ``started`` is in clock ticks since boot, as /proc counts it."""

    pid: int
    parent: int
    started: int
    argv: tuple[str, ...]

    @property
    def program(self) -> str:
        """Name of its program."""
        return Path(self.argv[0]).name if self.argv else ""

    def values(self, *options: str) -> list[str]:
        """Values of an option in its command line, as ``-o value``, ``-ovalue`` or ``--option=value``."""
        found = []
        for position, word in enumerate(self.argv[1:], 1):
            if word in options and position + 1 < len(self.argv):
                found.append(self.argv[position + 1])
            for option in options:
                glue = "=" if option.startswith("--") else ""
                if word != option and word.startswith(option + glue) and (glue or not word.startswith("--")):
                    found.append(word.removeprefix(option + glue).removeprefix("="))
        return found


def processes() -> list[Process]:
    """Processes of this process namespace: engines inside a Spark run in its own and are none of our business."""
    found = []
    here = Path("/proc/self/ns/pid").stat().st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "ns" / "pid").stat().st_ino != here:
                continue
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            # The name of the program may hold blanks and brackets; what follows its last bracket may not.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie has no command line.
        found.append(Process(int(entry.name), int(fields[1]), int(fields[19]), tuple(argv)))
    return found


def serves_default(process: Process, settings: Path = SETTINGS) -> bool:
    """Tell whether a dockerd is the one of the default socket."""
    hosts = process.values("-H", "--host")
    file = Path((process.values("--config-file") or [str(settings)])[-1])
    if not hosts:
        try:
            hosts = json.loads(file.read_text()).get("hosts", [])
        except (OSError, ValueError, AttributeError):
            hosts = []
    return not hosts or any(is_default(host) for host in hosts)


def remains(
    found: Iterable[Process], record: dict[str, object], boot: str, settings: Path = SETTINGS
) -> tuple[list[Process], list[Process]]:
    """Which processes belong to the engine of the default socket, and which other engines share its run folder.

    The first are a dockerd that ``record`` names (same process id, start and boot) or that serves the default socket,
    and the containerd, shims and proxies of its run folder. Any other engine is left alone.
    """
    found = list(found)
    engines = [p for p in found if p.program == "dockerd"]
    ours = [
        p
        for p in engines
        if (record.get("pid"), record.get("started"), record.get("boot")) == (p.pid, p.started, boot)
        or serves_default(p, settings)
    ]
    others = [p for p in engines if p not in ours and _in_run_folder((p.values("--exec-root") or [RUN_FOLDER])[-1])]
    ended = {p.pid for p in ours}
    helpers = []
    for process in found:
        if process.program == "containerd":
            mine = any(_in_run_folder(path) for path in process.values("--config", "-c"))
        elif process.program.startswith("containerd-shim"):
            mine = any(_in_run_folder(path) for path in process.values("-address"))
        else:
            mine = process.program == "docker-proxy" and process.parent in ended
        if mine:
            helpers.append(process)
    return [*ours, *helpers], others


def _in_run_folder(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in (RUN_FOLDER, RUN_FOLDER.removeprefix("/var")))


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _record(home: Path) -> dict[str, object]:
    try:
        record = json.loads((home / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _comes_up(found: Iterable[Process]) -> bool:
    """Tell whether the engine of the default socket, if there is one, answers after all: it may only just start."""
    if not any(p.program == "dockerd" and serves_default(p) for p in found):
        return False
    deadline = time.monotonic() + ANSWER_SECONDS
    while not (up := _answers()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return up


def _start_daemon(home: Path) -> None:
    say(f"starting dockerd (log: {DAEMON_LOG})")
    with DAEMON_LOG.open("ab") as log:
        started = subprocess.Popen(
            ["dockerd"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )
    for process in processes():
        if process.pid == started.pid:
            home.mkdir(mode=0o755, parents=True, exist_ok=True)
            record = {**asdict(process), "boot": _boot()}
            (home / RECORD).write_text(json.dumps({k: record[k] for k in ("pid", "started", "boot")}) + "\n")


def _clear_remains(home: Path) -> None:
    """End what a dead engine left: its processes, pid files and socket. Raises LabError when it is not all its own."""
    ending, others = remains(processes(), _record(home), _boot())
    if others:
        raise LabError(
            f"process {others[0].pid} (`{' '.join(others[0].argv)}`) is an engine on another socket in {RUN_FOLDER}, "
            "which the engine of the default socket needs: end it, or point DOCKER_HOST at its socket"
        )
    for process in ending:
        say(f"ending {process.program}, process {process.pid}, of an engine that no longer answers")
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    time.sleep(0.3)
    for stale in (PID_FILE, Path(RUN_FOLDER) / "containerd/containerd.pid", SOCKET):
        stale.unlink(missing_ok=True)
    # The run state below /var/run/docker stays: a killed shim leaves its container running, and only with this state
    # does the next containerd find and end it. Without it a second system boots on the same volume and address.


def _log_tail() -> str:
    return "\n  ".join(DAEMON_LOG.read_text(errors="replace").splitlines()[-12:]) if DAEMON_LOG.exists() else "(no log)"
