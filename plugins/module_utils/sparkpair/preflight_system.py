"""Preflight checks of the machine: privileges, kernel, Docker, GPU, ports, memory, limits and directories."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from .containers import LABEL_RELEASE
from .memory import gib
from .memory import need as memory_need
from .preflight_host import Context, Finding, Skipped, container_name, ours, version
from .weights import Cache, Model, WeightsError, models_of
from .weights_cache import barred

LISTEN = "0A"
CAP_SYS_RESOURCE = 24


def become(ctx: Context) -> Iterator[Finding]:
    """The module runs as root: release files, Docker and other users' processes need it."""
    if ctx.host.euid() != 0:
        yield ctx.finding(
            "become",
            "blocked",
            observed=f"user id {ctx.host.euid()}",
            wanted="root",
            remedy="allow sudo for the login user (password-less, or give -K), and leave become on",
        )


def architecture(ctx: Context) -> Iterator[Finding]:
    """The processor architecture is the wanted one."""
    seen = ctx.host.machine()
    ctx.facts["architecture"] = seen
    if seen != ctx.options.wanted_architecture:
        yield ctx.finding(
            "architecture",
            "blocked",
            observed=seen,
            wanted=ctx.options.wanted_architecture,
            remedy="this is not a DGX Spark; correct ansible_host, or spark_preflight_architecture for a test bed",
        )


def kernel(ctx: Context) -> Iterator[Finding]:
    """No kernel on which registering RDMA memory fails.

    With kexec handover (kho) these kernels start with CmaTotal 0 and CmaFree above it, and ibv_reg_mr gives ENOMEM:
    https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259
    """
    release = ctx.host.read("/proc/sys/kernel/osrelease") or ""
    ctx.facts["kernel"] = release
    known = any(release == bad or release.startswith(bad + "-") for bad in ctx.thresholds.bad_kernels)
    off = "kho=off" in (ctx.host.read("/proc/cmdline") or "").split()
    symptom = ctx.meminfo.get("CmaTotal") == 0 and ctx.meminfo.get("CmaFree", 0) > 0
    if (known and not off) or symptom:
        yield ctx.finding(
            "kernel",
            "blocked" if ctx.rdma else "degraded",
            observed=f"kernel {release}"
            + (" with kexec handover" if not off else "")
            + (", CmaTotal is 0 but CmaFree is not" if symptom else ""),
            wanted="a kernel that can register RDMA memory",
            remedy="boot with kho=off, or boot kernel 6.17",
        )


def docker(ctx: Context) -> Iterator[Finding]:
    """Docker answers and is recent enough."""
    info, why = ctx.docker
    if why:
        denied = "permission denied" in why.lower()
        yield ctx.finding(
            "docker",
            "blocked",
            observed=why,
            wanted="a Docker Engine that answers",
            remedy="leave become on, or add the user to the group docker"
            if denied
            else "systemctl enable --now docker, then journalctl -u docker",
        )
        return
    status = str(info.get("DriverStatus") or "")
    containerd = " (containerd)" if "io.containerd.snapshotter" in status else ""
    ctx.facts |= {"docker": info["ServerVersion"], "storage_driver": f"{info.get('Driver')}{containerd}"}
    if version(info["ServerVersion"]) < version(ctx.thresholds.docker_min):
        yield ctx.finding(
            "docker",
            "degraded",
            observed=f"Docker {info['ServerVersion']}",
            wanted=f"at least {ctx.thresholds.docker_min}",
            remedy="update Docker on every rank to the same version",
        )


def compose(ctx: Context) -> Iterator[Finding]:
    """Compose v2 is there and recent enough for the engine's compose file."""
    done = ctx.host.run(["docker", "compose", "version", "--short"], timeout=30)
    seen = done.out.strip()
    ctx.facts["compose"] = seen if done.ok else None
    if not done.ok or version(seen) < version(ctx.thresholds.compose_min):
        yield ctx.finding(
            "compose",
            "blocked",
            observed=f"Compose {seen}" if done.ok else f"no docker compose: {done.why()}",
            wanted=f"at least {ctx.thresholds.compose_min}",
            remedy="install docker-compose-plugin (Docker's packages) or docker-compose-v2 (Ubuntu's)",
        )


def nvidia_runtime(ctx: Context) -> Iterator[Finding]:
    """Docker can give GPUs to a container."""
    if not ctx.gpus:
        raise Skipped("the plan uses no GPU")
    runtimes = sorted(ctx.docker[0].get("Runtimes") or {})
    if "nvidia" not in runtimes:
        yield ctx.finding(
            "nvidia_runtime",
            "blocked",
            observed=f"runtimes {', '.join(runtimes) or 'none'}",
            wanted="a runtime nvidia",
            remedy="nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
        )


