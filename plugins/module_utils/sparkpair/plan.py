"""The plan: the whole wanted state of the pair as plain data, computed before any host is touched.

Pure Python, no Ansible. ``build_plan`` takes resolved settings and the ranks, applies every rule that spans settings,
and returns the plan of ``docs/architecture.md``. All problems are raised together as ``Refused``.

The release id covers what reaches a rank: image, overlays, container, Ray, and per rank the address, environment,
arguments and mounts, plus a fingerprint of the API key. It leaves out inventory host names, origins, and settings that
only the controller uses (ready_timeout, spark_warmup, spark_warmup_timeout): they change no file on a rank.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from .overlay_manifest import overlay_digest
from .settings import (
    ABOUT,
    READY_TIMEOUT_MAX,
    Given,
    Problem,
    Refused,
    Resolved,
    Settings,
    Text,
    Whole,
    problem,
    public,
    shown,
)

SCHEMA = 1
RELEASE_DIGITS = 12
HF_HOME = "/root/.cache/huggingface"
BASE_CAPTURE_SIZES = (1, 2, 4, 8, 16, 24, 32)
OTHER_CAPTURE_SIZES = (1, 2, 3, 4, 6, 8, 12)
MIN_RANKS = 2
SCHEDULE_ENTRY_ITEMS = 3

GID_VARIABLE = "NCCL_IB_GID_INDEX"
RANK_ENVIRONMENT = frozenset(
    {
        "VLLM_HOST_IP",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "NCCL_IB_HCA",
        GID_VARIABLE,
    }
)
"""Environment variables in which ranks may differ: host address, interface, HCA, GID index."""

RANK_ARGUMENTS = frozenset({"--node-rank", "--headless"})
"""Arguments in which ranks may differ."""

RANK_FIELDS = frozenset({"rank", "host", "role", "address", "interface", "rdma_devices", "gid_index", "headless"})
"""Keys of a rank in the plan that describe the rank itself."""

RANK_KEYS = RANK_ENVIRONMENT | RANK_ARGUMENTS | RANK_FIELDS
"""Everything in which ranks may differ. Mount sources may differ too: home directories belong to a host."""


class Mount(BaseModel):
    """A bind mount of the engine container: ``source`` on the host, ``target`` in the container."""

    model_config = ConfigDict(frozen=True)
    source: str
    target: str
    read_only: bool


class Rank(BaseModel):
    """One rank of the plan; ``arguments`` is what follows ``vllm serve`` (empty for a Ray worker)."""

    model_config = ConfigDict(frozen=True)
    rank: int
    host: str
    role: str
    address: str
    interface: str
    rdma_devices: list[str]
    gid_index: int | None
    headless: bool
    environment: dict[str, str]
    arguments: list[str]
    mounts: list[Mount]


class Overlay(BaseModel):
    """An overlay by name, with the digest of its folder."""

    model_config = ConfigDict(frozen=True)
    name: str
    digest: str


class Plan(BaseModel):
    """The plan as ``docs/architecture.md`` shows it. ``to_json`` gives its plain form; it holds no secret."""

    model_config = ConfigDict(frozen=True)
    schema_version: int
    release: str
    verify_tokens: int
    dflash_tokens: int
    spec_method: str
    structured_width: str
    expected_width: int | None
    executor: str
    image: str
    image_inputs: str
    package_root: str
    served_model_name: str
    port: int
    max_num_seqs: int
    max_model_len: int
    endpoint: str
    api_key_set: bool
    capture_sizes: list[int] | None
    speculative_config: dict[str, Any] | None
    overlays: list[Overlay]
    layout: str
    ray: dict[str, int]
    container: dict[str, Any]
    settings: dict[str, Any]
    ranks: list[Rank]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; the field ``schema_version`` is the key ``schema``."""
        data = self.model_dump(mode="json")
        return {"schema": data.pop("schema_version"), **data}


@dataclass(frozen=True)
class RankInput:
    """One rank as the inventory describes it (see ``read_ranks``)."""

    host: str
    rank: int
    address: str
    interface: str
    hf_home: str
    cache_dir: str
    rdma_devices: tuple[str, ...] = ()
    gid_index: int | None = None


