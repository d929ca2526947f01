"""Each fault of the matrix, injected on the local pair, and a second run that heals.

A stand-in plays the engine (``tests/standin``): what a real one would not do on demand is what is wanted here. The rows
build on each other only through the old release that each of them finds and leaves serving.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from bench import OLD, Bench, Process, new
from injections import INJECTIONS, STARTED

from tests.fault_matrix import DOWN, FAULTS, LOCKED, RETURNED, UNTOUCHED, Fault
from tests.labtest import Run, engine
from tests.standin import image as standin

FIRST = FAULTS[0]
WANTED = [fault for fault in FAULTS if os.environ.get("FAULTS") == "all" or not fault.again]
# Each row ends with the old release serving; only after one that failed must the next make sure of that.
SERVING = {"by": ""}


@pytest.fixture
def bench(sparks: list[Any], verb: Callable[..., Run]) -> Bench:
    """The pair, each rank with the image that holds the stand-in."""
    made = Bench(sparks, verb)
    for rank in (0, 1):
        if sparks[rank].run(f"sudo docker image inspect {standin.tag()}").rc != 0:
            made.load(rank, standin.tag())
    return made


def test_every_row_has_an_injection_and_no_other_is_there() -> None:
    assert {fault.name for fault in FAULTS} == set(INJECTIONS)


@pytest.mark.parametrize("fault", WANTED, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault(bench: Bench, fault: Fault) -> None:
    """The end state is the row's, nothing half is left, and a second run of the old release heals."""
    if fault is not FIRST and SERVING["by"] != "a row that passed":
        bench.verb("lock", "-e", "lock=release", "-e", "reason=the row before this one failed")
        healed(bench)
    SERVING["by"] = ""
    old = bench.current(0)
    before = bench.started() if fault is not FIRST else []
    run = INJECTIONS[fault.name](bench)
    # A controller that vanished says nothing more; what its lock tells is read in the next run.
    assert fault.end == LOCKED or fault.says in run.screen, run.screen[-6000:]
    {UNTOUCHED: untouched, RETURNED: returned, DOWN: down, LOCKED: locked}[fault.end](bench, fault, run, old, before)
    healed(bench)
    assert bench.leftovers() == []
    SERVING["by"] = "a row that passed"


def healed(bench: Bench) -> None:
    """The old release serves, as it was accepted."""
    run = bench.deploy(*OLD)
    assert run.code == 0, run.screen[-6000:]
    drift = bench.verb("drift")
    assert drift.code == 0, drift.screen


def untouched(bench: Bench, fault: Fault, run: Run, old: str, before: list[str]) -> None:
    """Nothing was stopped."""
    assert [bench.current(0), bench.current(1)] == [old, old]
    if fault.name != "two controllers":
        assert bench.started() == before
    if fault.lost is None:
        assert bench.lock() == ["", ""]
    else:
        # The rank that was lost could not be given its lock back.
        assert bench.lock() == [fault.phase if rank == fault.lost else "" for rank in (0, 1)]
        refused_and_released(bench)
    # Two rows are controls as well: the fault must not keep a run from finding that all is well.
    harmless = fault.name in {"login banner", "history damaged"}
    assert (run.code == 0) == harmless, run.screen[-3000:]


def returned(bench: Bench, fault: Fault, run: Run, old: str, before: list[str]) -> None:
    """The new release failed, the old one serves again, and the report holds diagnostics of every rank."""
    del fault
    assert run.code == 2
    assert run.result["outcome"] == "rolled_back", run.screen[-6000:]
    assert f"rolled back to {old}" in run.result["messages"]
    assert {name.split("/")[1] for name in run.result["files"]} == {"spark-0", "spark-1"}
    assert [bench.current(0), bench.current(1)] == [old, old]
    assert bench.started() != before
    assert bench.lock() == ["", ""]
    status = bench.verb("status")
    assert status.code == 0, status.screen


def down(bench: Bench, fault: Fault, run: Run, old: str, before: list[str]) -> None:
    """Every rank that could be reached is stopped; the lock says why, where there was a pair to lose."""
    del old, before
    reached = [rank for rank in (0, 1) if rank != fault.lost]
    assert {rank: bench.sudo(rank, "docker ps -aq") for rank in reached} == dict.fromkeys(reached, "")
    if fault.phase == "later":
        assert run.code == 2
        return
    assert run.result["outcome"] == "not_restored", run.screen[-6000:]
    if fault is FIRST:
        assert bench.lock() == ["", ""]
        return
    assert "stopped" in bench.lock()[reached[0]]
    refused_and_released(bench)


