"""Compares the live containers of all ranks with the plan and with each other. Controller only.

Everything is read from the containers themselves, so a rank that runs something else than was rendered is found, and a
value that is absent everywhere counts as missing, not as equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .containers import CONTAINER, LABEL_RELEASE
from .plan import RANK_ENVIRONMENT
from .render import CODE_DIRECTORY, RUN_DIRECTORY

ENTRYPOINT = ["python3", f"{CODE_DIRECTORY}/entrypoint.py"]
SCHEDULE = "num_speculative_tokens_per_batch_size"
WIDTH_PREFIXES = ("DFLASH_VERIFY_TOKENS", "SPARKPAIR_")


def live(state: Mapping[str, Any] | None, release: str) -> Mapping[str, Any] | None:
    """The running engine container of ``release`` in a rank's state, or None."""
    found: list[Mapping[str, Any]] = [
        c
        for c in (state or {}).get("containers", [])
        if c["name"] == CONTAINER and c["running"] and c["labels"].get(LABEL_RELEASE) == release
    ]
    return found[0] if found else None


def _mounts(container: Mapping[str, Any]) -> dict[str, bool]:
    return {m["target"]: bool(m["read_only"]) for m in container["mounts"]}


def rank_differences(rank: Mapping[str, Any], container: Mapping[str, Any], overlays: Mapping[str, str]) -> list[str]:
    """How a rank's container differs from its part of the plan.

    Args:
        rank: the rank's entry in the plan.
        container: the container, as its state shows it.
        overlays: target path in the container to path below the release, of every file that must be mounted.
    """
    found = []
    if container["entrypoint"] != ENTRYPOINT:
        found.append(f"entrypoint is {container['entrypoint']}")
    if container["arguments"] != rank["arguments"]:
        extra = [a for a in container["arguments"] if a not in rank["arguments"]]
        missing = [a for a in rank["arguments"] if a not in container["arguments"]]
        found.append(f"arguments differ (only live: {extra}, only planned: {missing})")
    environment = container["environment"]
    for key, value in sorted(rank["environment"].items()):
        if key not in environment:
            found.append(f"environment {key} is missing")
        elif environment[key] != value:
            found.append(f"environment {key} is {environment[key]!r}, planned {value!r}")
    stray = [k for k in environment if k.startswith(WIDTH_PREFIXES) and k not in rank["environment"]]
    found += [f"environment {key} is set and not planned" for key in sorted(stray)]
    wanted = {
        f"{CODE_DIRECTORY}/entrypoint.py": True,
        f"{CODE_DIRECTORY}/launch.json": True,
        RUN_DIRECTORY: True,
        **{m["target"]: bool(m["read_only"]) for m in rank["mounts"]},
        **dict.fromkeys(overlays, True),
    }
    mounts = _mounts(container)
    found += [f"mount {target} is missing" for target in sorted(set(wanted) - set(mounts))]
    found += [f"mount {target} is not planned" for target in sorted(set(mounts) - set(wanted))]
    both = sorted(set(mounts) & set(wanted))
    found += [f"mount {t} is {'read-only' if mounts[t] else 'writable'}" for t in both if mounts[t] != wanted[t]]
    sources = {m["target"]: m["source"] for m in container["mounts"]}
    found += [
        f"mount {target} comes from {sources[target]}"
        for target, path in sorted(overlays.items())
        if target in sources and not sources[target].endswith(f"/{path}")
    ]
    return found


def differences(plan: Mapping[str, Any], states: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """Everything in which the live pair differs from the plan, or its ranks from each other beyond what they may."""
    found: list[str] = []
    containers: dict[int, Mapping[str, Any]] = {}
    overlays = _overlays(plan, states, found)
    for rank in plan["ranks"]:
        number, name = int(rank["rank"]), str(rank["host"])
        container = live(states.get(number), str(plan["release"]))
        if container is None:
            found.append(f"{name}: {CONTAINER} of release {plan['release']} does not run")
            continue
        containers[number] = container
        found += [f"{name}: {difference}" for difference in rank_differences(rank, container, overlays)]
    head = containers.get(0)
    for number, container in sorted(containers.items()):
        if head is None or number == 0:
            continue
        name = str(next(r["host"] for r in plan["ranks"] if r["rank"] == number))
        if not _same_image(states, number, container, head):
            found.append(f"{name}: image {container['image_id'][:19]}, the head runs {head['image_id'][:19]}")
        mine, theirs = container["environment"], head["environment"]
        for key in sorted({*mine, *theirs} - RANK_ENVIRONMENT):
            if mine.get(key) != theirs.get(key):
                found.append(f"{name}: environment {key} is {mine.get(key)!r}, the head has {theirs.get(key)!r}")
    return found


def _same_image(
    states: Mapping[int, Mapping[str, Any] | None],
    number: int,
    container: Mapping[str, Any],
    head: Mapping[str, Any],
) -> bool:
    """Equal ids, or else equal layers: the id of the same image differs between Docker's image stores."""
    if container["image_id"] == head["image_id"]:
        return True
    mine, theirs = (
        ((states[n] or {}).get("layers") or {}).get(c["image_id"]) for n, c in ((number, container), (0, head))
    )
    return bool(mine) and mine == theirs


def width_traces(plan: Mapping[str, Any], states: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """Everything on the live pair that a verify width leaves: overlay files and mounts, its variables, a schedule."""
    found = []
    for rank in plan["ranks"]:
        name, state = str(rank["host"]), states.get(int(rank["rank"]))
        container = live(state, str(plan["release"]))
        if state is None or container is None:
            found.append(f"{name}: no engine runs")
            continue
        found += [f"{name}: overlay file {o['target']}" for o in state.get("overlays") or []]
        found += [f"{name}: mount of {m['source']}" for m in container["mounts"] if "/overlays/" in m["source"]]
        found += [f"{name}: {key}" for key in sorted(container["environment"]) if key.startswith(WIDTH_PREFIXES)]
        found += [f"{name}: a schedule in the arguments" for a in container["arguments"] if SCHEDULE in a]
    return found


def _overlays(
    plan: Mapping[str, Any], states: Mapping[int, Mapping[str, Any] | None], found: list[str]
) -> dict[str, str]:
    """Overlay files by target, as the releases list them; adds to ``found`` where ranks or plan disagree."""
    listed: dict[int, dict[str, dict[str, str]]] = {}
    for number, state in states.items():
        if state is not None:
            listed[number] = {o["target"]: dict(o) for o in state.get("overlays") or []}
    everything = {json_key for per_rank in listed.values() for json_key in per_rank}
    for target in sorted(everything):
        digests = {number: per_rank.get(target, {}).get("sha256") for number, per_rank in listed.items()}
        if len(set(digests.values())) > 1:
            found.append(f"overlay file {target} differs between ranks: {digests}")
    if plan["overlays"] and not everything:
        found.append(f"no rank holds a file of the planned overlays {[o['name'] for o in plan['overlays']]}")
    if not plan["overlays"] and everything:
        found.append(f"overlay files are there and none is planned: {sorted(everything)}")
    return {target: o["source"] for per_rank in listed.values() for target, o in per_rank.items()}
