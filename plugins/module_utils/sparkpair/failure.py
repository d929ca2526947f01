"""What every rank of a run has said: which are lost, whose the lock is, and why a rollout failed.

Controller only. The list of a play's hosts does not tell who is lost: in a rescue it lacks those whose task failed as
well. So each rank that is still there says so in a fact that holds the id of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .inputs import plain

REASON_LENGTH = 300


@dataclass(frozen=True)
class Failure:
    """How the ranks stand.

    ``lost``: inventory names that have not said the run's id; ``theirs``: descriptions of locks that are not this
    run's any more; ``gates`` and ``figures``: what the gates found, empty when none ran; ``reason``: one line.
    """

    lost: list[str]
    theirs: list[str]
    reason: str
    gates: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def _mapping(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = variables.get(name)
    return plain(value) if isinstance(value, Mapping) else {}


def _reason(ranks: Mapping[str, Mapping[str, Any]], lost: list[str]) -> str:
    """Only a host whose task failed knows why."""
    for host, variables in ranks.items():
        if task := _mapping(variables, "ansible_failed_task"):
            said = str(_mapping(variables, "ansible_failed_result").get("msg") or "").strip() or "no reason"
            return f"{host}: {task.get('name')}: {said.splitlines()[0]}"[:REASON_LENGTH]
    return f"{', '.join(lost)} could not be reached" if lost else "not known"


def look(ranks: Mapping[str, Mapping[str, Any]], run: str, said: str, lock: str = "") -> Failure:
    """Join what the ranks have said.

    Args:
        ranks: inventory name of every host of the play, lost ones as well, to its variables.
        run: id of the run.
        said: name of the fact that a rank which is there has set to ``run``.
        lock: name of the variable in which it registered the result of ``spark_lock`` with ``run``; empty when
            nobody asks whose the lock is.
    """
    present = {host: variables for host, variables in ranks.items() if plain(variables.get(said)) == run}
    lost = [host for host in ranks if host not in present]
    locks = [_mapping(variables, lock) for variables in present.values()]
    gated = [_mapping(variables, "spark_gate_output") for variables in ranks.values()]
    found: dict[str, Any] = next((output for output in gated if output.get("gates")), {})
    return Failure(
        lost,
        [str(shown.get("text")) for shown in locks if shown.get("ours") is False],
        _reason(ranks, lost),
        found.get("gates", []),
        found.get("figures", {}),
    )
