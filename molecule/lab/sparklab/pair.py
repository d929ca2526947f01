"""The Sparks themselves: network, containers, keys, and the engine image inside each of them."""

from __future__ import annotations

import json
import shlex
import subprocess
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import images, layout, slim
from .host import LabError, feed, heartbeat, ok, out, pipe, say

LABEL = "sparkpair.lab"
# The roles put it on every engine container (sparkpair.containers.LABEL_RELEASE).
RELEASE_LABEL = "sparkpair.release"
CAPABILITIES = (
    "SYS_ADMIN",
    "NET_ADMIN",
    "SYS_PTRACE",
    "MKNOD",
    "NET_RAW",
    "DAC_READ_SEARCH",
    "IPC_LOCK",
    "SYS_NICE",
)
BOOT_SECONDS = 90.0
HF_HOME = f"/home/{layout.USER}/.cache/huggingface"


def _inspect(kind: str, name: str) -> dict[str, Any] | None:
    text = out(["docker", kind, "inspect", name], check=False)
    found = json.loads(text or "[]")
    return found[0] if found else None


def _keys(home: Path) -> None:
    """A key for the controller, and one host key per possible rank; made once."""
    folder = home / "ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for key in ("id_ed25519", *(f"host-{rank}" for rank in range(layout.MAX_RANKS))):
        if not (folder / key).exists():
            out(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", layout.PREFIX, "-f", str(folder / key)])
    lines = []
    for rank in range(layout.MAX_RANKS):
        kind, key = (folder / f"host-{rank}.pub").read_text().split()[:2]
        lines.append(f"{layout.address(rank)},{layout.name(rank)} {kind} {key}\n")
    (folder / "known_hosts").write_text("".join(lines))


def _network() -> None:
    found = _inspect("network", layout.NETWORK)
    if found:
        subnet = found["IPAM"]["Config"][0]["Subnet"]
        if (found.get("Labels") or {}).get(LABEL) != "1":
            raise LabError(f"a network {layout.NETWORK} exists that is not the lab's; remove or rename it")
        if subnet == layout.SUBNET:
            return
        say(f"network {layout.NETWORK} has subnet {subnet}, wanted {layout.SUBNET}: making it anew")
        for rank in range(layout.MAX_RANKS):
            _remove(rank)
        out(["docker", "network", "rm", layout.NETWORK])
    try:
        out(["docker", "network", "create", "--label", f"{LABEL}=1", "--subnet", layout.SUBNET, layout.NETWORK])
    except LabError as error:
        hint = "another network uses these addresses? Choose a free /24 with SPARK_LAB_SUBNET"
        raise LabError(f"{error}\n{hint}") from error


def cgroup_options() -> list[str]:
    """What systemd needs to see of the host's cgroups: the host's tree, writable.

    Run on version 1. On version 2 a namespace of its own would not do: Docker mounts it read-only into a container
    without --privileged, and systemd then ends with "Failed to create /init.scope control group".
    """
    return ["--cgroupns", "host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup"]


def _create_argv(rank: int) -> list[str]:
    argv = ["docker", "create", "--name", layout.container(rank), "--hostname", layout.name(rank)]
    argv += ["--network", layout.NETWORK, "--ip", layout.address(rank), "--label", f"{LABEL}=1"]
    for capability in CAPABILITIES:
        argv += ["--cap-add", capability]
    argv += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
    argv += ["--device-cgroup-rule", "a *:* rwm", *cgroup_options()]
    argv += ["--tmpfs", "/run:exec", "--tmpfs", "/tmp:exec", "--shm-size", "2g", "-e", "container=docker"]  # noqa: S108
    argv += ["-v", f"{layout.volume(rank)}:/var/lib/docker"]
    # Every possible rank, so that a Spark need not be made anew when another is added.
    for other in range(layout.MAX_RANKS):
        if other != rank:
            argv += ["--add-host", f"{layout.name(other)}:{layout.address(other)}"]
    return [*argv, images.spark_image(), "/sbin/init"]


def _remove(rank: int) -> None:
    found = _inspect("container", layout.container(rank))
    if found is None:
        return
    if (found["Config"].get("Labels") or {}).get(LABEL) != "1":
        raise LabError(f"a container {layout.container(rank)} exists that is not the lab's; remove or rename it")
    # A graceful stop first: an inner engine that is killed leaves its volume in need of repair.
    out(["docker", "stop", "-t", "20", layout.container(rank)], check=False)
    out(["docker", "rm", "-f", layout.container(rank)])


def _ensure_container(rank: int) -> bool:
    """Have this rank's container run as wanted; True when it was made anew."""
    argv = _create_argv(rank)
    wanted = images.digest([], shlex.join(argv))
    found = _inspect("container", layout.container(rank))
    if found and (found["Config"].get("Labels") or {}).get(f"{LABEL}.config") == wanted:
        if not found["State"]["Running"]:
            say(f"{layout.name(rank)}: starting it again")
            out(["docker", "start", layout.container(rank)])
        return False
    say(f"{layout.name(rank)}: {'making it anew, its settings changed' if found else 'creating it'}")
    _remove(rank)
    out(["docker", "volume", "create", "--label", f"{LABEL}=1", layout.volume(rank)])
    out([*argv[:2], "--label", f"{LABEL}.config={wanted}", *argv[2:]])
    out(["docker", "start", layout.container(rank)])
    return True


def inside(rank: int, *argv: str, stdin: str | None = None) -> str:
    """Run a command as root inside a Spark, past SSH; returns its output. Raises LabError."""
    return out(["docker", "exec", *(["-i"] if stdin is not None else []), layout.container(rank), *argv], stdin=stdin)


def _put(rank: int, path: str, text: str, mode: str, owner: str) -> None:
    quoted = shlex.quote(path)
    script = f"mkdir -p $(dirname {quoted}) && cat > {quoted} && chmod {mode} {quoted} && chown {owner} {quoted}"
    inside(rank, "sh", "-c", script, stdin=text)


def _provision(rank: int, home: Path) -> None:
    folder = home / "ssh"
    deadline = time.monotonic() + BOOT_SECONDS
    while out(
        ["docker", "exec", layout.container(rank), "systemctl", "is-system-running"], check=False
    ).strip() not in {"running", "degraded"}:
        if time.monotonic() > deadline:
            log = out(["docker", "logs", "--tail", "15", layout.container(rank)], check=False)
            raise LabError(f"{layout.name(rank)} did not boot within {BOOT_SECONDS:.0f} s; its console:\n{log}")
        time.sleep(0.5)
    _put(rank, "/etc/ssh/ssh_host_ed25519_key", (folder / f"host-{rank}").read_text(), "600", "root")
    _put(rank, "/etc/ssh/ssh_host_ed25519_key.pub", (folder / f"host-{rank}.pub").read_text(), "644", "root")
    keys = f"/home/{layout.USER}/.ssh/authorized_keys"
    _put(rank, keys, (folder / "id_ed25519.pub").read_text(), "600", layout.USER)
    inside(rank, "sh", "-c", f"chown {layout.USER}: /home/{layout.USER}/.ssh && chmod 700 /home/{layout.USER}/.ssh")
    # sshd gave up when it booted without a host key; one that runs already knows its key and is left alone.
    if not ok(["docker", "exec", layout.container(rank), "systemctl", "is-active", "--quiet", "ssh"]):
        inside(rank, "systemctl", "reset-failed", "ssh")
        inside(rank, "systemctl", "start", "ssh")
    inside(rank, "rm", "-f", "/run/nologin")
    while not ok(["docker", "exec", layout.container(rank), "docker", "info"]):
        if time.monotonic() > deadline:
            log = out(
                ["docker", "exec", layout.container(rank), "journalctl", "-u", "docker", "-n", "15", "--no-pager"],
                check=False,
            )
            raise LabError(f"{layout.name(rank)}: its Docker Engine does not answer; its journal ends with\n{log}")
        time.sleep(0.5)


def _clear_engine(rank: int) -> None:
    """Remove the engine containers that a Spark made anew finds in its volume: their releases in /opt are gone."""
    # In the Spark's own file system, so it goes with the Spark; an `up` that was cut off is made good by the next.
    marker = "/var/lib/sparkpair-lab-cleared"
    if ok(["docker", "exec", layout.container(rank), "test", "-e", marker]):
        return
    old = inside(rank, "docker", "ps", "-aq", "--filter", f"label={RELEASE_LABEL}").split()
    if old:
        say(f"{layout.name(rank)}: removing {len(old)} engine containers of the Spark before")
        inside(rank, "docker", "rm", "-f", "-v", *old)
    inside(rank, "touch", marker)


LAYERS = ("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}")


def _held_layers(rank: int, *names: str) -> list[list[str]]:
    """Layers of images in the engine of a rank; a name that it does not hold is left out."""
    printed = out(["docker", "exec", layout.container(rank), *LAYERS, *names], check=False)
    return [json.loads(line) or [] for line in printed.splitlines() if line.strip()]


def _load_engines(count: int, image: str) -> None:
    """Have every rank's engine hold the image; layers that an engine holds already are not sent again."""
    # By layers and not by id: the id of the same image differs between Docker's two image stores.
    wanted = list(json.loads(out([*LAYERS, image])))
    lacking = [rank for rank in range(count) if wanted not in _held_layers(rank, image)]
    shared = {}
    for rank in lacking:
        ids = inside(rank, "docker", "images", "-q", "--no-trunc").split()
        shared[rank] = slim.shared_layers(wanted, _held_layers(rank, *sorted(set(ids))) if ids else [])
    partial = [rank for rank in lacking if shared[rank]]
    with tempfile.TemporaryDirectory(prefix="sparkpair-lab-", dir=images.work_folder()) as folder:
        archive = Path(folder) / "image.tar"
        if partial:
            _save_slim(image, archive, wanted[: min(shared[rank] for rank in partial)])
        with ThreadPoolExecutor(count) as pool:
            list(
                pool.map(lambda rank: _load_engine(rank, image, wanted, archive if rank in partial else None), lacking)
            )
    for rank in range(count):
        inside(rank, "docker", "tag", image, f"{layout.PREFIX}/engine:0.32.0")
        old = inside(rank, "docker", "images", "-q", "--filter", "dangling=true").split()
        if old:
            out(["docker", "exec", layout.container(rank), "docker", "rmi", *old], check=False, timeout=600)


def _save_slim(image: str, archive: Path, known: list[str]) -> None:
    step = f"take the new layers out of {image}"
    say(f"{step} (once per image, half a minute)")
    with (
        subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save,
        heartbeat(step) as count,
    ):
        assert save.stdout is not None  # noqa: S101 - stdout is a pipe
        try:
            slim.strip(save.stdout, archive, known, count)
            while save.stdout.read(slim.BLOCK):
                pass  # what pads the archive, or docker would find its pipe closed
        except tarfile.TarError as error:
            raise LabError(f"{step}: `docker save` printed no whole archive: {error}") from error
        finally:
            save.stdout.close()
    if save.returncode:
        raise LabError(f"{step}: `docker save {image}` ended with {save.returncode}")


def _load_engine(rank: int, image: str, wanted: list[str], archive: Path | None) -> None:
    started = time.monotonic()
    load = ["docker", "exec", "-i", layout.container(rank), "docker", "load", "-q"]
    if archive is not None:
        try:
            with archive.open("rb") as source:
                feed(f"{layout.name(rank)}: load the new layers of the engine image", source, load)
        except LabError as error:
            say(f"{layout.name(rank)}: {error}; loading all layers")
    if wanted not in _held_layers(rank, image):
        say(f"{layout.name(rank)}: loading the engine image, 2.7 GB (once per image, minutes)")
        pipe(f"{layout.name(rank)}: load the engine image", ["docker", "save", image], load)
    say(f"{layout.name(rank)}: engine image loaded in {time.monotonic() - started:.0f} s")


def _put_models(rank: int, cache: Path) -> None:
    marker = f"{HF_HOME}/complete-{images.models_digest()}"
    if ok(["docker", "exec", layout.container(rank), "test", "-e", marker]):
        return
    inside(rank, "mkdir", "-p", HF_HOME)
    pipe(
        f"copy the models to {layout.name(rank)}",
        ["tar", "-C", str(cache), "-c", "hub"],
        ["docker", "exec", "-i", layout.container(rank), "tar", "-C", HF_HOME, "--no-same-owner", "-x"],
    )
    inside(rank, "touch", marker)
    inside(rank, "chown", "-R", f"{layout.USER}:", f"/home/{layout.USER}/.cache")


def up(count: int) -> None:
    """Have ``count`` Sparks run, reachable over SSH, with image and models. Raises LabError."""
    home = layout.claim()
    for left in images.leftovers():
        out(["docker", "rm", "-f", left], check=False)
    images.build_spark()
    image = images.build_engine()
    cache = images.make_models(home)
    _keys(home)
    _network()
    for rank in range(count, layout.MAX_RANKS):
        _remove(rank)
    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(_ensure_container, range(count)))
        list(pool.map(lambda rank: _provision(rank, home), range(count)))
        list(pool.map(_clear_engine, range(count)))
    _load_engines(count, image)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda rank: _put_models(rank, cache), range(count)))
    (home / "ranks").write_text(f"{count}\n")
    say(f"{count} Sparks are up ({sum(made)} made anew): " + ", ".join(layout.address(r) for r in range(count)))


