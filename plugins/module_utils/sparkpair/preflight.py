"""Preflight of one rank: read-only checks of one host against the plan, all findings collected.

``check`` never stops at the first finding and changes nothing on the host, except that ``probe_image`` starts
containers that are removed at once. Comparison between ranks is in ``preflight_pair``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import preflight_content as content
from . import preflight_fabric as fabric
from . import preflight_system as system
from .preflight_host import LEVELS, Context, Finding, Host, Options, Skipped


@dataclass(frozen=True)
class Check:
    """A check by id. When one of ``needs`` is blocked, this one cannot be judged and stays silent."""

    id: str
    run: Callable[[Context], Iterator[Finding]]
    needs: tuple[str, ...] = ()


CHECKS: tuple[Check, ...] = (
    Check("become", system.become),
    Check("architecture", system.architecture),
    Check("kernel", system.kernel),
    Check("docker", system.docker),
    Check("compose", system.compose, ("docker",)),
    Check("nvidia_runtime", system.nvidia_runtime, ("docker",)),
    Check("gpu", system.gpu),
    Check("foreign_gpu", system.foreign_gpu, ("gpu",)),
    Check("fabric_interface", fabric.fabric_interface),
    Check("fabric_route", fabric.fabric_route, ("fabric_interface",)),
    Check("fabric_mtu", fabric.fabric_mtu, ("fabric_interface",)),
    Check("fabric_speed", fabric.fabric_speed, ("fabric_interface",)),
    Check("rdma", fabric.rdma, ("fabric_interface",)),
    Check("gid", fabric.gid, ("rdma",)),
    Check("names", fabric.names),
    Check("ports", system.ports),
    Check("disk", content.disk),
    Check("memory", system.memory),
    Check("swap", system.swap),
    Check("limits", system.limits, ("docker",)),
    Check("caches", system.caches),
    Check("image", content.image, ("docker", "architecture")),
    Check("ray", content.ray, ("image",)),
    Check("engine_flags", content.engine_flags, ("image",)),
    Check("self_check", content.self_check, ("image", "ray")),
    Check("weights", content.weights, ("caches",)),
)
IDS = tuple(check.id for check in CHECKS)
PAIR_IDS = ("reach", "clock", "parity")
"""Checks that compare ranks; they run on the controller (see ``preflight_pair``)."""


def chosen(only: Collection[str], skip: Collection[str]) -> list[Check]:
    """Checks to run: all, or those in ``only``; never those in ``skip``. Raises ValueError for an unknown id."""
    unknown = sorted({*only, *skip} - {*IDS, *PAIR_IDS})
    if unknown:
        raise ValueError(f"no check {', '.join(unknown)}; there are {', '.join((*IDS, *PAIR_IDS))}")
    return [check for check in CHECKS if (not only or check.id in only) and check.id not in skip]


def verdict(findings: Collection[Mapping[str, Any]]) -> str:
    """``blocked``, ``degraded`` or ``ready``: the worst level that counts."""
    levels = {f["level"] for f in findings}
    return next((level for level in LEVELS if level in levels and level != "info"), "ready")


def check(
    host: Host,
    plan: Mapping[str, Any],
    rank: int,
    options: Options,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> dict[str, Any]:
    """Check one host against its rank of the plan.

    Returns:
        ``rank``; ``verdict``; ``findings`` (list of ``{check, level, rank, observed, wanted, remedy}``); ``checks``
        (check id to ``ok``, a level, or ``skipped: <why>``); ``facts`` (what ranks are compared by, sizes in bytes);
        ``time`` (``wall``: epoch seconds when the call began, ``elapsed``: seconds that it took).

    Raises ValueError for an unknown check or a rank that the plan does not have.
    """
    begun, wall = host.monotonic(), host.wall()
    mine = next((r for r in plan["ranks"] if int(r["rank"]) == rank), None)
    if mine is None:
        raise ValueError(f"the plan has no rank {rank}")
    context = Context(host, plan, mine, options)
    findings: list[dict[str, Any]] = []
    results: dict[str, str] = {}
    for entry in chosen(only, skip):
        waiting = [need for need in entry.needs if results.get(need, "ok") in ("blocked", "not judged")]
        if waiting:
            results[entry.id] = "not judged"
            continue
        try:
            found = [f.as_dict() for f in entry.run(context)]
        except Skipped as why:
            results[entry.id] = f"skipped: {why}"
            continue
        findings += found
        levels = {f["level"] for f in found}
        results[entry.id] = next((level for level in LEVELS if level in levels), "ok")
    return {
        "rank": rank,
        "verdict": verdict(findings),
        "findings": findings,
        "checks": results,
        "facts": context.facts,
        "time": {"wall": wall, "elapsed": host.monotonic() - begun},
    }
