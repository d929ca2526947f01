"""What a round of chaos does to a Spark or to the controller, and how each is taken back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from bench import ROOT, Process
from sparklab import layout

Act = Callable[[Process, int], object]


@dataclass(frozen=True)
class Blow:
    """A way to break something. ``lands`` is called with the controller's process and a rank, ``heals`` likewise.

    ``ends`` tells what is over when it has landed: ``engine`` (a container), ``controller`` or nothing.
    """

    name: str
    lands: Act
    heals: Act | None = None
    ends: str = ""


def inside(rank: int, script: str) -> str:
    """Run a shell script in the container that is a Spark, whatever it answers: SSH and Docker may be broken."""
    command = ["docker", "exec", layout.container(rank), "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout


def shell(script: str) -> Act:
    """An act that is a shell script on the rank."""
    return lambda _, rank: inside(rank, script)


def signalled(number: signal.Signals) -> Act:
    """An act that sends a signal to the controller and its children."""

    def send(process: Process, _: int) -> None:
        if process.poll() is None:
            os.killpg(process.pid, number)

    return send


def rebooted(_: Process, rank: int) -> None:
    """Restart the Spark as a power cut does."""
    subprocess.run(["docker", "restart", "-t", "1", layout.container(rank)], capture_output=True, check=True)


def filtered(chain: str, match: str, target: str) -> tuple[Act, Act]:
    """Acts that add a rule to the Spark's packet filter, and take it away."""
    rule = f"{chain} {match} -j {target}"
    return shell(f"iptables -I {rule}"), shell(f"while iptables -D {rule} 2>/dev/null; do :; done")


ENGINE = "docker {} sparkpair-engine"
FREEZE = f"mount --bind {ROOT} {ROOT} && mount -o remount,ro,bind {ROOT}"
BLOWS = (
    Blow("SIGKILL to the controller", signalled(signal.SIGKILL), ends="controller"),
    Blow("SIGINT to the controller", signalled(signal.SIGINT), ends="controller"),
    Blow("SIGTERM to the controller", signalled(signal.SIGTERM), ends="controller"),
    Blow("the controller sleeps", signalled(signal.SIGSTOP), signalled(signal.SIGCONT)),
    Blow("SSH refused", *filtered("INPUT", "-p tcp --dport 22", "REJECT --reject-with tcp-reset")),
    Blow("SSH silent", *filtered("INPUT", "-p tcp --dport 22", "DROP")),
    Blow("SSH sessions killed", shell("pkill -KILL -f 'sshd.*@|sshd-session'")),
    Blow("every packet lost", *filtered("INPUT", "-i eth0", "DROP")),
    Blow("docker kill", shell(ENGINE.format("kill")), ends="engine"),
    Blow("docker rm", shell(ENGINE.format("rm -f")), ends="engine"),
    Blow("docker pause", shell(ENGINE.format("pause")), shell(ENGINE.format("unpause"))),
    Blow("dockerd restarted", shell("systemctl restart docker"), ends="engine"),
    Blow("dockerd frozen", shell("pkill -STOP -x dockerd"), shell("pkill -CONT -x dockerd")),
    Blow("containerd killed", shell("pkill -KILL -x containerd"), ends="engine"),
    Blow("every python3 killed", shell("pkill -KILL python3"), ends="engine"),
    Blow("rebooted", rebooted, ends="engine"),
    Blow("files read-only", shell(FREEZE), shell(f"while umount {ROOT} 2>/dev/null; do :; done")),
    Blow("current gone", shell(f"rm -f {ROOT}/current")),
    Blow("lock removed by hand", shell(f"rm -rf {ROOT}/lock")),
    Blow("sudo refuses", shell("mv /etc/sudoers.d/spark /root/"), shell("mv /root/spark /etc/sudoers.d/")),
    Blow("python3 gone", shell("chmod 0644 /usr/bin/python3*"), shell("chmod 0755 /usr/bin/python3*")),
)
