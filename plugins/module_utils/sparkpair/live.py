"""Judges a live pair from the states of its ranks: does it run this plan, and does it serve? Controller only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import history, metrics
from .containers import CONTAINER, LABEL_RANK, LABEL_RELEASE
from .settings import Settings
from .traffic import LATE

RECENT_STARTS = 5
OF_A_SWITCH = (
    "drain_timeout",
    "settle_timeout",
    "settle_free_gib",
    "drop_page_cache",
    "ready_timeout",
    "keep_releases",
)
"""Settings that say how a release is switched to, not what it is."""
NOTED = (*OF_A_SWITCH[:-1], "spark_warmup", "spark_warmup_timeout")
"""Settings with which a release was accepted, for the next switch to it."""
AT_LEAST_THE_DEFAULT = ("settle_timeout", "ready_timeout", "spark_warmup_timeout")
"""A start from a warm page cache proves nothing about the next one."""


@dataclass(frozen=True)
class Probe:
    """What the API answered: whether it serves and why not, tokens per second, and draft tokens per step (or None)."""

    serves: bool
    reason: str
    tokens_per_second: float | None = None
    draft_tokens_per_step: float | None = None


def _object(value: Any) -> Mapping[str, Any]:
    # Whatever listens on the port may answer with any JSON.
    return value if isinstance(value, Mapping) else {}


def _throughput(by_id: Mapping[str, Mapping[str, Any]]) -> float:
    """Tokens per second that the engine generated for everybody between the two readings; 0 when they do not tell."""
    readings = [by_id.get(name) or {} for name in ("before", "after")]
    before, after = (metrics.generated_tokens(_object(answer).get("text") or "") for answer in readings)
    if before is None or after is None or after <= before:
        return 0.0
    seconds = float(readings[1]["ended"]) - float(readings[0]["ended"])
    return round((after - before) / max(1e-6, seconds), 1)


def judge_probe(plan: Mapping[str, Any], responses: Sequence[Mapping[str, Any]]) -> Probe:
    """Judge the answers to ``probe.requests``."""
    by_id = {r["id"]: r for r in responses}
    late = str((by_id.get("completion") or {}).get("error")).startswith(LATE)
    # It generates for others, and this request waits its turn: a busy pair is not a broken one.
    rate = _throughput(by_id) if late else 0.0
    for name in ("health", "models", *(() if rate else ("completion",))):
        answer = by_id.get(name)
        if answer is None or answer["status"] != 200:  # noqa: PLR2004
            seen = "nothing" if answer is None else answer["error"] or f"status {answer['status']}"
            return Probe(False, f"{name}: {seen}")
    listed = _object(by_id["models"]["json"]).get("data")
    served = [_object(m).get("id") for m in listed] if isinstance(listed, list) else []
    if plan["served_model_name"] not in served:
        return Probe(False, f"models: serves {served}, wanted {plan['served_model_name']!r}")
    if not rate:
        answer = by_id["completion"]
        tokens = _object(_object(answer["json"]).get("usage")).get("completion_tokens", 0)
        if not isinstance(tokens, int) or tokens <= 0:
            return Probe(False, "completion: no token came back")
        rate = round(tokens / max(1e-6, answer["ended"] - answer["started"]), 1)
    width = None
    if plan["expected_width"] is not None:
        try:
            before, after = (metrics.parse(_object(by_id.get(name)).get("text") or "") for name in ("before", "after"))
            width = round(metrics.draft_width(metrics.delta(before, after)), 2)
        except metrics.MetricsError as error:
            return Probe(False, f"metrics: {error}", rate)
    return Probe(True, "", rate, width)


@dataclass(frozen=True)
class Verdict:
    """Whether the pair serves exactly the wanted release; ``reasons`` say why not; ``probe`` is the API's part."""

    serving: bool
    reasons: list[str] = field(default_factory=list)
    probe: Probe | None = None


def _container(c: Mapping[str, Any]) -> str:
    return f"{c['name']} ({c['status']}, release {c['labels'].get(LABEL_RELEASE, 'none')})"


