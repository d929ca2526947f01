"""The bench of the fault matrix: one old release, variants of a new one, and ways to break a Spark."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from sparklab import images, layout

from tests.labtest import Run, engine
from tests.standin import image as standin

ROOT = "/opt/sparkpair"
STANDIN = ("-e", f"image={standin.tag()}", "-e", "stop_grace=5", "-e", "drain_timeout=2")
OLD = (*STANDIN, "-e", "executor=mp")
Process = subprocess.Popen[str]


def kill(process: Process) -> None:
    """The controller vanishes."""
    os.killpg(process.pid, signal.SIGKILL)


def interrupt(process: Process) -> None:
    """The operator presses Ctrl-C."""
    os.killpg(process.pid, signal.SIGINT)


def new(fault: str = "", *args: str, executor: str = "mp") -> tuple[str, ...]:
    """Arguments of a release that is not the old one; ``fault`` is what its stand-in does wrong."""
    environment = {"STANDIN_FAULT": fault, "BENCH": "new"} if fault else {"BENCH": "new"}
    return (*STANDIN, "-e", f"executor={executor}", "-e", json.dumps({"extra_env": environment}), *args)


@dataclass
class Bench:
    """The pair under test."""

    sparks: list[Any]
    verb: Callable[..., Run]

    def sudo(self, rank: int, command: str) -> str:
        """Run a shell command as root on a Spark over SSH."""
        with self.sparks[rank].sudo():
            done = self.sparks[rank].run(command)
        assert done.rc == 0, f"{command}: {done.stderr}"
        return str(done.stdout)

    def inside(self, rank: int, *argv: str) -> str:
        """Run a command in the container that is a Spark, for when SSH is what is broken."""
        done = subprocess.run(
            ["docker", "exec", layout.container(rank), *argv], capture_output=True, text=True, check=True
        )
        return done.stdout

    def deploy(self, *args: str, **more: Any) -> Run:
        """Deploy with these arguments."""
        return self.verb("deploy", *args, **more)

    # --- what the pair is like ----------------------------------------------------------------------------------------

    def current(self, rank: int) -> str:
        """Id of the current release of a rank."""
        return self.sudo(rank, f"basename $(readlink {ROOT}/current) 2>/dev/null || true").strip()

    def started(self) -> list[str]:
        """When each rank's engine container was started."""
        return [engine(spark)["State"]["StartedAt"] for spark in self.sparks]

    def containers(self) -> list[str]:
        """Names of all containers of ours on all ranks."""
        return [n for r in (0, 1) for n in self.sudo(r, "docker ps -a --format '{{.Names}}'").split()]

    def lock(self) -> list[str]:
        """What each rank's lock says; empty where it is not held."""
        notes = [self.sudo(r, f"cat {ROOT}/lock/holder.json 2>/dev/null || true") for r in (0, 1)]
        return [json.loads(n).get("reason") or json.loads(n).get("phase") or "held" if n else "" for n in notes]

    def leftovers(self) -> list[str]:
        """Half files of any kind."""
        known = "-e current -e history.jsonl -e releases -e staging -e weights"
        found = f"ls -A {ROOT} | grep -vx {known}; ls -A {ROOT}/releases"
        return [n for r in (0, 1) for n in self.sudo(r, f"({found}) | grep -vE '^[0-9a-f]{{12}}$' || true").split()]

    # --- ways to break it ---------------------------------------------------------------------------------------------

    def cut(self, rank: int) -> None:
        """Refuse every SSH packet."""
        rule = ("-p", "tcp", "--dport", "22", "-j", "REJECT", "--reject-with", "tcp-reset")
        self.inside(rank, "iptables", "-I", "INPUT", *rule)

    def mend(self, rank: int) -> None:
        """Let SSH in again."""
        rule = ("-p", "tcp", "--dport", "22", "-j", "REJECT", "--reject-with", "tcp-reset")
        undo = ["docker", "exec", layout.container(rank), "iptables", "-D", "INPUT", *rule]
        while subprocess.run(undo, capture_output=True, check=False).returncode == 0:
            pass

    @contextmanager
    def changed(self, rank: int, do: str, undo: str) -> Iterator[None]:
        """Have a Spark changed by one command until another takes it back."""
        self.sudo(rank, do)
        try:
            yield
        finally:
            self.sudo(rank, undo)

    def load(self, rank: int, tag: str, extra: dict[str, bytes] | None = None) -> None:
        """Give a Spark the image with the stand-in, with further files in it on request."""
        with self.sparks[rank].sudo():
            base = json.loads(self.sparks[rank].check_output(f"docker image inspect {images.engine_image()}"))[0]
            tar = standin.loadable(base, {**standin.standin_files(), **(extra or {})}, tag)
            self.sparks[rank].check_output("echo %s | base64 -d | docker load", base64.b64encode(tar).decode())

    def wait_for_ssh(self, rank: int) -> None:
        """Wait until a Spark can be reached again, and its Docker answers."""
        for _ in range(60):
            done = self.sparks[rank].run("sudo docker info")
            if done.rc == 0:
                return
            time.sleep(1)
        raise AssertionError(f"rank {rank} does not come back")
