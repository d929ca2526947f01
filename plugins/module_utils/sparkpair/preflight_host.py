"""What preflight checks share: the host behind one injectable object, findings, thresholds, and cached observations."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .containers import CONTAINER, LABEL_RELEASE
from .memory import GIB, MARGIN
from .runner import Clock, Completed, Runner, run
from .weights import mounted_cache

Level = Literal["blocked", "degraded", "info"]
LEVELS: tuple[Level, ...] = ("blocked", "degraded", "info")
"""Worst first. ``blocked`` stops a deploy, ``degraded`` proceeds with a warning, ``info`` leaves the verdict alone."""
NOT_ASKED = "starts a container of the image, and was not asked for"
"""Why a check was skipped that only ``probe_image`` allows."""


class Skipped(Exception):  # noqa: N818 - an outcome of a check, not an error
    """A check does not apply, or cannot be judged; the message says why."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as wanted: what was observed, what is wanted, and what to do about it."""

    check: str
    level: Level
    rank: int
    observed: str
    wanted: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a module result."""
        return asdict(self)


@dataclass(frozen=True)
class Thresholds:
    """Numbers against which a host is judged. Sizes in bytes, times in seconds, link speeds in Mb/s.

    Defaults come from the published recipe for this pair: 0.87 of 121.69 GiB plus 1.5 GiB must be free before a start;
    the target's 120 shards hold 164 GiB and the draft 2.3 GiB; one 200G cable shows as two functions of 100 Gb/s.
    ``memory_bytes`` and ``bad_kernels`` override what the plan, respectively the list of known bad kernels, says.
    """

    gpu_name: str = "GB10"
    docker_min: str = "24.0"
    compose_min: str = "2.20"
    mtu_min: int = 9000
    speed_min_mbps: int = 100_000
    image_bytes: int = 40 * GIB
    weights_bytes: int = 164 * GIB
    draft_bytes: int = 3 * GIB
    release_bytes: int = 100 * 1024**2
    disk_margin_bytes: int = 5 * GIB
    memory_bytes: int = 0
    memory_margin_bytes: int = MARGIN
    swappiness_max: int = 10
    nofile_min: int = 65536
    name_lookup_seconds: float = 2.0
    clock_warn_seconds: float = 2.0
    clock_max_seconds: float = 60.0
    probe_seconds: float = 300.0
    self_check_seconds: float = 900.0
    bad_kernels: tuple[str, ...] = ("7.0.0-1019", "7.0.0-31")

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Thresholds:
        """Defaults with ``given`` on top. Raises ValueError for an unknown name, a wrong type or a negative number."""
        known = {f.name: f.default for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"threshold {name} does not exist; there are {', '.join(sorted(known))}")
            values[name] = _as_type(name, value, known[name])
        return cls(**values)


def _as_type(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise ValueError(f"threshold {name} is {value!r}, not a list of texts")
    if isinstance(default, str):
        return str(value)
    try:
        number = type(default)(value)
    except (TypeError, ValueError):
        raise ValueError(f"threshold {name} is {value!r}, not a number") from None
    if not 0 <= number < float("inf"):
        raise ValueError(f"threshold {name} is {value!r}, but must be at least 0 and finite")
    return number


def _free_bytes(path: str) -> int:
    seen = os.statvfs(path)
    return seen.f_bavail * seen.f_frsize


def _forward(name: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)})


def _reverse(address: str) -> str:
    return socket.gethostbyaddr(address)[0]


@dataclass(frozen=True)
class Host:
    """One Spark as the checks see it. Every field can be replaced, so that checks run on recorded trees.

    ``root`` is where /sys, /proc, /etc and the data directories are found. ``free_bytes``, ``device`` and ``writable``
    take a path below ``root``. ``forward`` gives IPv4 addresses of a name, ``reverse`` the name of an address; both
    raise OSError when there is none.
    """

    root: Path = Path("/")
    run: Runner = run
    wall: Clock = time.time
    monotonic: Clock = time.monotonic
    machine: Callable[[], str] = platform.machine
    euid: Callable[[], int] = os.geteuid
    free_bytes: Callable[[str], int] = _free_bytes
    device: Callable[[str], int] = lambda path: os.stat(path).st_dev  # noqa: PTH116 - a plain function of a path
    writable: Callable[[str], bool] = lambda path: os.access(path, os.W_OK | os.X_OK)
    forward: Callable[[str], list[str]] = _forward
    reverse: Callable[[str], str] = _reverse

    def path(self, name: str) -> Path:
        """The place of the absolute path ``name`` on this host."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Stripped content of a small file; None when it cannot be read (sysfs refuses to read empty GID rows)."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def names(self, name: str) -> list[str]:
        """Sorted entries of a directory; [] when there is none."""
        try:
            return sorted(os.listdir(self.path(name)))  # noqa: PTH208 - names, not paths
        except OSError:
            return []

    def link(self, name: str) -> str:
        """Target of a symbolic link as it is written; "" when it cannot be read."""
        try:
            return os.readlink(self.path(name))  # noqa: PTH115 - socket:[1] is no path
        except OSError:
            return ""

    def nearest(self, name: str) -> str:
        """The path itself, or its closest parent that exists."""
        here = self.path(name)
        while not here.exists() and here not in (self.root, here.parent):
            here = here.parent
        return str(here)

    def number(self, name: str) -> int | None:
        """Content of a file as a whole number, or None."""
        try:
            return int(self.read(name) or "")
        except ValueError:
            return None