def down(*, purge: bool) -> None:
    """Remove the Sparks and their network; with ``purge`` also their volumes, images, keys and models.

    Raises ValueError when ``purge`` is asked for and ``up`` did not make the lab's home.
    """
    if purge:
        layout.require_claim()
    for rank in range(layout.MAX_RANKS):
        _remove(rank)
    found = _inspect("network", layout.NETWORK)
    if found and (found.get("Labels") or {}).get(LABEL) == "1":
        out(["docker", "network", "rm", layout.NETWORK])
    if purge:
        for name in out(["docker", "volume", "ls", "-q", "--filter", f"label={LABEL}=1"]).split():
            out(["docker", "volume", "rm", name], timeout=600)
        for image in out(["docker", "images", "-q", "--filter", f"label={LABEL}=1"]).split():
            out(["docker", "rmi", "-f", image], check=False, timeout=600)
        layout.discard()
    say("the Sparks are gone" + (", with everything that was made for them" if purge else ""))


def status() -> list[str]:
    """One line per Spark."""
    lines = []
    for rank in range(layout.ranks()):
        found = _inspect("container", layout.container(rank))
        lines.append(
            f"{layout.name(rank)}  {layout.address(rank)}  {found['State']['Status'] if found else 'does not exist'}"
        )
    return lines


def third_party(argv: list[str]) -> int:
    """Run a command in the engine image at a third address of the lab's network; returns its exit code."""
    run = ["docker", "run", "--rm", "-i", "--network", layout.NETWORK, "--label", f"{LABEL}=1"]
    for rank in range(layout.ranks()):
        run += ["--add-host", f"{layout.name(rank)}:{layout.address(rank)}"]
    return subprocess.run([*run, images.engine_image(), *argv], check=False).returncode