def gpu(ctx: Context) -> Iterator[Finding]:
    """A GPU is there and is the one that the image's kernels are built for."""
    if not ctx.gpus:
        raise Skipped("the plan uses no GPU")
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = ctx.host.run(query, timeout=60)
    rows = [[cell.strip() for cell in line.split(",")] for line in done.out.splitlines() if "," in line]
    if not done.ok or not rows:
        yield ctx.finding(
            "gpu",
            "blocked",
            observed=f"nvidia-smi names no GPU: {done.why() if not done.ok else 'its list is empty'}",
            wanted=f"a GPU named {ctx.thresholds.gpu_name}",
            remedy="install the driver if nvidia-smi is missing; else look for NVRM in dmesg, and if the GPU is lost, "
            "shut down and unplug the Spark",
        )
        return
    ctx.facts |= {"gpu": rows[0][0], "driver": rows[0][1]}
    if ctx.thresholds.gpu_name not in rows[0][0]:
        yield ctx.finding(
            "gpu",
            "degraded",
            observed=rows[0][0],
            wanted=f"a GPU named {ctx.thresholds.gpu_name}",
            remedy="use a DGX Spark, or set the threshold gpu_name when the image supports this GPU",
        )


def _uses_gpu(container: Mapping[str, Any]) -> bool:
    config = container.get("HostConfig") or {}
    requests = config.get("DeviceRequests") or []
    asked = any(
        r.get("Driver") == "nvidia" or any("gpu" in group for group in r.get("Capabilities") or []) for r in requests
    )
    devices = [str(d.get("PathOnHost", "")) for d in config.get("Devices") or []]
    return asked or config.get("Runtime") == "nvidia" or any(d.startswith("/dev/nvidia") for d in devices)


def foreign_gpu(ctx: Context) -> Iterator[Finding]:
    """Nothing else uses the GPU: its memory is the system's memory, and each rank fills its node."""
    if not ctx.gpus:
        raise Skipped("the plan uses no GPU")
    foreign = sorted(container_name(c) for c in ctx.containers.values() if _uses_gpu(c) and not ours(c))
    if foreign:
        yield ctx.finding(
            "foreign_gpu",
            "blocked",
            observed=f"containers with a GPU: {', '.join(foreign)}",
            wanted="no other container with a GPU",
            remedy=f"docker stop {' '.join(foreign)}",
        )
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    done = ctx.host.run(query, timeout=60)
    others = []
    if not done.ok:
        yield ctx.finding(
            "foreign_gpu",
            "degraded",
            observed=f"nvidia-smi does not answer ({done.why()}), so processes outside of containers were not seen",
            wanted="a list of the processes on the GPU",
            remedy="install the NVIDIA driver's utilities, or look yourself that nothing else uses the GPU",
        )
    for line in done.out.splitlines() if done.ok else []:
        pid, _, name = (part.strip() for part in line.partition(","))
        if not pid.isdigit():
            continue
        inside = ctx.container_of(pid)
        if inside is None or not (ours(inside) or container_name(inside) in foreign):
            others.append(f"{name} (pid {pid})")
    if others:
        yield ctx.finding(
            "foreign_gpu",
            "degraded",
            observed=f"GPU processes: {', '.join(others)}",
            wanted="no other process on the GPU",
            remedy="stop them, or lower gpu_mem_util by what they hold",
        )


# --- ports -----------------------------------------------------------------------------------------------------------


def _wanted_ports(ctx: Context) -> dict[int, tuple[str, bool]]:
    """Port to (its use, whether this rank binds it).

    Every fixed port of a plan is the head's. Ray on a worker, and NCCL on both, take ports that the kernel gives them.
    """
    head = ctx.rank["role"] == "head"
    ports: dict[int, tuple[str, bool]] = {int(ctx.plan["port"]): ("the API", head)}
    if ctx.plan["executor"] == "ray":
        ports[int(ctx.plan["ray"]["port"])] = ("Ray", head)
    elif master := ctx.setting("master_port"):
        ports[int(master)] = ("the rendezvous of the ranks", head)
    return ports


