"""What is made of the ranks' facts after a rollout failed."""

from __future__ import annotations

from typing import Any

import pytest
from sparkpair.failure import Failure, look

RUN = "20261203T043306Z-1a2b3c4d"
OURS = {"ours": True, "text": "held by me"}
GATES = [{"name": "canary", "ok": False}]


def rank(**more: Any) -> dict[str, Any]:
    """Variables of a rank that is there."""
    return {"here": RUN, "lock": OURS, **more}


def seen(*ranks: dict[str, Any]) -> Failure:
    """What is made of these ranks."""
    return look({f"spark-{n}": variables for n, variables in enumerate(ranks)}, RUN, "here", "lock")


def test_ranks_that_are_there_with_their_own_lock_are_neither_lost_nor_somebody_elses() -> None:
    assert seen(rank(), rank()) == Failure([], [], "not known")


@pytest.mark.parametrize("said", [{}, {"here": "20260101T000000Z-another00"}, {"here": None}])
def test_a_rank_that_has_not_said_this_run_is_lost(said: dict[str, Any]) -> None:
    found = seen(rank(), said)
    assert (found.lost, found.reason) == (["spark-1"], "spark-1 could not be reached")


def test_a_lock_of_somebody_else_is_told_unless_its_rank_is_lost() -> None:
    other = {"ours": False, "text": "held by eve"}
    assert seen(rank(lock=other), rank()).theirs == ["held by eve"]
    assert seen(rank(), {"lock": other}).theirs == []


@pytest.mark.parametrize("lock", [None, {}, {"failed": True, "msg": "no answer"}, "odd"])
def test_a_rank_that_cannot_tell_whose_the_lock_is_counts_as_ours(lock: Any) -> None:
    assert seen(rank(lock=lock), rank()).theirs == []


def test_the_reason_is_the_first_line_of_the_first_rank_whose_task_failed() -> None:
    failed = {"ansible_failed_task": {"name": "Pass every gate"}, "ansible_failed_result": {"msg": " it broke\nhere "}}
    assert seen(rank(), rank(**failed)).reason == "spark-1: Pass every gate: it broke"
    assert seen(rank(**failed), {}).reason == "spark-0: Pass every gate: it broke"
    assert len(seen(rank(**failed | {"ansible_failed_result": {"msg": "x" * 999}})).reason) == 300


@pytest.mark.parametrize("result", [{}, {"msg": None}, {"msg": "  "}, None])
def test_a_failure_without_words_has_no_reason(result: Any) -> None:
    failed = {"ansible_failed_task": {"name": "Start"}, "ansible_failed_result": result}
    assert seen(rank(**failed)).reason == "spark-0: Start: no reason"


def test_gates_and_figures_come_from_the_rank_that_has_them() -> None:
    output = {"gates": GATES, "figures": {"draft_tokens_per_step": 3.0}}
    found = seen(rank(spark_gate_output={}), rank(spark_gate_output=output))
    assert (found.gates, found.figures) == (GATES, {"draft_tokens_per_step": 3.0})
    assert (seen(rank()).gates, seen(rank()).figures) == ([], {})