def locked(bench: Bench, fault: Fault, run: Run, old: str, before: list[str]) -> None:
    """The lock of the run that vanished names its phase, and the next run tells of it."""
    del run, old, before
    assert fault.phase in bench.lock()[0]
    assert fault.says in refused_and_released(bench)
    run = bench.deploy(*OLD)
    assert "was interrupted in phase" in run.screen, run.screen[-6000:]
    assert run.code == 0, run.screen[-6000:]


def refused_and_released(bench: Bench) -> str:
    """While the lock stays nothing is deployed; an operator releases it with a reason. Returns the refusal's screen."""
    run = bench.deploy(*OLD)
    assert run.code == 2
    assert "never taken over" in run.screen
    assert bench.verb("lock", "-e", "lock=release", "-e", "reason=seen").code == 0
    return run.screen


def test_a_network_that_is_gone_for_a_moment_costs_a_rollout_nothing(bench: Bench) -> None:
    """Every packet of the worker's SSH is refused for two seconds while the engine starts."""

    def blip(_: Process) -> None:
        bench.cut(1)
        time.sleep(2)
        bench.mend(1)

    run = bench.deploy(*new("slow"), at=STARTED, then=blip)
    assert run.code == 0, run.screen[-6000:]
    healed(bench)
    assert bench.leftovers() == []


def test_a_run_whose_lock_was_released_leaves_the_pair_as_it_is(bench: Bench) -> None:
    """A person has released the lock during the start: what runs now may be somebody else's, so nothing is stopped."""
    run = bench.deploy(
        *new("slow"), at=STARTED, then=lambda _: bench.verb("lock", "-e", "lock=release", "-e", "reason=seen")
    )
    assert (run.code, run.result["outcome"]) == (2, "failed"), run.screen[-6000:]
    assert "so the pair is left as it is" in run.screen
    assert all(engine(spark)["State"]["Running"] for spark in bench.sparks)
    assert bench.lock() == ["", ""]
    healed(bench)
    assert bench.leftovers() == []


def test_a_controller_that_sleeps_through_a_colleagues_deploy_accepts_nothing(bench: Bench) -> None:
    """It is suspended after its last gate; what the colleague has deployed meanwhile stays, in the record as well."""
    theirs: list[Run] = []

    def sleep_through(process: Process) -> None:
        os.killpg(process.pid, signal.SIGSTOP)
        assert bench.verb("lock", "-e", "lock=release", "-e", "reason=the laptop is away").code == 0
        theirs.append(bench.verb("deploy", *new("", "-e", "port=8890")))
        os.killpg(process.pid, signal.SIGCONT)

    run = bench.deploy(*new(), at="TASK [spark_gate : Join what both rounds of gates found]", then=sleep_through)
    assert theirs[0].code == 0, theirs[0].screen[-6000:]
    assert (run.code, run.result["outcome"]) == (2, "failed"), run.screen[-6000:]
    assert "so the pair is left as it is" in run.screen
    assert bench.current(0) == bench.current(1) == theirs[0].result["release"]
    drift = bench.verb("drift")
    assert drift.code == 0, drift.screen
    healed(bench)
    assert bench.leftovers() == []


def test_a_rollback_to_a_release_whose_image_is_gone_is_refused(bench: Bench) -> None:
    """The image of the old release was removed from the worker; the pair serves on."""
    old, tag = bench.current(0), "sparkpair-lab/standin:newer"
    for rank in (0, 1):
        bench.load(rank, tag, {"opt/standin/note": b"newer"})
    newer = bench.deploy(*new("", "-e", f"image={tag}", "-e", "image_transfer=none"))
    assert newer.code == 0, newer.screen[-6000:]
    before = bench.started()
    bench.sudo(1, f"docker image rm -f {standin.tag()}")
    try:
        run = bench.verb("rollback", "-e", f"release={old}")
        assert run.code == 2
        assert standin.tag() in run.screen, run.screen[-6000:]
        assert bench.started() == before
        assert bench.lock() == ["", ""]
    finally:
        bench.load(1, standin.tag())
    back = bench.verb("rollback", "-e", f"release={old}")
    assert back.code == 0, back.screen[-6000:]
    assert [bench.current(0), bench.current(1)] == [old, old]