def canonical(data: Any) -> str:
    """Compact JSON with sorted keys: equal data gives equal bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def find_overlays(root: Path) -> dict[str, str]:
    """Name to digest for every overlay folder (one with a file in it) below ``root``; empty when there is none."""
    if not root.is_dir():
        return {}
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
    return {p.name: overlay_digest(p) for p in folders if any(f.is_file() for f in p.rglob("*"))}


# --- ranks -----------------------------------------------------------------------------------------------------------

INTERFACE = Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", "an interface name of at most 15 characters")
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
HOST_PATH = Text(r"/[A-Za-z0-9_./@+-]+", "an absolute path of letters, digits and _ . / @ + -")
RANK_NUMBER = Whole(0, 63)
GID_INDEX = Whole(0, 255)
ADDRESS_WORDS = "an IPv4 address of this rank on the fabric, different on every rank"
DEVICES_WORDS = "a list (or comma-separated text) of RDMA device names such as rocep1s0f1"
DEFAULT_CACHE_DIR = "/var/cache/sparkpair"
RANK_VARIABLES = (
    "spark_rank",
    "spark_fabric_address",
    "spark_fabric_interface",
    "spark_rdma_devices",
    "spark_gid_index",
    "spark_hf_home",
    "spark_cache_dir",
)
"""Inventory variables that describe one rank."""


def _address(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not an IPv4 address")  # noqa: TRY004
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("is not an IPv4 address") from None
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        raise ValueError("cannot be reached from another rank")
    return str(address)


def _devices(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError("is not a list of device names")
    for item in items:
        if not isinstance(item, str) or not DEVICE.fullmatch(item):
            raise ValueError(f"holds {shown(item)}, which is not a device name")
    if len(set(items)) != len(items):
        raise ValueError("names a device twice")
    return tuple(items)


def read_ranks(hosts: Mapping[str, Mapping[str, Any]], *, rdma: bool) -> tuple[list[RankInput], list[Problem]]:
    """Read the ranks from inventory variables (``RANK_VARIABLES``) by host name.

    Device names and GID index are read with ``rdma`` only, and the index may be left out: NCCL then picks the row
    itself. Returns the ranks that could be read, in rank order, and all problems: a missing or malformed variable, a
    gap or duplicate among rank numbers, a shared address.
    """
    problems: list[Problem] = []
    readers: dict[str, tuple[Any, str]] = {
        "spark_rank": (RANK_NUMBER.parse, RANK_NUMBER.allowed + ", without gaps or duplicates"),
        "spark_fabric_address": (_address, ADDRESS_WORDS),
        "spark_fabric_interface": (INTERFACE.parse, INTERFACE.allowed),
        "spark_hf_home": (HOST_PATH.parse, HOST_PATH.allowed),
        "spark_cache_dir": (HOST_PATH.parse, HOST_PATH.allowed),
    }
    if rdma:
        readers["spark_rdma_devices"] = (_devices, DEVICES_WORDS)
        readers["spark_gid_index"] = (GID_INDEX.parse, GID_INDEX.allowed)
    read: list[tuple[str, dict[str, Any]]] = []
    for host, variables in sorted(hosts.items()):
        values: dict[str, Any] = {}
        for name, (parse, allowed) in readers.items():
            raw = variables.get(name, DEFAULT_CACHE_DIR if name == "spark_cache_dir" else None)
            if raw is None and name == "spark_gid_index":
                values[name] = None
                continue
            if raw is None:
                problems.append(Problem(name, "nothing", f"inventory (host {host})", allowed, "is not set"))
                continue
            try:
                values[name] = parse(raw)
            except ValueError as error:
                problems.append(Problem(name, shown(raw), f"inventory (host {host})", allowed, str(error)))
        read.append((host, values))
    problems += _rank_set_problems(read)
    ranks = [
        RankInput(
            host=host,
            rank=v["spark_rank"],
            address=v["spark_fabric_address"],
            interface=v["spark_fabric_interface"],
            hf_home=v["spark_hf_home"],
            cache_dir=v["spark_cache_dir"].rstrip("/"),
            rdma_devices=v.get("spark_rdma_devices", ()),
            gid_index=v.get("spark_gid_index"),
        )
        for host, v in read
        if set(v) == set(readers)
    ]
    return sorted(ranks, key=lambda r: r.rank), problems


def _rank_set_problems(read: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Problem]:
    problems = []
    for name, allowed in (
        ("spark_rank", "0 to the number of ranks minus 1, each once"),
        ("spark_fabric_address", ADDRESS_WORDS),
    ):
        owners: dict[Any, list[str]] = {}
        for host, values in read:
            if name in values:
                owners.setdefault(values[name], []).append(host)
        for value, hosts in owners.items():
            if len(hosts) > 1:
                where = f"inventory (hosts {', '.join(hosts)})"
                problems.append(Problem(name, shown(value), where, allowed, "is used by more than one host"))
        if name == "spark_rank" and len(owners) == len(read) and sorted(owners) != list(range(len(read))):
            given = ", ".join(str(n) for n in sorted(owners))
            where = f"inventory (hosts {', '.join(h for h, _ in read)})"
            problems.append(Problem(name, given, where, allowed, "leaves a gap (is a host missing from this play?)"))
    if len(read) < MIN_RANKS:
        where = f"inventory (hosts {', '.join(h for h, _ in read) or 'none'})"
        reason = "is too few for a pair (does --limit leave a rank out?)"
        problems.append(Problem("spark_rank", f"{len(read)} host", where, "at least 2 hosts in the play", reason))
    return problems


# --- speculation -----------------------------------------------------------------------------------------------------


def schedule_problems(schedule: object, num_speculative_tokens: int) -> list[str]:
    """Say what is wrong with a ``num_speculative_tokens_per_batch_size`` schedule; empty when nothing is.

    vLLM checks these rules only when its scheduler is built, after the weights have loaded. Two are stricter here: an
    empty list (vLLM takes it as off in one place and on in another), and a count above ``num_speculative_tokens``
    (vLLM lowers it silently).
    """
    if not isinstance(schedule, list | tuple) or not schedule:
        return ["the schedule must be a non-empty list of [first batch size, last batch size, tokens]"]
    found: list[str] = []
    entries: list[tuple[int, int, int]] = []
    for entry in schedule:
        if (
            not isinstance(entry, list | tuple)
            or len(entry) != SCHEDULE_ENTRY_ITEMS
            or any(isinstance(item, bool) or not isinstance(item, int) for item in entry)
        ):
            found.append(f"{shown(entry)} must be three whole numbers")
            continue
        first, last, tokens = entry
        if first < 1 or last < 1:
            found.append(f"{shown(entry)}: batch sizes must be positive")
        elif first > last:
            found.append(f"{shown(entry)}: the first batch size must not be above the last")
        if tokens < 0:
            found.append(f"{shown(entry)}: tokens must not be negative")
        elif tokens > num_speculative_tokens:
            found.append(f"{shown(entry)}: tokens must not be above num_speculative_tokens ({num_speculative_tokens})")
        entries.append((first, last, tokens))
    if found:
        return found
    entries.sort()
    if entries[0][0] != 1:
        found.append("the first range must start at batch size 1")
    for (_, last, _), (first, _, _) in pairwise(entries):
        if first <= last:
            found.append(f"the ranges that end at {last} and start at {first} overlap")
    return found


def snapshot(repository: str, revision: str, cache_name: str) -> str:
    """Path inside the container of a repository's snapshot in the Hugging Face cache."""
    folder = cache_name or "models--" + repository.replace("/", "--")
    return f"{HF_HOME}/hub/{folder}/snapshots/{revision}"