@dataclass(frozen=True)
class Options:
    """What one call asks for, beside the plan.

    ``image`` replaces the plan's image reference. ``staged`` says that image and weights were put in place, so that
    their absence blocks instead of being reported. ``probe_image`` allows to start throw-away containers of the image.
    """

    wanted_architecture: str = "aarch64"
    root: str = "/opt/sparkpair"
    image: str = ""
    staged: bool = False
    probe_image: bool = False
    engine_flags: tuple[str, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)


def version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: v2.26.1-ds1 gives (2, 26, 1); () when it does not start with a number."""
    numbers: list[int] = []
    for part in text.strip().lstrip("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


@dataclass
class Context:
    """One rank being checked: the host, the plan, and observations that several checks share (each made once)."""

    host: Host
    plan: Mapping[str, Any]
    rank: Mapping[str, Any]
    options: Options
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of this call."""
        return self.options.thresholds

    @property
    def gpus(self) -> bool:
        """Whether the engine container gets GPUs."""
        return self.plan["container"].get("gpus") not in (None, "", "none", False)

    @property
    def rdma(self) -> bool:
        """Whether ranks talk over RDMA: only NCCL does, and it needs GPUs."""
        return self.gpus and bool(self.plan["container"].get("rdma"))

    @property
    def image(self) -> str:
        """The image reference that is looked at."""
        return str(self.options.image or self.plan["image"])

    @property
    def hf_home(self) -> str:
        """Hugging Face cache on this host, taken from the rank's mounts; "" when it has none."""
        return mounted_cache(self.rank)

    def setting(self, name: str) -> Any:
        """A resolved setting of the plan, or None."""
        return self.plan["settings"].get(name)

    def finding(self, check: str, level: Level, *, observed: str, wanted: str, remedy: str) -> Finding:
        """A finding about this rank."""
        return Finding(check, level, int(self.rank["rank"]), observed, wanted, remedy)

    @cached_property
    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes; nvidia-smi reports no memory on unified memory."""
        values: dict[str, int] = {}
        for line in (self.host.read("/proc/meminfo") or "").splitlines():
            key, _, rest = line.partition(":")
            parts = rest.split()
            if parts and parts[0].isdigit():
                values[key] = int(parts[0]) * (1024 if parts[-1] == "kB" else 1)
        return values

    @cached_property
    def docker(self) -> tuple[dict[str, Any], str]:
        """``docker info`` as data, and why it does not answer ("" when it does)."""
        done = self.host.run(["docker", "info", "--format", "{{json .}}"], timeout=30)
        info = load_json(done)
        errors = info.get("ServerErrors") or []
        if errors or not info.get("ServerVersion"):
            return {}, "; ".join(map(str, errors)) or done.why()
        return info, ""

    @cached_property
    def containers(self) -> dict[str, dict[str, Any]]:
        """Running containers by full id, as ``docker inspect`` gives them; {} without Docker."""
        ids = self.host.run(["docker", "ps", "-q", "--no-trunc"], timeout=30)
        if not ids.ok or not ids.out.split():
            return {}
        done = self.host.run(["docker", "inspect", "--type", "container", *ids.out.split()], timeout=30)
        # A container may end between the two calls; Docker then prints the others and exits with 1.
        with suppress(ValueError):
            return {raw["Id"]: raw for raw in json.loads(done.out or "[]")}
        return {}

    @cached_property
    def image_data(self) -> dict[str, Any]:
        """``docker image inspect`` of the image; {} when it is absent."""
        return self._inspected(self.image)

    @property
    def source(self) -> str:
        """The reference that the image comes from: the image's own, or another one when the ranks rename it."""
        return self.image if self.options.image else str(self.setting("image") or self.image)

    @cached_property
    def source_data(self) -> dict[str, Any]:
        """``docker image inspect`` of what the image comes from; {} when it is absent."""
        return self.image_data if self.source == self.image else self._inspected(self.source)

    def _inspected(self, reference: str) -> dict[str, Any]:
        done = self.host.run(["docker", "image", "inspect", reference], timeout=30)
        with suppress(ValueError):
            found = json.loads(done.out or "[]")
            return dict(found[0]) if done.ok and found else {}
        return {}

    @cached_property
    def interfaces(self) -> dict[str, list[str]]:
        """IPv4 addresses (without prefix) by interface name, as iproute2 reports them."""
        done = self.host.run(["ip", "-j", "-4", "addr", "show"], timeout=30)
        with suppress(ValueError):
            return {
                entry["ifname"]: [a["local"] for a in entry.get("addr_info", []) if a.get("family") == "inet"]
                for entry in json.loads(done.out or "[]")
                if "ifname" in entry
            }
        return {}

    def container_of(self, pid: int | str) -> dict[str, Any] | None:
        """The running container that a process belongs to, by its control group; None for a process of the host."""
        groups = self.host.read(f"/proc/{pid}/cgroup") or ""
        return next((c for identity, c in self.containers.items() if identity in groups), None)


def ours(container: Mapping[str, Any]) -> bool:
    """Tell whether a container is an engine of this project, of whatever release."""
    labels = container.get("Config", {}).get("Labels") or {}
    return LABEL_RELEASE in labels or container_name(container) == CONTAINER


def container_name(container: Mapping[str, Any]) -> str:
    """Name of a container without Docker's leading slash."""
    return str(container.get("Name", "")).lstrip("/")


def load_json(done: Completed) -> dict[str, Any]:
    """Output of a command as a JSON object; {} when it is none."""
    try:
        data = json.loads(done.out)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
