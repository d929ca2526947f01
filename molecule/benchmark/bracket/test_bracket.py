"""The default bracket on the real engine, in a few tokens, a measurement of what serves, and Ctrl-C.

The tests of this file build on each other in the order in which they stand: the first deploys four arms.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.labtest import Run, engine, tree

TOKENS = 48
SHORT = ("-e", "spark_benchmark_runs=2", "-e", f"spark_benchmark_tokens={TOKENS}")
WIDTHS = {"A1": 7.0, "B": 3.0, "C": 3.0, "A2": 7.0}
BANNER = "This proves the procedure, not speed"


def current(spark: Any) -> tuple[str, str]:
    """The release that a rank's link names, and the one that its engine runs."""
    with spark.sudo():
        linked = spark.file("/opt/sparkpair/current").linked_to.rsplit("/", 1)[-1]
    return linked, engine(spark)["Config"]["Labels"]["sparkpair.release"]


def history(spark: Any) -> list[dict[str, Any]]:
    """A rank's own record."""
    with spark.sudo():
        lines = spark.check_output("cat /opt/sparkpair/history.jsonl").splitlines()
    return [json.loads(line) for line in lines]


def lock(spark: Any) -> bool:
    """Whether a rank's rollout lock is held."""
    with spark.sudo():
        return bool(spark.file("/opt/sparkpair/lock").exists)


def drafted(arm: dict[str, Any], workload: str) -> float:
    """Draft tokens per step over the runs of a workload, from the engine's own counters."""
    counted = [run["counted"] for run in arm["measured"][workload]["runs"]]
    return float(sum(c["draft_tokens"] for c in counted) / sum(c["drafts"] for c in counted))


def test_bracket_measures_every_width_and_puts_back_what_served(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """7.0, 3.0, 3.0 and 7.0 draft tokens per step; report written; the release from before serves, accepted again."""
    before = [current(spark) for spark in sparks]
    run = verb("benchmark", "-e", "workloads=count,mixed", *SHORT)
    assert (run.code, run.result["outcome"]) == (0, "ok"), run.screen
    found = json.loads(Path(run.result["benchmark"]["results"]).read_text())
    assert (found["status"], found["restored"], found["procedure_only"]) == ("complete", True, True)

    arms = {arm["id"]: arm for arm in found["arms"]}
    assert list(arms) == list(WIDTHS)
    assert {name: drafted(arm, "count") for name, arm in arms.items()} == pytest.approx(WIDTHS, abs=0.005)
    for name, arm in arms.items():
        runs = arm["measured"]["count"]["runs"]
        assert [(r["tokens"], r["finish_reason"], r["error"]) for r in runs] == [(TOKENS, "length", None)] * 2, name
        # One series per configured draft, so none of the wide proposal's may be counted beyond what is verified.
        assert not any(any(r["counted"]["per_position"][int(WIDTHS[name]) :]) for r in runs), name
        attempts = arm["measured"]["mixed"]["attempts"]
        assert [a["guided_fault"] for a in attempts] == ["", ""], name
        assert all(a["skew"] is not None for a in attempts), name
    assert "arm B 7/3 (2/4), count 1-200 (1/2), run 2/2: " in run.screen
    assert " min left" in run.screen
    assert run.result["benchmark"]["sentence"] in run.screen

    page = Path(run.result["benchmark"]["html"]).read_text()
    text = Path(run.result["benchmark"]["markdown"]).read_text()
    assert BANNER in page
    assert BANNER.upper() in text
    assert "| count 1-200 |" in text
    assert text.count("never decoded together") + text.count("| yes |") == len(WIDTHS) * 2
    assert "<svg" in page
    assert not any(word in page for word in ("<script", "<link", "src=", "@import"))

    assert [current(spark) for spark in sparks] == before
    assert not any(lock(spark) for spark in sparks)
    for spark in sparks:
        entries = [e for e in history(spark) if e["run"].startswith(found["id"])]
        assert [(e["run"].rsplit("-", 1)[-1], e["outcome"], e["verb"]) for e in entries] == [
            (name, "accepted", "benchmark") for name in (*WIDTHS, "restore")
        ]
    status = verb("status")
    assert status.code == 0, status.screen
    assert status.result["draft_tokens_per_step"] == pytest.approx(1.0)


def test_what_serves_is_measured_without_a_change(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """``arms=current``: same container start, same files, nothing changed; the width of the release that serves."""
    before = [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks]
    run = verb("benchmark", "-e", "arms=current", "-e", "workloads=count", *SHORT)
    assert (run.code, run.result["outcome"], run.result["changed"]) == (0, "ok", False), run.screen
    found = json.loads(Path(run.result["benchmark"]["results"]).read_text())
    assert (found["status"], [a["spec"] for a in found["arms"]]) == ("complete", ["current"])
    assert drafted(found["arms"][0], "count") == pytest.approx(1.0, abs=0.005)
    assert "Measured only; nothing was compared." in Path(run.result["benchmark"]["markdown"]).read_text()
    assert [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks] == before


def test_the_first_interruption_puts_back_what_served(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """Ctrl-C after the warm-up of an arm: the measurement ends, the release from before serves, and no lock stays."""
    before = [current(spark) for spark in sparks]
    run = verb(
        "benchmark",
        *("-e", "arms=stock", "-e", "workloads=count", *SHORT),
        at=", warm-up: ",
        then=lambda process: process.send_signal(signal.SIGINT),
    )
    assert (run.code, run.result["outcome"]) == (2, "failed"), run.screen
    assert "Stopping after the answer at hand" in run.screen
    assert "stopped on request" in run.screen
    found = json.loads(Path(run.result["benchmark"]["results"]).read_text())
    assert (found["status"], found["restored"]) == ("unfinished", True)
    assert [current(spark) for spark in sparks] == before
    assert not any(lock(spark) for spark in sparks)
    assert verb("status").result["draft_tokens_per_step"] == pytest.approx(1.0)