def speculative_config(settings: Settings) -> dict[str, Any] | None:
    """Build vLLM's speculative config, keys in the recipe's order; None without speculation."""
    if settings.spec_method == "mtp" and settings.mtp_tokens > 0:
        return {"method": "mtp", "num_speculative_tokens": settings.mtp_tokens}
    if settings.spec_method != "dflash":
        return None
    config: dict[str, Any] = {
        "method": "dflash",
        "model": snapshot(settings.dflash_model, settings.dflash_revision, settings.dflash_cache_name),
        "num_speculative_tokens": settings.dflash_tokens,
        "kv_cache_dtype": "auto",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
    }
    if settings.dflash_draft_tp is not None:
        config["draft_tensor_parallel_size"] = settings.dflash_draft_tp
    if settings.verify_tokens > 0:
        config["num_speculative_tokens_per_batch_size"] = [[1, settings.max_num_seqs, settings.verify_tokens]]
    return config


def capture_sizes(settings: Settings) -> list[int] | None:
    """Sizes of the CUDA graphs, or None when the operator enforces eager mode or passes a list of his own."""
    if settings.enforce_eager or own_capture_list(settings.extra_args):
        return None
    if settings.spec_method != "dflash":
        return list(OTHER_CAPTURE_SIZES)
    rows = (settings.verify_tokens or settings.dflash_tokens) + 1
    return sorted({*BASE_CAPTURE_SIZES, *(rows * count for count in range(1, settings.max_num_seqs + 1))})


# --- the operator's own arguments ------------------------------------------------------------------------------------

OWNED_FLAGS: dict[str, str] = {
    "--model": "model",
    "--revision": "model_revision",
    "--served-model-name": "served_model_name",
    "--port": "port",
    "--tensor-parallel-size": "the number of hosts in the inventory",
    "--pipeline-parallel-size": "the number of hosts in the inventory",
    "--data-parallel-size": "nothing (a pair serves one replica)",
    "--nnodes": "the number of hosts in the inventory",
    "--node-rank": "spark_rank",
    "--master-addr": "spark_fabric_address",
    "--master-port": "master_port",
    "--distributed-executor-backend": "executor",
    "--headless": "executor and spark_rank",
    "--tool-call-parser": "tool_call_parser",
    "--enable-auto-tool-choice": "tool_call_parser",
    "--reasoning-parser": "reasoning_parser",
    "--enforce-eager": "enforce_eager",
    "--quantization": "quantization",
    "--load-format": "load_format",
    "--max-model-len": "max_model_len",
    "--gpu-memory-utilization": "gpu_mem_util",
    "--device-memory-utilization": "gpu_mem_util",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--speculative-config": "spec_method, dflash_tokens and verify_tokens",
    "--spec-method": "spec_method",
    "--spec-model": "dflash_model",
    "--spec-tokens": "dflash_tokens or mtp_tokens",
    "--chat-template": "chat_template",
    "--language-model-only": "language_model_only",
    "--limit-mm-per-prompt": "limit_mm",
    "--skip-mm-profiling": "skip_mm_profiling",
    "--api-key": "api_key (a key in the arguments shows in the process list)",
    "--hf-token": "nothing (the engine runs offline)",
    "--config": "extra_args (a file would hide arguments from the plan)",
    "--host": "nothing (the API listens on every address of the head)",
}
"""Flags that the plan writes itself, and the setting to use instead."""

