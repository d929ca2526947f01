"""Chooses how every other rank gets the head's image, from what the ranks hold. Controller only, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .images import same_image, short


@dataclass(frozen=True)
class Choice:
    """What is to be done, by host.

    ``prepare`` maps a host to the reference that it takes its image from (pulled when it is not there) and to the name
    that it then gets; ``stream`` lists hosts that receive from the head. ``lines`` say it, ``problems`` say why it
    cannot be done. Nothing of it is there when every rank holds the head's image.
    """

    prepare: dict[str, dict[str, str]] = field(default_factory=dict)
    stream: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def choose(plan: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any] | None], steps: list[str]) -> Choice:
    """Choose for every rank but the head.

    Args:
        plan: the plan.
        seen: what ``spark_image`` found (``here``, ``source``, ``ready``) by host; None for a host without a result.
        steps: what the head would do first; in check mode its image is not there yet.
    """
    ranks = sorted(plan["ranks"], key=lambda r: int(r["rank"]))
    head_name, reference, mode = ranks[0]["host"], plan["image"], plan["settings"]["image_transfer"]
    head = seen.get(head_name)
    choice = Choice(lines=[f"{head_name}: {step}" for step in steps])
    if head is None or not (head["ready"] or steps):
        choice.problems.append(f"{head_name} (head): {reference} is not there{_none(mode)}")
        return choice
    if not head["ready"]:
        # Check mode, and the head's image is still to come: whether a rank holds it cannot be told yet.
        choice.lines.extend(f"{r['host']}: then the head's image by {mode}, unless it is there" for r in ranks[1:])
        return choice
    wanted = head["here"]
    for rank in ranks[1:]:
        name, mine = rank["host"], seen.get(rank["host"])
        if mine is None:
            choice.problems.append(f"{name}: its image was not seen")
        elif mine["here"] is None or not same_image(wanted, mine["here"]):
            _one(choice, plan, name, mine, wanted)
    return choice


def _one(
    choice: Choice, plan: Mapping[str, Any], name: str, mine: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    reference, source, mode = plan["image"], plan["settings"]["image"], plan["settings"]["image_transfer"]
    built = bool(wanted["inputs"])
    if mine["source"] is not None and reference != source and same_image(wanted, mine["source"]):
        choice.prepare[name] = {"source": source, "reference": reference}
        choice.lines.append(f"{name}: name {source} {reference}")
    elif mode == "stream":
        choice.stream.append(name)
        choice.lines.append(f"{name}: receive {reference} from the head over {_fabric(plan)}")
    elif mode == "pull" and built:
        # The ranks get the same bits, so what was built on the head is sent; of its base each rank has its own pull.
        if mine["source"] is None:
            choice.prepare[name] = {"source": source, "reference": source}
            choice.lines.append(f"{name}: pull {source}")
        choice.stream.append(name)
        choice.lines.append(f"{name}: receive the layers that were built on the head over {_fabric(plan)}")
    elif mode == "pull" and wanted["references"]:
        choice.prepare[name] = {"source": wanted["references"][0], "reference": reference}
        choice.lines.append(f"{name}: pull {wanted['references'][0]}")
    elif mode == "pull":
        choice.problems.append(
            f"{name}: the head's {reference} has no registry digest, so it cannot be pulled here; "
            "use image_transfer: stream"
        )
    else:
        differs = "is not there" if mine["here"] is None else f"is another image ({short(mine['here'])})"
        choice.problems.append(f"{name}: {reference} {differs}, the head has {short(wanted)}{_none(mode)}")


def _fabric(plan: Mapping[str, Any]) -> str:
    return str(next(r["address"] for r in plan["ranks"] if int(r["rank"]) == 0))


def _none(mode: str) -> str:
    return ", and image_transfer none forbids to fetch it" if mode == "none" else ""


def differences(plan: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Ranks that do not hold the head's image by content; empty when all do."""
    hosts = [r["host"] for r in sorted(plan["ranks"], key=lambda r: int(r["rank"]))]
    here = {host: (seen.get(host) or {}).get("here") for host in hosts}
    head = here[hosts[0]]
    if head is None:
        return [f"{hosts[0]} (head): {plan['image']} is not there"]
    found = []
    for host in hosts[1:]:
        mine = here[host]
        if mine is None:
            found.append(f"{host}: {plan['image']} is not there")
        elif not same_image(head, mine):
            found.append(f"{host}: {plan['image']} is {short(mine)}, the head's is {short(head)}")
    return found
