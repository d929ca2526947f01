"""What the ranks said becomes what is to be done, and lines for the screen."""

from __future__ import annotations

from typing import Any

import pytest
from sparkpair.weights_pair import Progress, Verdict, judge, latest

from tests.planning import plan

GIB = 1024**3


def weights(manifest: str = "m", **change: Any) -> dict[str, Any]:
    """A complete model as a rank reports it."""
    return {
        "repository": "owner/target",
        "revision": "a" * 40,
        "manifest": manifest,
        "files": 120,
        "bytes": 164 * GIB,
        "lacking_files": 0,
        "lacking_bytes": 0,
        "lacking": [],
        "unlinked": 0,
        "unknown_bytes": 0,
        "complete": True,
    } | change


def lacks(*files: str, count: int = 1, size: int = GIB) -> dict[str, Any]:
    """A model of which files are missing."""
    return weights(lacking=list(files), lacking_files=count, lacking_bytes=size, complete=False)


def verdict(
    *ranks: dict[str, Any], obstacles: dict[int, list[str]] | None = None, transfer: str = "fabric", dry: bool = False
) -> Verdict:
    """Judge ranks of one model each."""
    results = {f"spark-{n}": {"weights": [w], "obstacles": (obstacles or {}).get(n, [])} for n, w in enumerate(ranks)}
    return judge(plan(ranks=len(ranks)), results, transfer=transfer, dry=dry)


def test_equal_and_complete_ranks_need_nothing() -> None:
    seen = verdict(weights(), weights(), obstacles={0: ["x"], 1: ["y"]})
    assert (seen.complete, seen.head, seen.compare, seen.receivers, seen.problems) == (True, False, [], [], [])
    assert seen.lines[1].split()[:3] == ["0", "spark-0", "owner/target"]
    assert all(line.endswith("complete, 120 files, 164.0 GiB") for line in seen.lines[1:])


@pytest.mark.parametrize(
    "worker", [weights("other"), weights("", files=0, complete=False), weights("other", complete=False)]
)
def test_a_rank_with_another_manifest_is_compared_first_and_nothing_is_copied_yet(worker: dict[str, Any]) -> None:
    seen = verdict(weights(), worker, obstacles={1: ["no room"]}, transfer="none")
    assert (seen.complete, seen.compare, seen.receivers, seen.problems) == (False, ["spark-1"], [], [])
    assert seen.lines[2].endswith("not compared yet")


def test_every_rank_that_lacks_files_receives_them() -> None:
    seen = verdict(weights(), lacks("x is missing"), weights(), lacks("y is missing"))
    assert seen.receivers == ["spark-1", "spark-3"]
    assert seen.lines[2].endswith("1.0 GiB to bring, 1 of 120 files: x is missing")


def test_without_a_transfer_what_a_rank_lacks_is_a_problem() -> None:
    seen = verdict(weights(), lacks("x is missing", "y holds 1 of 2 bytes", count=5), transfer="none")
    assert seen.problems == [
        "spark-1: owner/target: x is missing; y holds 1 of 2 bytes; and 3 more; "
        "with spark_weights_transfer none nothing is copied"
    ]
    unlinked = verdict(weights(), weights(unlinked=2, complete=False), transfer="none")
    assert "owner/target: 2 files are not linked" in unlinked.problems[0]


def test_what_stands_in_the_way_is_a_problem_of_those_who_lack_files_only() -> None:
    seen = verdict(weights(), lacks("x is missing"), weights(), obstacles={0: ["a"], 1: ["no room"], 2: ["b"]})
    assert seen.problems == ["spark-1: no room"]
    assert verdict(lacks("x is missing"), weights(), obstacles={0: ["no room"]}).problems == ["spark-0: no room"]


def test_a_head_that_lacks_files_brings_them_first() -> None:
    seen = verdict(lacks("x is missing", size=2 * GIB), weights())
    assert (seen.complete, seen.head) == (False, True)


def test_check_mode_words_it_as_what_would_be() -> None:
    seen = verdict(weights(unknown_bytes=3 * GIB, complete=False), lacks("x is missing"), dry=True)
    assert seen.lines[1].endswith("3.0 GiB would be hashed")
    assert seen.lines[2].endswith("1.0 GiB would be brought, 1 of 120 files: x is missing")
    linked = verdict(weights(), weights(unlinked=3, complete=False), dry=True)
    assert linked.lines[2].endswith("3 files would be linked")


def test_progress_has_bytes_rate_and_time_left() -> None:
    progress = Progress("spark-1", "copying weights")
    assert progress.line(100 * GIB, 50.0) == "spark-1: copying weights, 100.0 GiB"
    assert progress.line(80 * GIB, 60.0) == "spark-1: copying weights, 20.0 GiB of 100.0 GiB, 2.0 GiB/s, 40 s left"
    assert progress.line(0, 100.0) == "spark-1: copying weights, 100.0 GiB of 100.0 GiB, 2.0 GiB/s"
    assert progress.ended(0, 3700.0) == "spark-1: copying weights, done: 100.0 GiB in 1 h 1 min"


def test_the_first_result_that_a_host_has_counts() -> None:
    variables = {"later": {"skipped": True}, "first": {"weights": []}, "older": {"weights": [1]}}
    assert latest(["later", "first", "older"], variables) is variables["first"]
    assert latest(["absent", "later"], variables) == {}