CAPTURE_FLAGS = ("--cudagraph-capture-sizes", "--max-cudagraph-capture-size")
COMPILATION_FLAG = "--compilation-config"
SHORT_FLAGS = ("-O", "-cc", "-ac", "-ep")
CAPTURE_KEYS = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")


@dataclass(frozen=True)
class Argument:
    """One option of an argument list: as ``written``, its canonical ``flag``, dotted ``path`` and ``value``."""

    written: str
    flag: str
    path: str
    value: str


def options(arguments: Sequence[str]) -> list[Argument]:
    """Options in ``arguments`` as vLLM's parser reads them: ``--a_b`` is ``--a-b``, ``--a.b`` sets a key of ``--a``."""
    found = []
    for index, item in enumerate(arguments):
        if not re.match(r"-(-|[A-Za-z])", item):
            continue
        written, joined, value = item.partition("=")
        flag, _, path = written.partition(".")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
            if flag.startswith("--no-"):
                flag = "--" + flag.removeprefix("--no-")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        found.append(Argument(item, flag, path.rstrip("+"), value if joined else following))
    return found


def _is_compilation(option: Argument) -> bool:
    # -O took the compilation config before it became the optimisation level.
    short = option.flag in ("-cc", "-O")
    return short or (len(option.flag) > len("--com") and COMPILATION_FLAG.startswith(option.flag))


def own_capture_list(arguments: Sequence[str]) -> bool:
    """Tell whether the operator's arguments set the capture sizes, in any spelling that vLLM accepts."""
    for option in options(arguments):
        if len(option.flag) > len("--cudagraph-") and CAPTURE_FLAGS[0].startswith(option.flag):
            return True
        if len(option.flag) > len("--max-c") and CAPTURE_FLAGS[1].startswith(option.flag):
            return True
        if _is_compilation(option):
            if option.path.split(".")[0] in CAPTURE_KEYS:
                return True
            try:
                config = json.loads(option.value) if not option.path else {}
            except (json.JSONDecodeError, RecursionError):
                config = {}
            if isinstance(config, dict) and any(key in config for key in CAPTURE_KEYS):
                return True
    return False


def argument_problems(arguments: Sequence[str]) -> list[str]:
    """Say which of the operator's arguments contradict the plan.

    vLLM's parser accepts any unambiguous beginning of a flag, so every beginning of an owned flag is refused as well;
    none of them is a flag of its own. Of the short forms only ``-O``, ``-cc``, ``-ac`` and ``-ep`` pass, because
    argparse also reads ``-n2`` and ``-t 2`` as options that the plan owns.
    """
    found = []
    if arguments and not arguments[0].startswith("-"):
        found.append(f"starts with {shown(arguments[0])}, which belongs to no flag")
    for option in options(arguments):
        if option.flag == "--":
            found.append("holds '--', which would turn every later flag into a positional argument")
        elif not option.flag.startswith("--"):
            if not option.flag.startswith(SHORT_FLAGS):
                found.append(f"holds the short form {shown(option.written)}; write the flag in full")
        else:
            owned = [name for name in OWNED_FLAGS if name == option.flag or name.startswith(option.flag)]
            owned += [name for name in ("--data-parallel-size",) if option.flag.startswith("--data-parallel")]
            if owned:
                best = option.flag if option.flag in OWNED_FLAGS else owned[0]
                hidden = option.written.partition("=")[0]
                found.append(f"holds {hidden}, which the plan sets itself; use {OWNED_FLAGS[best]}")
    return found


# --- environment -----------------------------------------------------------------------------------------------------

RESERVED_ENVIRONMENT = RANK_ENVIRONMENT | {
    "DFLASH_VERIFY_TOKENS",
    "SPARKPAIR_STRUCTURED_WIDTH",
    "VLLM_API_KEY",
    "VLLM_HOST_PORT",
    "VLLM_CONFIG_ROOT",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_CACHE_ROOT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_TOKEN",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "TRITON_CACHE_DIR",
    "TILELANG_CACHE_DIR",
    "RAY_memory_monitor_refresh_ms",
    "RAY_worker_niceness",
    "PATH",
    "LD_LIBRARY_PATH",
}
"""Variables that the plan sets, or whose change would break the pair; extra_env may not set them."""