def _listeners(ctx: Context) -> dict[int, list[str]]:
    """Listening TCP ports of the host's network, with the inodes of their sockets."""
    found: dict[int, list[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (ctx.host.read(table) or "").splitlines()[1:]:
            cells = line.split()
            if len(cells) > 9 and cells[3] == LISTEN:  # noqa: PLR2004 - columns of /proc/net/tcp
                found.setdefault(int(cells[1].rpartition(":")[2], 16), []).append(cells[9])
    return found


def _holders(ctx: Context, inodes: set[str]) -> dict[str, str]:
    """Process id by socket inode, for the inodes asked for. Needs root to see other users' processes."""
    found: dict[str, str] = {}
    sockets = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in ctx.host.names("/proc"):
        if not pid.isdigit():
            continue
        for descriptor in ctx.host.names(f"/proc/{pid}/fd"):
            inode = sockets.get(ctx.host.link(f"/proc/{pid}/fd/{descriptor}"))
            if inode:
                found.setdefault(inode, pid)
    return found


def _published(ctx: Context, port: int) -> dict[str, Any] | None:
    """The container that publishes a host port through Docker's proxy."""
    for container in ctx.containers.values():
        bindings = (container.get("HostConfig") or {}).get("PortBindings") or {}
        if any(b.get("HostPort") == str(port) for bound in bindings.values() for b in bound or []):
            return container
    return None


def _owner(ctx: Context, port: int, pid: str | None) -> tuple[str, bool]:
    """Who holds a port, and whether that is an engine of ours."""
    container = (ctx.container_of(pid) if pid else None) or _published(ctx, port)
    if container is not None:
        labels = (container.get("Config") or {}).get("Labels") or {}
        release = f" of release {labels[LABEL_RELEASE]}" if LABEL_RELEASE in labels else ""
        return f"container {container_name(container)}{release}", ours(container)
    if pid:
        return f"{ctx.host.read(f'/proc/{pid}/comm') or 'a process'} (pid {pid})", False
    return "a process that this user cannot see", False


def ports(ctx: Context) -> Iterator[Finding]:
    """Ports of the plan are free, or held by an engine of ours that the switch stops."""
    wanted, listening = _wanted_ports(ctx), _listeners(ctx)
    taken = {port: listening[port] for port in sorted(wanted) if port in listening}
    holders = _holders(ctx, {inode for inodes in taken.values() for inode in inodes}) if taken else {}
    shown = ctx.facts["ports"] = {}
    for port, inodes in taken.items():
        pid = next((holders[i] for i in inodes if i in holders), None)
        owner, mine = _owner(ctx, port, pid)
        shown[str(port)] = owner
        use, binds = wanted[port]
        if not mine:
            yield ctx.finding(
                "ports",
                "blocked" if binds else "degraded",
                observed=f"port {port} is held by {owner}",
                wanted=f"port {port} free for {use}" + ("" if binds else " on the head; here it only invites mistakes"),
                remedy=f"stop {owner}, or choose another port",
            )


# --- memory and limits -----------------------------------------------------------------------------------------------


def memory(ctx: Context) -> Iterator[Finding]:
    """Enough memory is free, or becomes free when the page cache is dropped.

    CUDA counts the page cache of unified memory as used, so MemFree decides at the start and MemAvailable is only what
    dropping the cache can reach: https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/205
    """
    total, free = ctx.meminfo.get("MemTotal", 0), ctx.meminfo.get("MemFree", 0)
    available = ctx.meminfo.get("MemAvailable", 0)
    ctx.facts |= {"memory_total": total, "memory_free": free, "memory_available": available}
    if any(ours(c) for c in ctx.containers.values()):
        raise Skipped("an engine of ours runs and holds the memory; the wait after its stop judges it")
    need, margin = ctx.thresholds.memory_bytes, ctx.thresholds.memory_margin_bytes
    if not need:
        share = ctx.setting("gpu_mem_util")
        if not ctx.gpus or not share or not total:
            raise Skipped("the plan states no share of the memory")
        need = memory_need(float(share), total, margin)
    ctx.facts["memory_need"] = need
    wanted = f"{gib(need)} free of {gib(total)}"
    observed = f"{gib(free)} free, {gib(available)} available"
    if available < need:
        reachable = max(0, math.floor((available - margin) / total * 100)) / 100 if total else 0
        yield ctx.finding(
            "memory",
            "blocked",
            observed=observed,
            wanted=wanted,
            remedy=f"stop what holds memory, or lower gpu_mem_util to at most {reachable:.2f}",
        )
    elif free < need:
        yield ctx.finding(
            "memory",
            "info",
            observed=f"{observed}: the rest is page cache",
            wanted=wanted,
            remedy="the start drops it (drop_page_cache); by hand: sync && sysctl vm.drop_caches=3",
        )


def swap(ctx: Context) -> Iterator[Finding]:
    """The kernel keeps the engine's memory out of swap, and there is some swap for the rest."""
    swappiness = ctx.host.number("/proc/sys/vm/swappiness")
    ctx.facts["swappiness"] = swappiness
    if swappiness is not None and swappiness > ctx.thresholds.swappiness_max:
        yield ctx.finding(
            "swap",
            "degraded",
            observed=f"vm.swappiness {swappiness}",
            wanted=f"at most {ctx.thresholds.swappiness_max}",
            remedy="echo vm.swappiness=0 > /etc/sysctl.d/60-sparkpair.conf && sysctl --system",
        )
    if ctx.gpus and ctx.meminfo.get("SwapTotal") == 0:
        yield ctx.finding(
            "swap",
            "info",
            observed="no swap",
            wanted="some swap, so that a full node slows down instead of stopping to answer",
            remedy="make a swap file of 16 GiB",
        )


def _docker_pid(ctx: Context) -> str:
    pid = ctx.host.read("/run/docker.pid") or ctx.host.read("/var/run/docker.pid") or ""
    if pid.isdigit():
        return pid
    return next((p for p in ctx.host.names("/proc") if p.isdigit() and _comm(ctx, p) == "dockerd"), "")


def _comm(ctx: Context, pid: str) -> str:
    return ctx.host.read(f"/proc/{pid}/comm") or ""


def _hard_limit(text: str, name: str) -> float | None:
    match = re.search(rf"^{name}\s+\S+\s+(\S+)", text, re.MULTILINE)
    if not match:
        return None
    return math.inf if match[1] == "unlimited" else float(match[1])


def limits(ctx: Context) -> Iterator[Finding]:
    """Docker can give a container unlimited locked memory (RDMA needs it) and enough open files."""
    if any("rootless" in str(option) for option in ctx.docker[0].get("SecurityOptions") or []):
        yield ctx.finding(
            "limits",
            "blocked" if ctx.rdma else "degraded",
            observed="Docker runs rootless",
            wanted="a Docker Engine of root, which can lift the limit of locked memory",
            remedy="use the system's Docker Engine (docker context use default)",
        )
        return
    pid = _docker_pid(ctx)
    text = ctx.host.read(f"/proc/{pid}/limits") if pid else None
    if not text:
        raise Skipped("the limits of dockerd cannot be read")
    files, locked = _hard_limit(text, "Max open files"), _hard_limit(text, "Max locked memory")
    status = ctx.host.read(f"/proc/{pid}/status") or ""
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    lifts = effective is None or bool(int(effective[1], 16) >> CAP_SYS_RESOURCE & 1)
    if ctx.rdma and not lifts and locked is not None and locked != math.inf:
        yield ctx.finding(
            "limits",
            "blocked",
            observed=f"dockerd may lock {gib(locked)} and cannot lift limits",
            wanted="unlimited locked memory (memlock)",
            remedy="set LimitMEMLOCK=infinity in a drop-in of docker.service, then restart Docker",
        )
    if files is not None and files < ctx.thresholds.nofile_min:
        yield ctx.finding(
            "limits",
            "degraded",
            observed=f"dockerd may open {files:.0f} files",
            wanted=f"at least {ctx.thresholds.nofile_min}",
            remedy="set LimitNOFILE=1048576 in a drop-in of docker.service, then restart Docker",
        )


def caches(ctx: Context) -> Iterator[Finding]:
    """Directories that the rank mounts exist or can be made; weights can be brought into the Hugging Face cache."""
    for mount in ctx.rank["mounts"]:
        source = str(mount["source"])
        # Files of a release are put there by the release itself.
        if source.startswith(ctx.options.root.rstrip("/") + "/"):
            continue
        here = ctx.host.path(source)
        if here.exists() and not here.is_dir():
            observed = f"{source} is not a directory"
        elif mount["read_only"] and here.is_dir():
            continue
        elif not ctx.host.writable(ctx.host.nearest(source)):
            observed = f"{source} cannot be written" if here.is_dir() else f"{source} cannot be made"
        else:
            continue
        yield ctx.finding(
            "caches",
            "blocked",
            observed=observed,
            wanted=f"a directory for {mount['target']}",
            remedy=f"make {source} a directory on a file system that root can write (not read-only, no root squash)",
        )
    yield from _barred(ctx)


def _barred(ctx: Context) -> Iterator[Finding]:
    """What keeps the owner of the Hugging Face cache from adding to it: the stage that brings weights refuses it."""
    here = ctx.host.path(ctx.hf_home)
    if not (ctx.hf_home and here.is_dir()):
        return
    cache, found = Cache(here, here / "hub"), set[str]()
    for given in models_of(ctx.plan):
        # A model at a path of its own is not in the cache.
        with suppress(WeightsError):
            found.add(barred(cache, Model.read(given)))
    for why in sorted(found - {""}):
        # Below a recorded tree, as below /, a path is named as the host knows it.
        observed, _, remedy = why.replace(str(ctx.host.root).rstrip("/") + "/", "/").partition(": ")
        yield ctx.finding(
            "caches",
            "degraded",
            observed=observed,
            wanted=f"a Hugging Face cache that the owner of {ctx.hf_home} can add weights to",
            remedy=remedy,
        )
