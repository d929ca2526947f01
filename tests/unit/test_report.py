"""The record of a run: fragments merged, one folder per run, and a link to the latest."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sparkpair.report import PLAN_KEYS, Report

from tests.planning import plan

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LATER = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
GATE = {"name": "health", "ok": True, "seen": "200", "wanted": "200", "seconds": 0.1}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


# --- merging ---------------------------------------------------------------------------------------------------------


def test_a_run_that_said_nothing_has_every_key() -> None:
    made = Report("status", started=NOON).result(failed=False)
    assert made.pop("seconds") >= 0
    assert made == {
        "verb": "status",
        "outcome": "ok",
        "check_mode": False,
        "changed": False,
        "started": "2026-03-01T12:00:00Z",
        "release": None,
        "endpoint": None,
        "verify_tokens": None,
        "dflash_tokens": None,
        "spec_method": None,
        "draft_tokens_per_step": None,
        "gates": [],
        "ranks": [],
        "findings": [],
        "messages": [],
        "files": [],
        "phases": [],
    }


@pytest.mark.parametrize(
    ("stated", "failed", "outcome"),
    [
        (None, False, "ok"),
        (None, True, "failed"),
        ("refused", True, "refused"),
        ("nothing to do", False, "nothing to do"),
    ],
)
def test_a_stated_outcome_is_stronger_than_the_exit_code(stated: str | None, failed: bool, outcome: str) -> None:
    report = Report("deploy")
    report.merge({"outcome": stated} if stated else {})
    assert report.result(failed=failed)["outcome"] == outcome


@pytest.mark.parametrize("key", ["gates", "findings", "messages"])
def test_lists_grow_in_order_and_hold_nothing_twice(key: str) -> None:
    report = Report("deploy")
    first, second, third = ({**GATE, "name": name} for name in ("a", "b", "c"))
    report.merge({key: [first]})
    report.merge({key: [second, second, first]})
    report.merge({key: [third]})
    assert report.result(failed=False)[key] == [first, second, third]


def test_gates_that_differ_in_one_value_are_two_gates() -> None:
    report = Report("deploy")
    report.merge({"gates": [GATE]})
    report.merge({"gates": [{**GATE, "ok": False}]})
    assert len(report.gates) == 2


def test_ranks_are_replaced_because_the_last_look_counts() -> None:
    report = Report("status")
    report.merge({"ranks": [{"rank": 0, "release": None}, {"rank": 1, "release": None}]})
    report.merge({"ranks": [{"rank": 0, "release": "0123456789ab"}]})
    assert report.result(failed=False)["ranks"] == [{"rank": 0, "release": "0123456789ab"}]


def test_of_a_plan_only_its_summary_is_kept_and_later_values_win() -> None:
    report = Report("deploy")
    made = plan(verify_tokens=3)
    report.merge({"plan": made})
    assert set(report.plan) == set(PLAN_KEYS)
    found = report.result(failed=False)
    assert (found["release"], found["endpoint"]) == (made["release"], made["endpoint"])
    assert (found["verify_tokens"], found["dflash_tokens"], found["spec_method"]) == (3, 7, "dflash")
    assert "settings" not in json.dumps(found)
    report.merge({"plan": {"release": "ba9876543210"}})
    found = report.result(failed=False)
    assert (found["release"], found["verify_tokens"]) == ("ba9876543210", 3)


def test_other_keys_are_taken_as_they_are_and_the_last_one_wins() -> None:
    report = Report("benchmark")
    report.merge({"draft_tokens_per_step": 2.5, "tokens": {"a": 1}})
    report.merge({"draft_tokens_per_step": 3.0})
    found = report.result(failed=False)
    assert found["draft_tokens_per_step"] == 3.0
    assert found["tokens"] == {"a": 1}


def test_phases_are_listed_in_order_with_their_seconds() -> None:
    report = Report("deploy", phases={"plan": 0.1234, "gate": 20.0})
    assert report.result(failed=False)["phases"] == [
        {"name": "plan", "seconds": 0.12},
        {"name": "gate", "seconds": 20.0},
    ]


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_report_is_written_below_its_verb_and_latest_leads_to_it(tmp_path: Path) -> None:
    report = Report("deploy", started=NOON)
    report.merge({"messages": ["größe"]})
    path = report.write(tmp_path / "reports", failed=True)
    assert path == tmp_path / "reports" / "deploy" / "20260301T120000Z" / "result.json"
    assert read(path)["messages"] == ["größe"]
    assert read(path)["outcome"] == "failed"
    assert "größe" in path.read_text()
    latest = tmp_path / "reports" / "deploy" / "latest"
    assert latest.readlink() == Path("20260301T120000Z")
    assert read(latest / "result.json") == read(path)


def test_latest_moves_to_the_next_run_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    first = Report("deploy", started=NOON).write(tmp_path, failed=False)
    second = Report("deploy", started=LATER).write(tmp_path, failed=True)
    assert first.exists()
    assert (tmp_path / "deploy" / "latest").resolve() == second.parent
    assert sorted(p.name for p in (tmp_path / "deploy").iterdir()) == ["20260301T120000Z", "20260301T120001Z", "latest"]


def test_verbs_have_a_latest_each(tmp_path: Path) -> None:
    deployed = Report("deploy", started=NOON).write(tmp_path, failed=False)
    Report("status", started=LATER).write(tmp_path, failed=False)
    assert (tmp_path / "deploy" / "latest").resolve() == deployed.parent


def test_a_check_mode_run_is_recorded_and_does_not_move_latest(tmp_path: Path) -> None:
    real = Report("deploy", started=NOON).write(tmp_path, failed=False)
    checked = Report("deploy", check_mode=True, started=LATER).write(tmp_path, failed=False)
    assert checked.parent.name == "20260301T120001Z-check"
    assert read(checked)["check_mode"] is True
    assert (tmp_path / "deploy" / "latest").resolve() == real.parent
    alone = Report("rollback", check_mode=True, started=NOON).write(tmp_path, failed=False)
    assert [p.name for p in alone.parent.parent.iterdir()] == ["20260301T120000Z-check"]


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        report = Report("deploy", started=NOON)
        report.merge({"messages": [f"run {number}"]})
        paths.append(report.write(tmp_path, failed=False))
    assert [p.parent.name for p in paths] == ["20260301T120000Z", "20260301T120000Z-2", "20260301T120000Z-3"]
    assert [read(p)["messages"] for p in paths] == [["run 0"], ["run 1"], ["run 2"]]
    assert (tmp_path / "deploy" / "latest").resolve() == paths[-1].parent


def test_latest_is_never_missing_while_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Report("deploy", started=NOON).write(tmp_path, failed=False)
    latest, real, seen = tmp_path / "deploy" / "latest", Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        seen.append(latest.resolve().name)
        moved = real(self, target)
        seen.append(latest.resolve().name)
        return moved

    monkeypatch.setattr(Path, "replace", replace)
    Report("deploy", started=LATER).write(tmp_path, failed=False)
    assert seen == ["20260301T120000Z", "20260301T120001Z"]


def test_files_of_a_run_lie_beside_its_result_and_never_outside(tmp_path: Path) -> None:
    report = Report("deploy", started=NOON)
    report.merge({"files": {"diagnostics/spark-0/memory.txt": "MemFree"}})
    path = report.write(tmp_path, failed=True)
    assert (path.parent / "diagnostics/spark-0/memory.txt").read_text() == "MemFree"
    assert json.loads(path.read_text())["files"] == ["diagnostics/spark-0/memory.txt"]
    report.merge({"files": {"../../outside": "x"}})
    with pytest.raises(ValueError, match="leaves the report"):
        report.write(tmp_path, failed=True)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_full_disk_leaves_no_half_result_and_no_latest_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    Report("deploy", started=NOON).write(tmp_path, failed=False)

    def full(path: Path, text: str) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, f"no room for {len(text)} characters")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no room"):
        patched.setattr(Path, "write_text", full)
        Report("deploy", check_mode=check_mode, started=LATER).write(tmp_path, failed=True)
    earlier = ["20260301T120000Z"]
    assert sorted(p.name for p in (tmp_path / "deploy").iterdir()) == earlier + ["latest"] * check_mode


def test_a_latest_that_is_no_link_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "deploy" / "latest").mkdir(parents=True)
    with pytest.raises(OSError, match="latest"):
        Report("deploy", started=NOON).write(tmp_path, failed=False)
    assert sorted(p.name for p in (tmp_path / "deploy").iterdir()) == ["20260301T120000Z", "latest"]
    assert read(tmp_path / "deploy" / "20260301T120000Z" / "result.json")["outcome"] == "ok"