# Compose reads the release's env file for itself too, so its own switches must not stand there.
RESERVED_PREFIXES = ("SPARKPAIR_", "MASTER_", "LOCAL_RANK", "COMPOSE_", "DOCKER_")


def environment_problems(names: Iterable[str]) -> list[str]:
    """Say which names ``extra_env`` may not set.

    Ray's switches in capitals (RAY_ADDRESS, RAY_AUTH_MODE, ...) decide how ranks find and trust each other, so all of
    them are reserved; its lower-case tuning flags are free unless the plan sets them.
    """
    by_setting = {about.key: name for name, about in ABOUT.items()}
    found = []
    for name in names:
        ray_switch = name.startswith("RAY_") and name[4:5].isupper()
        if name in by_setting:
            found.append(f"holds {name}; use the setting {by_setting[name]}")
        elif name in RESERVED_ENVIRONMENT or ray_switch or name.startswith(RESERVED_PREFIXES):
            found.append(f"holds {name}, which the plan reserves")
    return found


def rank_environment(settings: Settings, rank: RankInput) -> dict[str, str]:
    """Environment of the engine container on one rank, sorted by name; without secrets."""
    gpu = settings.gpus == "all"
    env = {
        "DO_NOT_TRACK": "1",
        "GLOO_SOCKET_IFNAME": rank.interface,
        "HF_HOME": HF_HOME,
        "HF_HUB_OFFLINE": "1",
        "NCCL_SOCKET_IFNAME": rank.interface,
        "TILELANG_CACHE_DIR": "/root/.tilelang/cache",
        "TP_SOCKET_IFNAME": rank.interface,
        "TRANSFORMERS_OFFLINE": "1",
        "TRITON_CACHE_DIR": "/root/.triton/cache",
        "UCX_NET_DEVICES": rank.interface,
        "VLLM_CACHE_ROOT": "/root/.cache/vllm",
        # The longest ready_timeout: the controller's deadline decides, and changing it restarts nothing.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_MAX),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(settings.execute_model_timeout),
        "VLLM_HOST_IP": rank.address,
        "VLLM_NO_USAGE_STATS": "1",
        "EXL3_FUSED_MOE": str(int(settings.exl3_fused_moe)),
        "GLM53_MIXED_PREFILL_CHUNK": settings.glm53_mixed_prefill_chunk,
        "GLM53_SUPPRESS_STOPS_IN_REASONING": str(int(settings.glm53_suppress_stops_in_reasoning)),
    }
    if settings.executor == "ray":
        env |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": "/run/sparkpair/ray_token",
            "RAY_USAGE_STATS_ENABLED": "0",
            # On shared memory the monitor takes the loading weights for a leak and kills the worker.
            "RAY_memory_monitor_refresh_ms": "0",
            # Ray runs its workers at nice 15, and here a worker is the engine.
            "RAY_worker_niceness": "0",
        }
    if gpu:
        env |= {
            "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
            "NCCL_CROSS_NIC": str(settings.nccl_cross_nic),
            "NCCL_CUMEM_ENABLE": "0",
            "NCCL_DEBUG": settings.nccl_debug,
            "NCCL_IB_DISABLE": str(int(not settings.rdma)),
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "NCCL_NET_PLUGIN": "none",
            "NCCL_NVLS_ENABLE": "0",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "TORCH_CUDA_ARCH_LIST": "12.1a",
        }
    if gpu and settings.rdma:
        env |= {
            # Without a pin NCCL (2.21 and later) takes the row of an IPv4 address and this RoCE version.
            **({} if rank.gid_index is None else {GID_VARIABLE: str(rank.gid_index)}),
            "NCCL_IB_HCA": ",".join(rank.rdma_devices),
            "NCCL_IB_MERGE_NICS": "0",
            "NCCL_IB_ROCE_VERSION_NUM": "2",
            "NCCL_NET": "IB",
        }
    if settings.verify_tokens > 0:
        env["DFLASH_VERIFY_TOKENS"] = str(settings.verify_tokens)
        env["SPARKPAIR_STRUCTURED_WIDTH"] = settings.structured_width
    return dict(sorted({**settings.extra_env, **env}.items()))


# --- arguments and mounts --------------------------------------------------------------------------------------------


def _engine_arguments(settings: Settings) -> list[str]:
    optional = (("--quantization", settings.quantization), ("--load-format", settings.load_format))
    args = ["--enforce-eager"] if settings.enforce_eager else []
    for flag, value in optional:
        args += [flag, value] if value else []
    args += ["--max-model-len", str(settings.max_model_len)]
    args += ["--gpu-memory-utilization", repr(settings.gpu_mem_util)]
    args += ["--max-num-seqs", str(settings.max_num_seqs)]
    args += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    args += ["--kv-cache-dtype", settings.kv_cache_dtype]
    if (config := speculative_config(settings)) is not None:
        args += ["--speculative-config", json.dumps(config, separators=(",", ":"))]
    return args


