"""The pair after ``stop``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.labtest import Run, weights_ledger


def test_stop_takes_the_pair_down_and_a_second_one_changes_nothing(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """Both containers are gone, the releases stay, and bad tuning is none of its business."""
    run = verb("stop", "-e", "verify_tokens=abc")
    assert (run.code, run.result["outcome"], run.result["changed"]) == (0, "ok", True), run.screen
    for spark in sparks:
        with spark.sudo():
            assert spark.check_output("docker ps -aq --filter label=sparkpair.release") == ""
            assert spark.file("/opt/sparkpair/current").is_symlink
    again = verb("stop")
    assert (again.code, again.result["changed"]) == (0, False), again.screen


def test_status_of_a_stopped_pair_fails_and_says_why(verb: Callable[..., Run]) -> None:
    """The release is known, the container is not there."""
    run = verb("status")
    assert run.code == 2
    assert "does not run; found no container" in run.screen
    assert run.result["outcome"] == "failed"


def test_the_weights_of_a_stopped_pair_are_known_without_reading_them(
    sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The stage of weights of the next deploy hashes and transfers nothing: neither file nor remembered hash moves."""
    before = [weights_ledger(spark) for spark in sparks]
    run = verb("weights")
    assert (run.code, run.result["outcome"], run.result["changed"]) == (0, "ok", False), run.screen
    assert [weights_ledger(spark) for spark in sparks] == before