def other_image(state: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """That the image's name leads to other bytes than the engine runs, as after a second load; None when it does not.

    Only a state with records knows what the names lead to.
    """
    reference = container.get("image")
    running, now = (
        (state.get("layers") or {}).get(container.get("image_id")),
        (state.get("images") or {}).get(reference),
    )
    if running and now and running != now:
        return f"the engine runs other bytes than {reference} names by now"
    return None


def rank_reasons(rank: int, name: str, state: Mapping[str, Any] | None, release: str) -> list[str]:
    """Why a rank does not run ``release`` exactly as staged; empty when it does. ``state`` None is unreachable."""
    if state is None:
        return [f"{name}: not reached"]
    if state["docker"]:
        return [f"{name}: {state['docker']}"]
    reasons = []
    if state["current"] != release:
        reasons.append(f"{name}: current release is {state['current'] or 'none'}")
    checked = state["release"] or {}
    if checked.get("id") == release == state["current"] and not checked["exists"]:
        reasons.append(f"{name}: release {release} is current and its directory is gone")
    if checked.get("id") == release and checked["exists"] and checked["damage"]:
        reasons.append(f"{name}: release {release} is damaged: {'; '.join(checked['damage'])}")
    running = [c for c in state["containers"] if c["running"] and c["labels"].get(LABEL_RELEASE) == release]
    if not running:
        found = ", ".join(_container(c) for c in state["containers"]) or "no container"
        reasons.append(f"{name}: {CONTAINER} of release {release} does not run; found {found}")
    elif len(state["containers"]) > 1:
        reasons.append(f"{name}: more than one container of ours")
    elif running[0]["labels"].get(LABEL_RANK, str(rank)) != str(rank):
        reasons.append(
            f"{name}: {CONTAINER} is that of rank {running[0]['labels'][LABEL_RANK]} and not of rank {rank}; see "
            "whether ansible_host and spark_rank in the inventory lead to two machines, each to its own"
        )
    elif (now := other_image(state, running[0])) is not None:
        reasons.append(f"{name}: {now}")
    elif running[0]["restart_count"]:
        reasons.append(f"{name}: {CONTAINER} was restarted {running[0]['restart_count']} times")
    return reasons


def other_start(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """That a rank's engine is another one than ``before``, or was started again by hand; empty when it is the same."""
    if not before or not now:
        return []
    starts = [{c["id"]: c["started_at"] for c in state["containers"] if c["running"]} for state in (before, now)]
    return [] if starts[0] == starts[1] else [f"{name}: {CONTAINER} was started again during the gates"]


def without_plan(states: Mapping[int, Mapping[str, Any] | None], names: Mapping[int, str]) -> Verdict:
    """Why nothing serves where the head has no release that can be read, from the states and names by rank."""
    reasons: list[str] = []
    for rank in sorted(names):
        state = states[rank]
        if state is not None and not state["current"]:
            reasons.append(f"{names[rank]}: no release is current")
        else:
            reasons += rank_reasons(rank, names[rank], state, str(state["current"]) if state else "")
    return Verdict(False, reasons)


def verdict(
    plan: Mapping[str, Any], states: Mapping[int, Mapping[str, Any] | None], names: Mapping[int, str]
) -> Verdict:
    """Judge the whole pair.

    Args:
        plan: a plan, or the plan of a release.
        states: rank number to the state that ``spark_state`` read (the head's with answers to ``probe.requests``), or
            None for a rank that was not reached.
        names: rank number to the name to show.
    """
    reasons = [r for n in sorted(names) for r in rank_reasons(n, names[n], states.get(n), plan["release"])]
    head = states.get(0)
    responses = (head or {}).get("responses")
    if not responses:
        return Verdict(False, reasons or [f"{names[0]}: the API was not asked"])
    probe = judge_probe(plan, responses)
    if not probe.serves:
        reasons.append(f"{names[0]}: {probe.reason}")
    return Verdict(not reasons, reasons, probe)


def notes(states: Mapping[int, Mapping[str, Any] | None], names: Mapping[int, str], run: str = "") -> list[str]:
    """What an operator should know although it decides nothing: remains and records of runs that did not end well.

    Args:
        states: rank to the state of ``spark_state`` with records, or None for a rank that was not reached.
        names: rank to the name to show.
        run: the run that asks, whose own lock is no news.
    """
    known = {rank: state for rank, state in states.items() if state is not None}
    found = []
    for rank, state in sorted(known.items()):
        if state["leftovers"]:
            found.append(f"{names[rank]}: an interrupted run left {', '.join(state['leftovers'])}")
        if state["lock"] and state["lock"]["run"] != run:
            found.append(f"{names[rank]}: the rollout lock is {state['lock']['text']}")
        if state["history_fault"]:
            found.append(f"{names[rank]}: the history cannot be kept: {state['history_fault']}")
        last = history.interrupted(state["history"])
        if last:
            what = f"{last.get('verb') or 'unknown verb'} of {last.get('release') or 'an unknown release'}"
            phase = last.get("phase") or "unknown"
            found.append(f"{names[rank]}: the last run ({last.get('run')}, {what}) was interrupted in phase {phase}")
    return found + history.disagreements(known, names)


def stopped(states: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether no rank has anything of ours and nobody holds a lock, as after ``stop``; of states with records."""
    return not any(s["docker"] or s["containers"] or s["lock"] for s in states.values())


def outlook(states: Mapping[int, Mapping[str, Any] | None]) -> str:
    """How long the pair will not serve, judged by the starts in the head's record."""
    earlier = history.start_seconds((states.get(0) or {}).get("history", []))[-RECENT_STARTS:]
    if not earlier:
        return "the engine is started anew; no earlier start is on record, so the time without service is not known"
    middle = statistics.median(earlier)
    return f"the engine is started anew; {len(earlier)} earlier start(s) took {middle:.0f} s (median) until it served"


def untried(plan: Mapping[str, Any], accepted: Mapping[str, Any] | None) -> bool:
    """Whether the plan has an image or an engine flag that the accepted release (None: there is none) has not."""
    if accepted is None or plan["image"] != accepted["image"]:
        return True
    new, known = (
        {a.partition("=")[0] for rank in one["ranks"] for a in rank["arguments"] if a.startswith("--")}
        for one in (plan, accepted)
    )
    return not new <= known


def switch_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings of a plan, those that the record of an acceptance keeps."""
    return {name: settings[name] for name in NOTED if name in settings}


def named(
    plan: Mapping[str, Any], names: Mapping[int, str], entries: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A recorded plan with what is no part of a release: the inventory's host names, and how to switch to it.

    Not today's settings, so that a bad one cannot break both ways, there and back, but those with which the release was
    last accepted, as ``entries`` of the record tell, and the defaults where they do not.
    """
    settings = {name: Settings.model_fields[name].default for name in OF_A_SWITCH}
    noted = history.noted(entries, plan["release"], "switch_settings") or {}
    for name in NOTED:
        default = Settings.model_fields[name].default
        if type(noted.get(name)) is type(default):
            settings[name] = max(noted[name], default) if name in AT_LEAST_THE_DEFAULT else noted[name]
    ranks = [{**rank, "host": names[int(rank["rank"])]} for rank in plan["ranks"]]
    return {**plan, "ranks": ranks, "settings": settings}


def rank_report(rank: int, name: str, address: str, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """One entry of ``ranks`` in result.json."""
    found: list[Mapping[str, Any]] = list((state or {}).get("containers", []))
    live = [c for c in found if c["name"] == CONTAINER] or found
    container = live[0] if live else None
    return {
        "rank": rank,
        "name": name,
        "address": address,
        "reached": state is not None,
        "release": (state or {}).get("current"),
        "container": container["name"] if container else None,
        "container_state": container["status"] if container else None,
        "image": container["image"] if container else None,
        "image_id": container["image_id"] if container else None,
        "started_at": container["started_at"] if container else None,
    }