def _prompt_arguments(settings: Settings) -> list[str]:
    args = ["--chat-template", settings.chat_template] if settings.chat_template else []
    if settings.language_model_only:
        return [*args, "--language-model-only"]
    if settings.limit_mm:
        args += ["--limit-mm-per-prompt", canonical(settings.limit_mm)]
    if settings.skip_mm_profiling:
        args.append("--skip-mm-profiling")
    return args


def rank_arguments(settings: Settings, rank: int, ranks: Sequence[RankInput]) -> list[str]:
    """Arguments of ``vllm serve`` on one rank; empty for a Ray worker, which runs no vllm."""
    if settings.executor == "ray" and rank > 0:
        return []
    args = [snapshot(settings.model, settings.model_revision, settings.model_cache_name)]
    args += ["--served-model-name", settings.served_model_name]
    args += ["--host", "0.0.0.0", "--port", str(settings.port)]  # noqa: S104 - clients come in over the LAN
    args += ["--tensor-parallel-size", str(len(ranks))]
    if settings.executor == "mp":
        args += ["--nnodes", str(len(ranks)), "--node-rank", str(rank)]
        args += ["--master-addr", ranks[0].address, "--master-port", str(settings.master_port)]
    args += ["--distributed-executor-backend", settings.executor]
    if settings.executor == "mp" and rank > 0:
        args.append("--headless")
    if settings.tool_call_parser:
        args += ["--tool-call-parser", settings.tool_call_parser, "--enable-auto-tool-choice"]
    if settings.reasoning_parser:
        args += ["--reasoning-parser", settings.reasoning_parser]
    args += ["--enable-prefix-caching", "--no-enable-flashinfer-autotune"]
    args += _engine_arguments(settings) + _prompt_arguments(settings)
    if (sizes := capture_sizes(settings)) is not None:
        args += ["--cudagraph-capture-sizes", *(str(size) for size in sizes)]
    return args + list(settings.extra_args)


def rank_mounts(rank: RankInput) -> list[Mount]:
    """Mounts of one rank: weights read-only, compile caches writable so that a restart does not compile again."""
    return [
        Mount(source=rank.hf_home, target=HF_HOME, read_only=True),
        Mount(source=f"{rank.cache_dir}/vllm", target="/root/.cache/vllm", read_only=False),
        Mount(source=f"{rank.cache_dir}/triton", target="/root/.triton/cache", read_only=False),
        Mount(source=f"{rank.cache_dir}/tilelang", target="/root/.tilelang/cache", read_only=False),
    ]


# --- rules that span settings ----------------------------------------------------------------------------------------


def rule_problems(resolved: Resolved, rank_count: int) -> list[Problem]:
    """Apply the rules that span settings. A rule is skipped when one of its settings was already refused."""
    s, found = resolved.settings, list[Problem]()

    def refuse(reason: str, name: str, *others: str, allowed: str = "") -> None:
        if resolved.invalid.isdisjoint({name, *others}):
            value = getattr(s, name)
            origin = "; ".join(
                [resolved.origins[name], *(f"{o} = {shown(getattr(s, o))} from {resolved.origins[o]}" for o in others)]
            )
            base = problem(name, Given(list(value) if isinstance(value, tuple) else value, origin), reason)
            found.append(Problem(base.setting, base.given, base.origin, allowed or base.allowed, base.reason))

    if s.verify_tokens > 0 and s.spec_method != "dflash":
        refuse(
            f"needs spec_method dflash, not {s.spec_method}",
            "verify_tokens",
            "spec_method",
            allowed=f"0 with spec_method {s.spec_method}",
        )
    elif s.verify_tokens > s.dflash_tokens:
        refuse(
            f"is above dflash_tokens ({s.dflash_tokens})",
            "verify_tokens",
            "dflash_tokens",
            allowed="0, 1, 3 or 7, and not above dflash_tokens",
        )
    elif s.verify_tokens > 0:
        schedule = [[1, s.max_num_seqs, s.verify_tokens]]
        for reason in schedule_problems(schedule, s.dflash_tokens):
            refuse(reason, "verify_tokens", "dflash_tokens", "max_num_seqs")
    if s.spec_method == "dflash" and s.dflash_draft_tp not in (None, 1, rank_count) and rank_count >= MIN_RANKS:
        refuse(
            "is neither 1 nor the number of ranks",
            "dflash_draft_tp",
            "spec_method",
            allowed=f"1, {rank_count} or empty",
        )
    if s.max_num_batched_tokens < s.max_num_seqs:
        refuse(
            f"is below max_num_seqs ({s.max_num_seqs})",
            "max_num_batched_tokens",
            "max_num_seqs",
            allowed="at least max_num_seqs",
        )
    other = "ray_port" if s.executor == "ray" else "master_port"
    if s.port == getattr(s, other):
        refuse(f"is also {other}", "port", other, "executor", allowed=f"a port other than {other}")
    if s.registry_user and not s.registry_password_file:
        refuse(
            "is empty, and registry_user is set",
            "registry_password_file",
            "registry_user",
            allowed="a file on the controller, mode 0600, with the account's password or token",
        )
    for reason in argument_problems(s.extra_args):
        refuse(reason, "extra_args", allowed="arguments that the plan does not set itself")
    for reason in environment_problems(s.extra_env):
        refuse(reason, "extra_env", allowed="variables that the plan does not set itself")
    return found


