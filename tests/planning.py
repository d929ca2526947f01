"""Inputs that several plan tests share: two ranks with reserved addresses, and a short way to a plan."""

from __future__ import annotations

from typing import Any

from sparkpair.plan import RankInput, build_plan
from sparkpair.settings import Given, Refused, Resolved, resolve

OVERLAYS = {"verify_width": "a" * 64, "gdn_runtime_width": "b" * 64}


def rank(number: int) -> RankInput:
    """One well-formed rank."""
    return RankInput(
        host=f"spark-{number}",
        rank=number,
        address=f"192.0.2.{number + 1}",
        interface=f"enp1s0f{number}np{number}",
        hf_home=f"/home/op{number}/.cache/huggingface",
        cache_dir="/var/cache/sparkpair",
        rdma_devices=(f"rocep1s0f{number}",),
        gid_index=3 + number,
    )


def host_variables(number: int) -> dict[str, Any]:
    """The inventory variables of one well-formed rank."""
    r = rank(number)
    return {
        "spark_rank": r.rank,
        "spark_fabric_address": r.address,
        "spark_fabric_interface": r.interface,
        "spark_rdma_devices": list(r.rdma_devices),
        "spark_gid_index": r.gid_index,
        "spark_hf_home": r.hf_home,
        "spark_cache_dir": r.cache_dir,
    }


def given(**values: Any) -> dict[str, Given]:
    """Raw values as ``-e`` would give them."""
    return {name: Given(value, "-e") for name, value in values.items()}


def resolved(**values: Any) -> Resolved:
    """Settings that resolve from these raw values."""
    return resolve(given(**values))


def plan(ranks: int = 2, **values: Any) -> dict[str, Any]:
    """Plain plan of a pair with these raw values; raises Refused."""
    return build_plan(resolved(**values), [rank(n) for n in range(ranks)], OVERLAYS).to_json()


def refusals(ranks: int = 2, **values: Any) -> list[str]:
    """Messages with which these raw values are refused; empty when they are accepted."""
    try:
        plan(ranks, **values)
    except Refused as refused:
        return [str(problem) for problem in refused.problems]
    return []
