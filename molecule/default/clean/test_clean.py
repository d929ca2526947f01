"""Sparks that nothing was deployed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.labtest import Run, tree


def test_check_mode_on_a_clean_pair_changes_nothing(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """The first deploy is shown as a diff; no directory, file or container appears."""
    run = verb("deploy", "-e", "verify_tokens=3", "--check", "--diff")
    assert run.code == 0, run.screen
    assert run.result["changed"] is True
    assert "DFLASH_VERIFY_TOKENS='3'" in run.screen
    for spark in sparks:
        assert tree(spark) == ""
        with spark.sudo():
            assert spark.check_output("docker ps -aq --filter label=sparkpair.release") == ""


def test_rollback_plans_stock_where_nothing_was_accepted(verb: Callable[..., Run]) -> None:
    """In check mode, with malformed tuning: stock is planned, and nobody is asked for a record."""
    run = verb("rollback", "-e", "verify_tokens=abc", "--check")
    assert run.code == 0, run.screen
    assert "stock is planned anew" in run.screen
    assert run.result["verify_tokens"] == 0


def test_status_of_a_clean_pair_fails_and_says_why(verb: Callable[..., Run]) -> None:
    """Exit code 2 and one reason per rank; bad tuning is none of its business."""
    run = verb("status", "-e", "verify_tokens=abc")
    assert run.code == 2
    assert "spark-0: no release is current" in run.screen
    assert "spark-1: no release is current" in run.screen