def fit_stock(resolved: Resolved, rank_count: int) -> Resolved:
    """For a stock plan, replace a draft size that this number of ranks cannot have; any other plan stays as it is."""
    size = resolved.settings.dflash_draft_tp
    if not resolved.stock or size in (None, 1, rank_count):
        return resolved
    note = f"dflash_draft_tp = {size} from {resolved.origins['dflash_draft_tp']} does not fit {rank_count} ranks"
    return replace(
        resolved,
        settings=resolved.settings.model_copy(update={"dflash_draft_tp": 1}),
        origins={**resolved.origins, "dflash_draft_tp": "default"},
        notes=(*resolved.notes, f"{note}; the stock plan uses the default"),
    )


# --- the image ---


def engine_image(settings: Settings, recipe: str) -> tuple[str, str]:
    """Name under which every rank starts the engine image, and the hash of what it is made of ("" for its own name).

    An image that is pinned by digest, or that must hold a pinned Ray, gets a local name that carries that hash: a
    digest names nothing on a rank that did not pull it, and a built image has no registry. ``recipe`` is the digest of
    the build files of the pinned Ray.
    """
    ray = settings.ray_version if settings.executor == "ray" else ""
    if not ray and "@" not in settings.image:
        return settings.image, ""
    made_of = {"image": settings.image, "ray": ray, "recipe": recipe if ray else ""}
    inputs = hashlib.sha256(canonical(made_of).encode()).hexdigest()
    return f"sparkpair/engine:{inputs[:RELEASE_DIGITS]}", inputs


# --- the plan --------------------------------------------------------------------------------------------------------


def _unknown_ray(resolved: Resolved, recipes: Mapping[str, str] | None) -> list[Problem]:
    s = resolved.settings
    if recipes is None or s.executor != "ray" or not s.ray_version or s.ray_version in recipes:
        return []
    if not resolved.invalid.isdisjoint({"ray_version", "executor"}):
        return []
    base = problem("ray_version", Given(s.ray_version, resolved.origins["ray_version"]), "has no requirements file")
    known = " or ".join(sorted(recipes)) or "none"
    return [Problem(base.setting, base.given, base.origin, f"{known}, or empty", base.reason)]


def expected_width(settings: Settings) -> int | None:
    """Draft tokens per step in ordinary traffic; None without speculation."""
    config = speculative_config(settings)
    return None if config is None else settings.verify_tokens or int(config["num_speculative_tokens"])


