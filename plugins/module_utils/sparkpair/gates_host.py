"""Gates about the Sparks themselves: temperature, memory, kernel log, and the size of the KV pool. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import metrics
from .gatekit import Answers, Group, Seen, Situation, fault, group, request
from .history import noted
from .memory import GIB
from .sensors import PAUSE_CELSIUS

KIB_IN_GIB = GIB // 1024
"""States give memory in KiB."""
HEADROOM_GIB = 2.0
POOL_TOLERANCE = 0.1
# Compared with the last one only, a pool could lose a tenth at every acceptance.
POOL_LOOKS_BACK = 5
POOL_SETTINGS = (
    "image",
    "model",
    "model_revision",
    "dflash_model",
    "spec_method",
    "dflash_tokens",
    "mtp_tokens",
    "quantization",
    "gpu_mem_util",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "extra_args",
)
"""Settings that decide how much memory is left for the KV pool."""


def _read(situation: Situation) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    states = {name: situation.states.get(rank) for rank, name in sorted(situation.names.items())}
    unread = [f"{name}: not read" for name, state in states.items() if state is None]
    return {name: state for name, state in states.items() if state is not None}, unread


def judge_temperature(situation: Situation, _: Answers) -> Seen:
    """No sensor above the pause threshold; a rank without a sensor is named, not assumed to be cool."""
    limit = float(situation.limits.get("celsius", PAUSE_CELSIUS))
    known, hot = _read(situation)
    said = []
    for name, state in known.items():
        read = state.get("sensors") or {"hottest": None, "missing": "not read"}
        if read["hottest"] is None:
            said.append(f"{name}: {read['missing']}")
            continue
        text = f"{name}: {read['hottest']['celsius']:.0f} C ({read['hottest']['sensor']})"
        text += f" after a pause of {state['cooled']:.0f} s" if state.get("cooled") else ""
        said.append(text)
        if read["hottest"]["celsius"] >= limit:
            hot.append(text)
    return Seen(not hot, "; ".join(hot or said), f"below {limit:.0f} C on every rank")


def judge_memory(situation: Situation, _: Answers) -> Seen:
    """Every rank has memory left beside the engine that was just under load."""
    wanted = float(situation.limits.get("headroom_gib", HEADROOM_GIB))
    known, short = _read(situation)
    left = {name: state["memory"].get("MemAvailable", 0) / KIB_IN_GIB for name, state in known.items()}
    said = {name: f"{name}: {value:.1f} GiB available" for name, value in left.items()}
    short += [said[name] for name, value in left.items() if value < wanted]
    return Seen(not short, "; ".join(short or said.values()), f"at least {wanted:g} GiB available on every rank")


def judge_kernel(situation: Situation, _: Answers) -> Seen:
    """No line about GPU errors or a lack of memory since the engine was started."""
    known, found = _read(situation)
    said = []
    for name, state in known.items():
        read = state.get("kernel") or {"lines": [], "missing": "not read"}
        said += [f"{name}: {read['missing']}"] if read["missing"] else []
        found += [f"{name}: {line}" for line in read["lines"]]
    wanted = "no Xid, NVRM or out-of-memory line since the start"
    return Seen(not found, "; ".join(found[:3] or said) or "none on any rank", wanted)


def pool_basis(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two releases must share for their KV pools to be compared."""
    return {name: settings[name] for name in POOL_SETTINGS if name in settings}


def build_pool(_: Situation) -> list[Group]:
    """Read the metric that tells the size of the pool."""
    return [group("kv_pool", request("kv_pool", "/metrics", keep_lines="^vllm:cache_config_info"))]


def judge_pool(situation: Situation, answers: Answers) -> Seen:
    """The pool is at most a tenth smaller than the largest of the last acceptances with the same memory settings."""
    wanted = f"a KV pool at most {POOL_TOLERANCE:.0%} smaller than the largest of the last {POOL_LOOKS_BACK} "
    wanted += "acceptances with the same memory settings"
    if why := fault(answers[0]):
        return Seen(False, why, wanted)
    tokens = metrics.kv_pool_tokens(str(answers[0]["text"] or ""))
    # A release on record comes without its settings; its own acceptance noted them.
    basis = pool_basis(situation.plan.get("settings", {}))
    basis = basis or noted(situation.history, situation.plan["release"], "memory_settings")
    same = [e for e in situation.history if e["outcome"] == "accepted" and basis and e.get("memory_settings") == basis]
    earlier = [float((e.get("figures") or {}).get("kv_pool_tokens") or 0) for e in same[-POOL_LOOKS_BACK:]]
    if tokens is None:
        seen = "the engine does not tell the size of its pool"
        told = earlier[-1] if earlier else 0.0
        return Seen(not told, f"{seen}, and told {told:.0f} tokens at the last acceptance" if told else seen, wanted)
    figures = {"kv_pool_tokens": float(tokens)}
    largest = max(earlier, default=0.0)
    if not largest:
        return Seen(True, f"{tokens} tokens; no earlier release to compare with", wanted, figures)
    seen = f"{tokens} tokens; the largest of the last {len(earlier)} acceptances: {largest:.0f}"
    return Seen(tokens >= largest * (1 - POOL_TOLERANCE), seen, wanted, figures)
