"""Waiting for a pair: each rank's loop, and what the loops tell each other across processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sparkpair import shared
from sparkpair.waiting import HEARTBEAT, LOST_SECONDS, Outcome, Wait


def seen(state: str = "starting", phase: str = "loading weights", **more: Any) -> dict[str, Any]:
    """An answer of a rank."""
    watch = {"detail": "", "reason": "", "cursor": "c", "log_growth": 1, "lines": ["last line"], **more}
    return {"watch": {"state": state, "phase": phase, **watch}}


LOST = {"failed": True, "msg": "connection refused"}


@dataclass
class Rank:
    """A rank that answers from a list (the last answer again and again) and takes ``step`` seconds per look."""

    answers: list[dict[str, Any]]
    serves: bool = True
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    timeout: float = 600.0
    stall: float = 300.0
    step: float = 5.0
    at_look: dict[int, Callable[[], Any]] = field(default_factory=dict)
    now: float = 50.0
    looks: list[tuple[str, str, float]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)

    def look(self, cursor: str, phase: str, hold: float) -> dict[str, Any]:
        self.looks.append((cursor, phase, hold))
        assert len(self.looks) < 500, "the wait does not end"
        self.at_look.get(len(self.looks), lambda: None)()
        self.now += self.step
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def run(self) -> Outcome:
        return self.wait().run()

    def wait(self) -> Wait:
        return Wait(
            name="spark-0",
            serves=self.serves,
            timeout=self.timeout,
            stall=self.stall,
            look=self.look,
            show=self.shown.append,
            tell=self.told.append,
            others=lambda: self.others,
            clock=lambda: self.now,
        )


READY_HEAD = {"ready": True, "serves": True, "failed": ""}
STARTING_HEAD = {"ready": False, "serves": True, "failed": ""}
READY_WORKER = {"ready": True, "serves": False, "failed": ""}


def test_a_head_that_becomes_ready_ends_its_wait_and_tells_it() -> None:
    rank = Rank([seen(), seen(phase="capturing graphs", cursor="d"), seen("ready", "serving", cursor="e")])
    outcome = rank.run()
    assert outcome == Outcome(
        True, "", 15.0, ["last line"], {"loading weights": 5.0, "capturing graphs": 10.0, "serving": 15.0}
    )
    assert [t["ready"] for t in rank.told] == [False, False, True]
    assert rank.told[-1] == READY_HEAD


def test_each_look_hands_back_cursor_and_phase_of_the_last_one() -> None:
    rank = Rank([seen(cursor="1", phase="a"), seen(cursor="2", phase="b"), seen("ready", "b", cursor="3")])
    assert rank.run().ok
    assert rank.looks == [("", "", 5.0), ("1", "a", 5.0), ("2", "b", 5.0)]


@pytest.mark.parametrize("state", ["exited", "failed", "missing"])
def test_a_rank_that_fails_ends_at_once_with_its_lines_and_tells_why(state: str) -> None:
    rank = Rank([seen(), seen(state, reason="it broke", lines=["a", "b"])])
    outcome = rank.run()
    assert (outcome.ok, outcome.reason, outcome.seconds, outcome.lines) == (False, "it broke", 10.0, ["a", "b"])
    assert rank.told[-1] == {"ready": False, "serves": True, "failed": "spark-0: it broke"}


def test_the_wait_ends_early_when_another_rank_failed() -> None:
    rank = Rank([seen()], others={"wait-1": dict(STARTING_HEAD)})
    rank.at_look[3] = lambda: rank.others["wait-1"].update(failed="spark-1: ended with exit code 1")
    outcome = rank.run()
    assert not outcome.ok
    assert outcome.reason == "stopped waiting because spark-1: ended with exit code 1"
    assert len(rank.looks) == 3
    assert outcome.lines == ["last line"]


def test_another_rank_that_only_starts_ends_nothing() -> None:
    rank = Rank([seen(), seen(), seen("ready", "serving")], others={"wait-1": {**READY_WORKER, "ready": False}})
    assert rank.run().ok


def test_a_failure_of_ones_own_is_reported_before_that_of_another_rank() -> None:
    rank = Rank([seen("exited", reason="mine")], others={"wait-1": {**READY_WORKER, "failed": "theirs"}})
    assert rank.run().reason == "mine"


def test_the_timeout_names_the_phase_in_which_it_struck() -> None:
    rank = Rank([seen(phase="profiling memory")], timeout=60.0)
    outcome = rank.run()
    assert (outcome.ok, outcome.reason) == (False, "not ready within 60 s; it was profiling memory")
    assert len(rank.looks) == 13
    assert Rank([*[seen()] * 11, seen("ready")], timeout=60.0).run().ok


def test_a_silent_head_is_stalled_and_one_log_line_starts_the_count_again() -> None:
    silent = seen(log_growth=0)
    outcome = Rank([seen(), silent], stall=60.0).run()
    assert (outcome.ok, outcome.reason) == (False, "no log line for 65 s; it was loading weights")
    assert Rank([seen(), *[silent] * 12, seen(), *[silent] * 12, seen("ready")], stall=60.0).run().ok


def test_a_head_that_never_says_a_word_is_stalled_from_the_start() -> None:
    assert Rank([seen(log_growth=0)], stall=60.0).run().reason == "no log line for 65 s; it was loading weights"


def test_a_worker_may_be_silent_because_the_head_speaks_for_the_engine() -> None:
    rank = Rank([seen("ready", log_growth=0)], serves=False, stall=60.0, timeout=600.0, others={"0": STARTING_HEAD})
    assert rank.run().reason == "not ready within 600 s; it was loading weights"


SILENT = seen("silent", reason="docker ps: Cannot connect")


@pytest.mark.parametrize(("answer", "why"), [(LOST, "connection refused"), (SILENT, "docker ps: Cannot connect")])
def test_a_rank_that_was_busy_with_an_upgrade_ended_a_start_within_seconds(answer: dict[str, Any], why: str) -> None:
    rank = Rank([seen(), answer])
    outcome = rank.run()
    assert (outcome.ok, outcome.reason) == (False, f"no answer for {LOST_SECONDS:.0f} s ({why})")
    assert rank.shown[1:] == [f"spark-0: no answer ({why})"]
    assert rank.told[-1]["failed"] == f"spark-0: {outcome.reason}"
    assert len(rank.looks) == 1 + LOST_SECONDS / rank.step
    # One that comes back in time is followed on.
    assert Rank([seen(), answer, answer, answer, seen("ready")]).run().ok


def test_a_rank_that_is_given_up_ends_the_wait_of_the_others() -> None:
    """Regression: the SSH of the head was lost, and the worker was followed until ready_timeout."""
    head = Rank([seen("starting")])
    head.wait().give_up("cannot be reached any more")
    worker = Rank([seen("starting", "joining Ray")], serves=False, others={"head": head.told[-1]})
    outcome = worker.run()
    assert outcome.reason == "stopped waiting because spark-0: cannot be reached any more"
    assert len(worker.looks) == 1


def test_lost_looks_that_are_not_in_a_row_are_forgiven_and_keep_the_cursor() -> None:
    rank = Rank([seen(cursor="1"), LOST, LOST, seen(cursor="2"), LOST, LOST, seen("ready", cursor="3")])
    assert rank.run().ok
    assert [cursor for cursor, _, _ in rank.looks] == ["", "1", "1", "1", "2", "2", "2"]


def test_a_lost_look_without_a_message_is_shown_too() -> None:
    rank = Rank([{}, seen("ready")])
    assert rank.run().ok
    assert rank.shown[0] == "spark-0: no answer (unknown)"


def test_a_worker_waits_for_the_head() -> None:
    rank = Rank([seen("ready", "serving")], serves=False, others={"0": STARTING_HEAD, "2": READY_WORKER})
    rank.at_look[4] = lambda: rank.others.update({"0": READY_HEAD})
    outcome = rank.run()
    assert outcome.ok
    assert len(rank.looks) == 4
    assert [t["ready"] for t in rank.told] == [True] * 4


def test_a_worker_whose_own_log_never_says_that_it_joined_ends_with_the_head() -> None:
    """With executor mp the wait of a worker once lasted until its timeout."""
    silent = Rank([seen("starting")], serves=False, others={"wait-0": STARTING_HEAD})
    silent.at_look[3] = lambda: silent.others.update({"wait-0": READY_HEAD})
    assert silent.run().ok
    assert len(silent.looks) == 3


def test_a_head_does_not_wait_for_a_message_of_the_workers() -> None:
    rank = Rank([seen("ready")])
    assert rank.run().ok
    assert len(rank.looks) == 1


def test_a_worker_that_dies_after_it_was_ready_fails() -> None:
    rank = Rank([seen("ready"), seen("exited", reason="gone")], serves=False, others={"0": STARTING_HEAD})
    assert rank.run().reason == "gone"


def test_the_screen_gets_each_phase_once_and_a_heartbeat_of_the_head_in_long_ones() -> None:
    answers = [*[seen(detail="Loading 1/4")] * 15, seen("ready", "serving")]
    rank = Rank(list(answers))
    assert rank.run().ok
    assert rank.shown == [
        "spark-0: loading weights (5 s) Loading 1/4",
        "spark-0: still loading weights (40 s)",
        "spark-0: still loading weights (75 s)",
        "spark-0: serving (80 s)",
    ]
    assert HEARTBEAT == 30.0
    worker = Rank(list(answers), serves=False, others={"0": READY_HEAD})
    assert worker.run().ok
    assert [line for line in worker.shown if "still" in line] == []


# --- between processes -----------------------------------------------------------------------------------------------


def ask(folder: str, barrier: Any, answers: Any) -> None:
    barrier.wait(timeout=10)
    answers.put([shared.once(Path(folder), name) for name in ("ray_token", "other")])


def test_once_gives_several_processes_one_value_per_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    count = 6
    barrier, answers = context.Barrier(count), context.Queue()
    folder = tmp_path / "not" / "yet"
    processes = [context.Process(target=ask, args=(str(folder), barrier, answers)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=10) for _ in processes]
    for process in processes:
        process.join(timeout=10)
        assert process.exitcode == 0
    assert len({tuple(f) for f in found}) == 1
    first, other = found[0]
    assert first != other
    assert len(first) == 64
    assert set(first) <= set("0123456789abcdef")
    assert sorted(p.name for p in folder.iterdir()) == ["other", "ray_token"]


def test_a_process_that_comes_second_takes_the_value_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def overtaken(source: Path, target: Path) -> None:
        target.write_text("the first")
        real(source, target)

    monkeypatch.setattr(shared.os, "link", overtaken)
    assert shared.once(tmp_path, "token") == "the first"
    assert [p.name for p in tmp_path.iterdir()] == ["token"]


def test_each_run_has_a_value_of_its_own_and_only_its_user_reads_it(tmp_path: Path) -> None:
    one, two = (shared.once(tmp_path / run / "sparkpair", "ray_token") for run in ("run1", "run2"))
    assert one != two
    assert shared.once(tmp_path / "run1" / "sparkpair", "ray_token") == one
    assert stat.S_IMODE((tmp_path / "run1" / "sparkpair" / "ray_token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run1" / "sparkpair").stat().st_mode) == 0o700


def test_messages_are_heard_by_prefix_and_the_last_one_counts(tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    assert shared.heard(folder, "wait-1-") == {}
    shared.tell(folder, "wait-1-0", {"ready": False})
    shared.tell(folder, "wait-1-1", {"ready": True, "failed": "ü $x"})
    shared.tell(folder, "wait-2-0", {"ready": True})
    shared.tell(folder, "wait-1-0", {"ready": True})
    assert shared.heard(folder, "wait-1-") == {
        "wait-1-0": {"ready": True},
        "wait-1-1": {"ready": True, "failed": "ü $x"},
    }
    assert shared.heard(folder, "wait-3-") == {}
    assert len(list(folder.iterdir())) == 3


def test_a_reader_never_meets_half_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.tell(tmp_path, "wait-0", {"number": 1})
    real, during = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        during.append((shared.heard(tmp_path, "wait-"), json.loads(self.read_text())))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    shared.tell(tmp_path, "wait-0", {"number": 2})
    assert during == [({"wait-0": {"number": 1}}, {"number": 2})]
    assert shared.heard(tmp_path, "wait-") == {"wait-0": {"number": 2}}