def release_document(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a plan (plain JSON form) that reaches a rank: equal release ids have equal documents.

    Render files from this, never from the whole plan, or a change that restarts nothing would damage a release.
    """
    left_out = {"release", "settings", "endpoint", "ranks", "structured_width"}
    document = {key: value for key, value in plan.items() if key not in left_out}
    # With the stock width no rank reads it.
    document["structured_width"] = plan["structured_width"] if plan["verify_tokens"] else None
    document["ranks"] = [{k: v for k, v in rank.items() if k != "host"} for rank in plan["ranks"]]
    return document


def key_fingerprint(key: str) -> str:
    """Slow one-way fingerprint of the API key (scrypt), so that a release id does not help to guess the key."""
    return hashlib.scrypt(key.encode(), salt=b"sparkpair release", n=2**14, r=8, p=1, dklen=32).hex()


def release_id(plan: Mapping[str, Any], api_key: str) -> str:
    """First 12 hex digits of the sha256 of everything that reaches a rank. The key's fingerprint is stored nowhere."""
    fingerprint = key_fingerprint(api_key) if api_key else ""
    text = canonical({"document": release_document(plan), "api_key": fingerprint})
    return hashlib.sha256(text.encode()).hexdigest()[:RELEASE_DIGITS]


def build_plan(
    resolved: Resolved,
    ranks: Sequence[RankInput],
    overlays: Mapping[str, str] | None = None,
    problems: Iterable[Problem] = (),
    layout: str = "",
    *,
    ray_recipes: Mapping[str, str] | None = None,
) -> Plan:
    """Build the plan.

    ``ranks`` come from ``read_ranks``; ``overlays`` maps the name of every overlay of this checkout to the digest of
    its folder, and is used with a verify width only. ``problems`` are earlier findings (files, ranks) to report along.
    ``layout`` is a digest of the templates and scripts that a release is made of, so that a change of theirs is a new
    release. ``ray_recipes`` maps each version of Ray that this checkout can build an image with to the digest of its
    build files; None allows every version.

    Raises ``Refused`` with every problem when there is any.
    """
    found = [*problems, *resolved.problems, *rule_problems(resolved, len(ranks))]
    s = resolved.settings
    found += _unknown_ray(resolved, ray_recipes)
    if found:
        raise Refused(found)
    image, image_inputs = engine_image(s, (ray_recipes or {}).get(s.ray_version, ""))
    ordered = sorted(ranks, key=lambda r: r.rank)
    rdma = uses_rdma(s)
    api_key = s.api_key.get_secret_value()
    plan = Plan(
        schema_version=SCHEMA,
        release="",
        verify_tokens=s.verify_tokens,
        dflash_tokens=s.dflash_tokens,
        spec_method=s.spec_method,
        structured_width=s.structured_width,
        expected_width=expected_width(s),
        executor=s.executor,
        image=image,
        image_inputs=image_inputs,
        package_root=s.package_root,
        served_model_name=s.served_model_name,
        port=s.port,
        max_num_seqs=s.max_num_seqs,
        max_model_len=s.max_model_len,
        endpoint=f"http://{ordered[0].address}:{s.port}",
        api_key_set=bool(api_key),
        capture_sizes=capture_sizes(s),
        speculative_config=speculative_config(s),
        overlays=[Overlay(name=n, digest=d) for n, d in sorted((overlays or {}).items())] if s.verify_tokens else [],
        layout=layout,
        ray={
            "port": s.ray_port,
            "object_store_bytes": s.ray_object_store_bytes,
            "num_gpus": 1,
            "join_timeout": s.ray_join_timeout,
        },
        container={
            "gpus": s.gpus,
            "rdma": s.rdma,
            "shm_size": s.shm_size,
            "stop_grace": s.stop_grace,
            "memory_share": s.gpu_mem_util if s.gpus == "all" else 0.0,
            "log_max_size": s.log_max_size,
            "log_max_files": s.log_max_files,
        },
        settings=public(s),
        ranks=[
            Rank(
                rank=r.rank,
                host=r.host,
                role="head" if r.rank == 0 else "worker",
                address=r.address,
                interface=r.interface,
                rdma_devices=list(r.rdma_devices) if rdma else [],
                gid_index=r.gid_index if rdma else None,
                headless=s.executor == "mp" and r.rank > 0,
                environment=rank_environment(s, r),
                arguments=rank_arguments(s, r.rank, ordered),
                mounts=rank_mounts(r),
            )
            for r in ordered
        ],
    )
    return plan.model_copy(update={"release": release_id(plan.to_json(), api_key)})


def uses_rdma(settings: Settings) -> bool:
    """Tell whether ranks need RDMA devices and a GID index: only NCCL uses them, and it needs GPUs."""
    return settings.rdma and settings.gpus == "all"


def rank_differences(plan: Mapping[str, Any]) -> list[str]:
    """Say in which ways the ranks of a plan (plain JSON form) differ beyond ``RANK_KEYS``; empty when in none."""
    found: list[str] = []
    ranks: list[Mapping[str, Any]] = list(plan["ranks"])
    head = ranks[0]
    for rank in ranks[1:]:
        name = f"rank {rank['rank']}"
        mine, theirs = rank["environment"], head["environment"]
        for key in sorted({*mine, *theirs}):
            # One rank may pin its row of the GID table, and another leave it to NCCL.
            lacks = key != GID_VARIABLE and (key in mine) != (key in theirs)
            if lacks or (key not in RANK_ENVIRONMENT and mine[key] != theirs[key]):
                found.append(f"{name}: environment {key} is {mine.get(key)!r}, the head has {theirs.get(key)!r}")
        if plan["executor"] == "ray":
            if rank["arguments"]:
                found.append(f"{name}: a Ray worker has arguments")
        elif _comparable(rank["arguments"]) != _comparable(head["arguments"]):
            found.append(f"{name}: arguments differ from the head's")
        ends = [[(m["target"], m["read_only"]) for m in r["mounts"]] for r in (rank, head)]
        if ends[0] != ends[1]:
            found.append(f"{name}: mount targets differ from the head's")
        if set(rank) != set(head):
            found.append(f"{name}: keys of the rank differ from the head's")
    return found


def _comparable(arguments: Sequence[str]) -> list[str]:
    result, skip = [], False
    for item in arguments:
        if skip:
            skip = False
        elif item in RANK_ARGUMENTS:
            skip = item == "--node-rank"
        else:
            result.append(item)
    return result
