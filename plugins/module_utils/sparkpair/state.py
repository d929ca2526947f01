"""Everything about one rank in one call: what is on disk, what runs, and (on request) what it answers."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from . import containers, history, images, kernel, lock, memory, sensors
from .runner import Runner
from .store import Store

# Runs inside the engine container, where Ray and its token are.
RAY_NODES = """
import json, os, ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False, namespace="sparkpair-state")
print("RAY_NODES " + json.dumps(sorted(n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"])))
"""


def ray_nodes(runner: Runner, container: containers.Container) -> dict[str, Any]:
    """Addresses of the nodes that Ray counts as alive: ``{"alive": [...], "error": str | None}``."""
    done = runner(["docker", "exec", "-i", container.id, "python3", "-"], stdin=RAY_NODES, timeout=60)
    for line in done.out.splitlines():
        if line.startswith("RAY_NODES "):
            return {"alive": json.loads(line.removeprefix("RAY_NODES ")), "error": None}
    return {"alive": [], "error": done.why()}


def _plan(store: Store, release: str, damage: list[str]) -> dict[str, Any] | None:
    # One that was edited may be any text; what it says is not what was released.
    if any(reason.startswith("plan.json: ") for reason in damage):
        return None
    text = store.read(release, "plan.json")
    try:
        plan = json.loads(text or "null")
        # The endpoint follows from the plan and is no part of what was released.
        return {**plan, "endpoint": f"http://{plan['ranks'][0]['address']}:{plan['port']}"}
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def read(
    root: Path,
    runner: Runner,
    *,
    release: str | None = None,
    ray: bool = False,
    records: bool = False,
    compose: bool = False,
    host: bool = False,
    cool: tuple[float, float] = (0.0, 0.0),
) -> dict[str, Any]:
    """State of this rank.

    Args:
        root: directory of releases on this rank, such as /opt/sparkpair.
        runner: runs docker.
        release: a release to verify by content; the current one when not given.
        ray: also ask Ray inside a running container.
        records: also read the history, and verify every release that is there.
        compose: also ask for Docker Compose; without it Docker counts as one that does not answer.
        host: also read temperatures, and what the kernel said since the engine was started.
        cool: wait first while a sensor is at this many degrees Celsius or above, at most so many seconds.

    Returns:
        ``hostname``, ``time`` (epoch seconds), ``memory`` (KiB), ``current``, ``releases`` (ids), ``leftovers``,
        ``release`` (``id``, ``exists``, ``damage``), ``overlays`` (``target``, ``source`` and ``sha256`` of its files),
        ``plan`` (the current release's, or None), ``docker`` (None, or why it did not answer), ``containers`` (list),
        ``layers`` (image id of a container to a digest over its layers, "" when it is not known),
        ``ray`` when asked; with records also ``history`` (entries), ``history_damaged`` (line numbers),
        ``history_fault`` ("", or why it cannot be read or continued), ``checks`` (release to its damage), ``plans``
        (release to its plan), ``keyless`` (releases that have lost the API key that they serve with), ``images`` (image
        of a plan to a digest over its layers, None when there is none of that name) and ``lock`` (``run`` and ``text``
        of the rollout lock, None when nobody holds it); with host also ``sensors`` and ``kernel``; with cool also
        ``cooled``, the seconds that were waited.
    """
    cooled = sensors.cool_down(runner, *cool) if all(cool) else None
    store = Store(root)
    current = store.current()
    looked_at = release or current
    state: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "time": time.time(),
        "memory": memory.kib(),
        "current": current,
        "releases": store.ids(),
        "leftovers": store.leftovers(),
        "release": None,
        "overlays": [],
        "plan": None,
        "docker": None,
        "containers": [],
        "layers": {},
    }
    if cooled is not None:
        state["cooled"] = cooled
    wanted = {r for r in (current, looked_at, *(state["releases"] if records else [])) if r}
    checks = {r: store.check(r) for r in sorted(wanted)}
    if looked_at:
        check = checks[looked_at]
        state["release"] = {"id": looked_at, "exists": check.exists, "damage": check.damage}
        state["overlays"] = store.overlays(looked_at)
    if current:
        state["plan"] = _plan(store, current, checks[current].damage)
    if records:
        recorded = history.read(root)
        state["history"], state["history_damaged"] = recorded.entries, recorded.damaged
        state["history_fault"] = history.fault(root)
        state["checks"] = {r: checks[r].damage for r in state["releases"]}
        state["plans"] = {r: _plan(store, r, checks[r].damage) for r in state["releases"]}
        keyed = [r for r, plan in state["plans"].items() if plan and plan.get("api_key_set")]
        state["keyless"] = [r for r in keyed if not store.holds(r, "api_key")]
        try:
            held = lock.read(root)
        except lock.LockError as error:
            state["lock"] = {"run": "", "text": f"unknown: {error}"}
        else:
            state["lock"] = {"run": str(held.holder.get("run", "")), "text": held.text()} if held.held else None
    try:
        found = containers.find(runner)
        if compose:
            containers.require_compose(runner)
    except containers.DockerError as error:
        state["docker"] = str(error)
        return state
    state["containers"] = [c.as_dict() for c in found]
    state["layers"] = {c.image_id: images.layers(runner, c.image_id) or "" for c in found}
    if records:
        named = {str(plan["image"]) for plan in state["plans"].values() if plan and plan.get("image")}
        state["images"] = {name: images.layers(runner, name) for name in sorted(named)}
    if host:
        state["sensors"] = sensors.read(runner)
        started = [c.started_at for c in found if c.running]
        state["kernel"] = kernel.since(runner, started[0]) if started else {"lines": [], "missing": "no engine runs"}
    if ray:
        live = [c for c in found if c.running and c.name == containers.CONTAINER]
        state["ray"] = ray_nodes(runner, live[0]) if live else {"alive": [], "error": "no engine container runs"}
    return state
