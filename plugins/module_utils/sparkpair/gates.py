"""Acceptance gates: what a started pair must show before a rollout is done. Controller only.

A gate builds requests from the plan and judges the answers. It never sends anything itself, and it never guesses: an
answer that does not show what is wanted fails the gate with what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import gates_drafts as drafts
from . import gates_guided as guided
from . import gates_host as host
from . import gates_load as load
from . import live, parity, warmup
from .containers import CONTAINER
from .gatekit import (
    HTTP_OK,
    Answers,
    Gate,
    Group,
    Seen,
    Situation,
    alone,
    by_id,
    fault,
    group,
    request,
    texts_of,
    tokens_of,
)
from .sensors import PAUSE_CELSIUS, PAUSE_SECONDS

__all__ = [
    "GATES",
    "UNASKED",
    "Choice",
    "Gate",
    "RefusedChoiceError",
    "Seen",
    "Situation",
    "choose",
    "for_a_return",
    "judge",
    "limits",
    "more",
]

HTTP_UNAUTHORIZED = 401


# --- gates that judge states ------------------------------------------------------------------------------------------


def _judge_ranks(situation: Situation, _: Answers) -> Seen:
    release = situation.plan["release"]
    reasons = [
        reason
        for rank, name in sorted(situation.names.items())
        for reason in live.rank_reasons(rank, name, situation.states.get(rank), release)
        or live.other_start(name, situation.before.get(rank), situation.states.get(rank))
    ]
    wanted = f"{CONTAINER} of release {release} running, never restarted, on {len(situation.names)} ranks"
    return Seen(not reasons, "; ".join(reasons) or f"{len(situation.names)} of {len(situation.names)} ranks", wanted)


def _judge_parity(situation: Situation, _: Answers) -> Seen:
    found = parity.differences(situation.plan, situation.states)
    wanted = "arguments, environment, mounts and image of every rank as planned, and equal where they must be"
    seen = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")  # noqa: PLR2004
    return Seen(not found, seen or f"{len(situation.names)} ranks as planned", wanted)


def _judge_stock(situation: Situation, _: Answers) -> Seen:
    found = parity.width_traces(situation.plan, situation.states)
    wanted = "no overlay file, no overlay mount, no width variable and no schedule on any rank"
    return Seen(not found, "; ".join(found) or "none on any rank", wanted)


def _width_is_planned(situation: Situation) -> str:
    return "a verify width is planned" if situation.plan["verify_tokens"] else ""


def _judge_ray(situation: Situation, _: Answers) -> Seen:
    ray = (situation.states.get(0) or {}).get("ray") or {"alive": [], "error": "Ray was not asked"}
    wanted = sorted(str(r["address"]) for r in situation.plan["ranks"])
    seen = ray["error"] or f"alive: {', '.join(ray['alive']) or 'none'}"
    return Seen(sorted(ray["alive"]) == wanted, seen, f"alive: {', '.join(wanted)}")


# --- gates about the API itself ---------------------------------------------------------------------------------------


def _judge_health(_: Situation, answers: Answers) -> Seen:
    why = fault(answers[0])
    return Seen(not why, why or "200", "200")


def _judge_models(situation: Situation, answers: Answers) -> Seen:
    why = fault(answers[0])
    served = [str(m.get("id")) for m in ((answers[0]["json"] or {}).get("data") or [])] if not why else []
    seen = why or f"serves {', '.join(served) or 'nothing'}"
    return Seen(served == [situation.model], seen, f"serves {situation.model}")


def _build_auth(_: Situation) -> list[Group]:
    asked = [
        request("without", "/v1/models", auth=False),
        request("with", "/v1/models"),
        request("health", "/health", auth=False),
    ]
    return [group("auth", *asked)]


def _judge_auth(_: Situation, answers: Answers) -> Seen:
    status = {name: a["status"] or a["error"] for name, a in by_id(answers).items()}
    good = status == {"without": HTTP_UNAUTHORIZED, "with": HTTP_OK, "health": HTTP_OK}
    seen = f"{status['without']} without the key, {status['with']} with it, /health {status['health']} without"
    return Seen(good, seen, "401 without the key, 200 with it, /health 200 without")


def _build_completion(situation: Situation) -> list[Group]:
    body = {"model": situation.model, "prompt": "One, two, three,", "max_tokens": 16, "temperature": 0}
    return [group("completion", request("completion", "/v1/completions", {**body, "ignore_eos": True}))]


def _judge_completion(_: Situation, answers: Answers) -> Seen:
    wanted = "tokens and text"
    if why := fault(answers[0]):
        return Seen(False, why, wanted)
    count, text = tokens_of(answers[0]), texts_of(answers[0])
    return Seen(count > 0 and bool(text.strip()), f"{count} tokens: {text[:40]!r}", wanted)


# --- warm-up ----------------------------------------------------------------------------------------------------------


def _build_warmup(situation: Situation) -> list[Group]:
    return warmup.tokenize_groups(situation.model)


def _continue_warmup(situation: Situation, answers: Answers) -> list[Group]:
    if any(str(a["id"]).startswith("rung-") or a["group"] == "singles" for a in answers):
        return []
    patience = float(situation.setting("spark_warmup_timeout", warmup.TIMEOUT))
    return warmup.groups(situation.model, situation.seqs, warmup.exact(answers), patience)


def _no_warmup(situation: Situation) -> str:
    return "" if situation.setting("spark_warmup", True) else "spark_warmup is off"


def _judge_warmup(situation: Situation, answers: Answers) -> Seen:
    wanted = warmup.count(situation.seqs)
    passed, faults = warmup.judge(answers, fault)
    by_ids = sorted(n for n, prompt in warmup.exact(answers).items() if isinstance(prompt, list))
    seen = f"{passed} of {wanted} requests"
    seen += f" (token ids for {', '.join(map(str, by_ids))}: no text has that length)" if by_ids else ""
    seen += f"; {'; '.join(faults[:5])}" if faults else ""
    return Seen(passed == wanted and not faults, seen, f"{wanted} of {wanted} requests")


# --- all of them ------------------------------------------------------------------------------------------------------


def _nothing(_: Situation) -> list[Group]:
    return []


def _get(name: str, path: str) -> list[Group]:
    return [group(name, request(name, path))]


def _no_ray(situation: Situation) -> str:
    return "" if situation.plan["executor"] == "ray" else "the executor is not ray"


def _no_key(situation: Situation) -> str:
    return "" if situation.plan["api_key_set"] else "no API key is set"


GATES: tuple[Gate, ...] = (
    Gate("ranks", 30, _nothing, _judge_ranks),
    Gate("parity", 30, _nothing, _judge_parity),
    Gate("stock", 30, _nothing, _judge_stock, _width_is_planned),
    Gate("ray", 30, _nothing, _judge_ray, _no_ray),
    Gate("health", 30, lambda _: _get("health", "/health"), _judge_health),
    Gate("models", 30, lambda _: _get("models", "/v1/models"), _judge_models),
    Gate("auth", 30, _build_auth, _judge_auth, _no_key),
    Gate("completion", 300, _build_completion, _judge_completion),
    Gate("warmup", 1800, _build_warmup, _judge_warmup, _no_warmup, _continue_warmup),
    Gate("width", 180, drafts.build_width, drafts.judge_width, drafts.no_speculation),
    Gate("canary", 180, drafts.build_canary, drafts.judge_canary),
    Gate("stream", 120, load.build_stream, load.judge_stream),
    Gate("concurrent", 240, load.build_concurrent, load.judge_concurrent, alone),
    Gate("thinking", 180, load.build_thinking, load.judge_thinking),
    Gate("json", 180, guided.build_json, guided.judge_json),
    Gate("tool", 180, guided.build_tool, guided.judge_tool),
    Gate("mixed", 300, guided.build_mixed, guided.judge_mixed, alone, guided.continue_mixed),
    Gate("long", 300, load.build_long, load.judge_long, then=load.continue_long),
    Gate(
        "acceptance",
        300,
        drafts.build_acceptance,
        drafts.judge_acceptance,
        drafts.no_speculation,
        drafts.continue_acceptance,
    ),
    Gate("kv_pool", 30, host.build_pool, host.judge_pool),
    # These look at what the traffic did to the Sparks, so the role asks for them by name after it.
    Gate("temperature", 30, _nothing, host.judge_temperature, extra=True),
    Gate("memory", 30, _nothing, host.judge_memory, extra=True),
    Gate("kernel", 30, _nothing, host.judge_kernel, extra=True),
    Gate("soak", 300, load.build_soak, load.judge_soak, extra=True),
    Gate("quality", 180, guided.build_free_json, guided.judge_json, extra=True),
)
"""Every gate, in the order in which a rollout runs them."""


AFTER_TRAFFIC = ("temperature", "memory", "kernel")
"""Gates that need states which only the second round reads, and would find nothing in the first."""

LIMITS = {
    "celsius": PAUSE_CELSIUS,
    "headroom_gib": host.HEADROOM_GIB,
    "pause_seconds": PAUSE_SECONDS,
    "soak_seconds": load.SOAK_SECONDS,
}
"""Limits that an operator may change: name to default."""

UNASKED: dict[str, Any] = {"skip": [], "also": [], "limits": {}, "deadlines": {}}
"""Every gate of a rollout, with its defaults."""

SMALLER_IS_WIDER = ("headroom_gib", "soak_seconds")


class RefusedChoiceError(Exception):
    """A gate or limit that does not exist was named, or its value is no number; the message says what there is."""


class Choice(list[tuple[Gate, str]]):
    """Gates in order, each with the reason for which it is left out, or an empty text."""


def choose(
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    also: Sequence[str] = (),
    deadlines: Mapping[str, float] | None = None,
) -> Choice:
    """Gates to run or to name as left out.

    Args:
        only: the gates to run, all regular ones when empty; others are not mentioned.
        skip: gates to leave out, with that reason in the result.
        also: extra gates to run beside the regular ones.
        deadlines: seconds by gate; only the names and values are checked here.

    Raises:
        RefusedChoiceError: a name is no gate's, ``also`` names one of the second round, or a deadline is not a positive
            number.
    """
    known = [gate.name for gate in GATES]
    unknown = sorted({*only, *skip, *also, *(deadlines or {})} - set(known))
    if unknown:
        raise RefusedChoiceError(f"no gate is named {', '.join(unknown)}; there are {', '.join(known)}")
    for name, seconds in (deadlines or {}).items():
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
            raise RefusedChoiceError(f"the deadline of gate {name} must be seconds above 0, not {seconds!r}")
    if late := sorted(set(also) & set(AFTER_TRAFFIC)):
        raise RefusedChoiceError(
            f"{', '.join(late)} cannot be asked for by also: every rollout runs it after the traffic"
        )
    wanted = set(only) or {gate.name for gate in GATES if not gate.extra}
    wanted |= set(also)
    return Choice((gate, "skipped on request" if gate.name in skip else "") for gate in GATES if gate.name in wanted)


def limits(given: Mapping[str, Any]) -> dict[str, float]:
    """Limits that differ from their defaults, as numbers.

    Raises:
        RefusedChoiceError: a name is no limit's, or its value is not a number of at least 0.
    """
    unknown = sorted(set(given) - set(LIMITS))
    if unknown:
        raise RefusedChoiceError(f"no limit of a gate is named {', '.join(unknown)}; there are {', '.join(LIMITS)}")
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise RefusedChoiceError(f"the limit {name} must be a number of at least 0, not {value!r}")
    return {name: float(value) for name, value in given.items()}


def for_a_return(asked: Mapping[str, Any], accepted: Mapping[str, Any]) -> dict[str, Any]:
    """With which gates a failed rollout goes back to a release, so that a wish of today cannot break both ways.

    Those with which it was accepted, with the more patient deadline and the wider limit of then, of today and of the
    default; what is left out today stays left out.

    Args:
        asked: ``skip``, ``also``, ``limits`` and ``deadlines`` of today, which ``choose`` and ``limits`` have taken.
        accepted: the same of the release's last acceptance, as its record tells; what cannot be used counts as absent.

    Returns the four in the same form.
    """
    then = {**UNASKED, **accepted}
    try:
        choose(skip=then["skip"], also=then["also"], deadlines=then["deadlines"])
        limits(then["limits"])
    except (RefusedChoiceError, TypeError, AttributeError):
        then = UNASKED
    both = (asked, then)
    deadlines = {gate.name: max(gate.deadline, *(one["deadlines"].get(gate.name, 0) for one in both)) for gate in GATES}
    widest = {
        name: (min if name in SMALLER_IS_WIDER else max)(default, *(one["limits"].get(name, default) for one in both))
        for name, default in LIMITS.items()
    }
    return {
        "skip": sorted({*asked["skip"], *then["skip"]}),
        "also": sorted(set(then["also"])),
        "deadlines": {gate.name: deadlines[gate.name] for gate in GATES if deadlines[gate.name] != gate.deadline},
        "limits": {name: value for name, value in widest.items() if value != LIMITS[name]},
    }


def judge(gate: Gate, situation: Situation, answers: Answers) -> Seen:
    """Judge the answers; one of a shape that the judge does not know is a failed gate, not a broken play."""
    try:
        return gate.judge(situation, answers)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Seen(
            False, f"an answer of another shape ({type(error).__name__}: {error})", "answers as vLLM gives them"
        )


def more(gate: Gate, situation: Situation, answers: Answers) -> list[Group]:
    """Further requests that the gate wants after these answers; none when an answer has another shape than expected."""
    try:
        return gate.then(situation, answers) if gate.then else []
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
