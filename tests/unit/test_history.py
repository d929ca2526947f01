"""Records of the ranks: appended, joined, compared; and where a rollback or a return goes by them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sparkpair import history, live, rollback
from sparkpair.screen import history_table

A, B, C, D = (letter * 12 for letter in "abcd")
NAMES = {0: "spark-0", 1: "spark-1"}
ADDRESSES = {0: "192.0.2.1", 1: "192.0.2.2"}


def entry(release: str, outcome: str = "accepted", **more: Any) -> dict[str, Any]:
    """One line of a record."""
    return {"run": f"run-{release}-{outcome}", "release": release, "outcome": outcome, "stock": False, **more}


def state(*entries: dict[str, Any], current: str | None = None, **more: Any) -> dict[str, Any]:
    """State of a rank that holds every release of its record, complete."""
    return {
        "hostname": "spark",
        "history": list(entries),
        "history_damaged": [],
        "history_fault": "",
        "lock": None,
        "leftovers": [],
        "containers": [],
        "current": current,
        "checks": {e["release"]: [] for e in entries if e["release"]},
        **more,
    }


def pair(*entries: dict[str, Any], current: str | None = None) -> dict[int, Any]:
    """Two ranks with the same record."""
    return {0: state(*entries, current=current), 1: state(*entries, current=current)}


# --- appending -------------------------------------------------------------------------------------------------------


def test_entries_are_appended_and_never_twice_in_a_row(tmp_path: Path) -> None:
    assert history.append(tmp_path, entry(A))
    assert not history.append(tmp_path, entry(A))
    assert history.append(tmp_path, entry(A, "rolled_back"))
    assert not history.append(tmp_path, entry(A, "rolled_back"))
    assert [e["outcome"] for e in history.read(tmp_path).entries] == ["accepted", "rolled_back"]


def test_a_run_that_puts_back_what_served_a_second_time_is_recorded_again(tmp_path: Path) -> None:
    for release, run in ((A, "bench-A1"), (B, "bench-restore"), (C, "bench-B"), (B, "bench-restore")):
        assert history.append(tmp_path, entry(release, run=run))
    assert [e["release"] for e in history.read(tmp_path).entries] == [A, B, C, B]


def test_a_line_cut_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    history.append(tmp_path, entry(A))
    with (tmp_path / history.FILE).open("a") as stream:
        stream.write('{"run": "cut')
    history.append(tmp_path, entry(B))
    found = history.read(tmp_path)
    assert [e["release"] for e in found.entries] == [A, B]
    assert found.damaged == [2]


def test_a_disk_that_takes_half_an_entry_keeps_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history.append(tmp_path, entry(A))
    before, write = (tmp_path / history.FILE).read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, content: write(handle, content[:20]))
        with pytest.raises(OSError, match="No space left"):
            history.append(tmp_path, entry(B))
    assert (tmp_path / history.FILE).read_bytes() == before
    assert history.append(tmp_path, entry(B))
    assert [e["release"] for e in history.read(tmp_path).entries] == [A, B]


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\x1c", "\n", "\r"])
def test_no_mark_in_a_text_cuts_its_line(tmp_path: Path, mark: str) -> None:
    history.append(tmp_path, entry(A, reason=f"seen{mark}by eve"))
    found = history.read(tmp_path)
    assert [e["reason"] for e in found.entries] == [f"seen{mark}by eve"]
    assert found.damaged == []


@pytest.mark.parametrize(
    "odd",
    [
        {"reason": "half of a character: \\ud800"},
        {"time": 20260301},
        {"gates": 7},
        {"gates": ["auth"]},
        {"gates": [{"name": "auth"}]},
        {"start_seconds": "40"},
        {"figures": {"kv_pool_tokens": "many"}},
        {"figures": [1]},
        {"release": None},
        {"start_seconds": float("nan")},
    ],
    ids=str,
)
def test_an_entry_that_nobody_can_work_with_counts_as_damaged(tmp_path: Path, odd: dict[str, Any]) -> None:
    history.append(tmp_path, entry(A))
    line = json.dumps(entry(B) | odd).replace("\\\\ud800", "\\ud800")
    with (tmp_path / history.FILE).open("a") as stream:
        stream.write(line + "\n" + "[" * 100_000 + "\n")
    history.append(tmp_path, entry(C))
    found = history.read(tmp_path)
    assert [e["release"] for e in found.entries] == [A, C]
    assert found.damaged == [2, 3]
    json.dumps(found.entries, ensure_ascii=False).encode()


def test_an_entry_as_runs_write_it_counts(tmp_path: Path) -> None:
    whole = entry(
        A,
        time="2026-03-01T00:00:00Z",
        gates=[{"name": "auth", "ok": True}],
        figures={"kv_pool_tokens": 1.5},
        start_seconds=40.5,
        previous=None,
        phases={"ray": 3.0},
    )
    history.append(tmp_path, whole)
    assert history.read(tmp_path) == history.History([whole], [])


# --- records that differ ---------------------------------------------------------------------------------------------


def test_equal_records_have_nothing_to_say() -> None:
    assert history.disagreements(pair(entry(A), entry(B)), NAMES) == []


def test_a_rank_that_was_offline_is_named_with_what_it_lacks() -> None:
    states = {0: state(entry(A), entry(B)), 1: state(entry(A))}
    (text,) = history.disagreements(states, NAMES)
    assert text.startswith(f"spark-1: the record lacks 1 run(s) that another rank has (run-{B}-accepted)")


def test_a_rank_that_missed_the_second_time_of_a_run_is_named() -> None:
    states = {0: state(entry(A), entry(B), entry(A)), 1: state(entry(A), entry(B))}
    (text,) = history.disagreements(states, NAMES)
    assert text.startswith(f"spark-1: the record lacks 1 run(s) that another rank has (run-{A}-accepted)")
    found = history.merged(states)
    assert [(e["release"], e["ranks"]) for e in found] == [(A, [0, 1]), (B, [0, 1]), (A, [0])]


def test_a_damaged_line_is_named() -> None:
    states = {0: state(entry(A)), 1: state(entry(A), history_damaged=[3, 7])}
    assert history.disagreements(states, NAMES) == [
        "spark-1: line 3, 7 of history.jsonl cannot be read and is passed over"
    ]


def test_a_run_is_shown_once_with_the_ranks_that_hold_it() -> None:
    late, early = entry(B, time="2026-03-02T00:00:00Z"), entry(A, time="2026-03-01T00:00:00Z")
    found = history.merged({0: state(late, early), 1: state(early)})
    assert [(e["release"], e["ranks"]) for e in found] == [(A, [0, 1]), (B, [0])]
    shown = history_table(found, NAMES)
    assert "all ranks" in shown[1]
    assert "not on spark-1" in shown[2]
    assert history_table([], NAMES) == ["no run is on record"]


@pytest.mark.parametrize(("method", "width"), [("mtp", "mtp"), ("dflash", "3")])
def test_a_verify_width_is_shown_only_where_it_has_a_meaning(method: str, width: str) -> None:
    found = history.merged(pair(entry(A, spec_method=method, verify_tokens=3)))
    header, row = history_table(found, NAMES)
    assert row[header.index("width") :].split()[0] == width


# --- what the next run is told ---------------------------------------------------------------------------------------


def test_an_interrupted_run_is_told_until_another_one_ended() -> None:
    killed = entry(B, "interrupted", verb="deploy", phase="start")
    (text, _) = live.notes(pair(entry(A), killed), NAMES)
    assert text == f"spark-0: the last run (run-{B}-interrupted, deploy of {B}) was interrupted in phase start"
    assert live.notes(pair(entry(A), killed, entry(C)), NAMES) == []


def test_a_lock_of_another_run_is_told_and_the_own_one_is_not() -> None:
    states = pair(entry(A))
    states[1]["lock"] = {"run": "killed", "text": "held for 3 h by op on laptop"}
    assert live.notes(states, NAMES, "mine") == ["spark-1: the rollout lock is held for 3 h by op on laptop"]
    assert live.notes(states, NAMES, "killed") == []


def test_a_record_that_cannot_be_continued_is_told_before_it_is_needed(tmp_path: Path) -> None:
    """It reads as an empty one, so a good release would be stopped because nothing was accepted before it."""
    assert history.fault(tmp_path / "not there yet") == history.fault(tmp_path) == ""
    history.append(tmp_path, entry(A))
    before = (tmp_path / history.FILE).stat()
    assert history.fault(tmp_path) == ""
    assert (tmp_path / history.FILE).stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / history.FILE).unlink()
    (tmp_path / history.FILE).mkdir()
    found = history.fault(tmp_path)
    assert found == f"{tmp_path / history.FILE}: Is a directory"
    notes = live.notes({0: state(entry(A)), 1: state(history_fault=found)}, NAMES)
    assert f"spark-1: the history cannot be kept: {found}" in notes


def test_who_brought_a_release_is_who_had_it_accepted_last() -> None:
    entries = [entry(A, verb="deploy"), entry(B, verb="benchmark"), entry(A, verb="benchmark"), entry(A, "rolled_back")]
    assert [history.noted(entries, release, "verb") for release in (A, B, C)] == ["benchmark", "benchmark", None]
    assert history.noted([*entries, entry(A, verb="rollback")], A, "verb") == "rollback"


def test_leftovers_are_named() -> None:
    states = pair(entry(A))
    states[1]["leftovers"] = [".staging-x"]
    assert live.notes(states, NAMES) == ["spark-1: an interrupted run left .staging-x"]


def test_the_outlook_is_the_median_of_the_last_starts() -> None:
    starts = [entry(A, start_seconds=s) for s in (900, 10, 40, 20, 50, 30)]
    assert "5 earlier start(s) took 30 s" in live.outlook({0: state(*starts)})
    assert "not known" in live.outlook({0: state(entry(A), entry(B, start_seconds=0))})
    assert "not known" in live.outlook({0: None})


# --- where a return goes ---------------------------------------------------------------------------------------------


def test_a_return_goes_to_the_current_release_when_it_was_accepted() -> None:
    assert rollback.fallback(pair(entry(A), entry(B), entry(A), current=B), C) == B


def test_a_return_passes_over_a_current_release_that_was_never_accepted() -> None:
    assert rollback.fallback(pair(entry(A), entry(B, "rolled_back"), current=B), C) == A


def test_a_return_works_although_an_interrupted_switch_left_two_currents() -> None:
    states = pair(entry(A), entry(B), current=A)
    states[1]["current"] = C
    assert rollback.fallback(states, C) == B


def test_a_release_that_just_failed_is_not_tried_again() -> None:
    assert rollback.fallback(pair(entry(A), entry(B), current=B), B) == A
    assert rollback.fallback(pair(entry(B), current=B), B) is None


def test_a_release_that_one_rank_did_not_accept_is_no_way_back() -> None:
    states = {0: state(entry(A), entry(B), current=B), 1: state(entry(A), current=B)}
    assert rollback.fallback(states, C) == A


@pytest.mark.parametrize("damage", [["x: missing"], None], ids=["damaged", "gone"])
def test_a_release_that_is_not_complete_on_every_rank_is_no_way_back(damage: list[str] | None) -> None:
    states = pair(entry(A), entry(B), current=B)
    if damage:
        states[1]["checks"][B] = damage
    else:
        del states[1]["checks"][B]
    assert rollback.fallback(states, C) == A


def test_there_is_no_way_back_while_a_rank_is_not_reached() -> None:
    assert rollback.fallback({**pair(entry(A), current=A), 1: None}, C) is None
    assert rollback.fallback({}, C) is None


def running(release: str, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """State of a rank whose engine runs a release that is current there, complete."""
    engine = {"running": True, "labels": {"sparkpair.release": release}}
    return state(*entries, current=release, **{"containers": [engine], "checks": {release: []}, **more})


def test_what_runs_is_a_way_back_although_one_rank_has_lost_its_record() -> None:
    assert rollback.fallback({0: running(B, entry(B)), 1: running(B)}, C) == B
    assert rollback.fallback({0: running(B), 1: running(B, entry(B))}, C) == B
    # What nobody accepted is none, and neither is what does not run everywhere.
    assert rollback.fallback({0: running(B), 1: running(B)}, C) is None
    assert rollback.fallback({0: running(B, entry(B)), 1: running(B, containers=[])}, C) is None


@pytest.mark.parametrize(
    ("damage", "wanted", "refused"),
    [
        ([], C, False),
        (["compose.yaml: missing"], C, True),
        # Deployed again it is written anew.
        (["compose.yaml: missing"], B, False),
        ([f"its image x {rollback.MOVED}"], C, True),
        # With its image moved, what serves would be gone with the stop.
        ([f"its image x {rollback.MOVED}"], B, True),
    ],
)
def test_a_pair_that_could_not_come_back_is_not_stopped(damage: list[str], wanted: str, refused: bool) -> None:
    states = {0: running(B, entry(B)), 1: running(B, entry(B), checks={B: damage})}
    found = rollback.no_way_back(states, wanted)
    assert (f"release {B} runs" in found and "playbooks/stop.yml" in found) == refused
    assert bool(found) == refused
    # An older release is no way back to what served. It is one where what is wanted is on record itself.
    older = {n: running(B, entry(A), entry(B), checks={A: [], B: damage}) for n in (0, 1)}
    assert bool(rollback.no_way_back(older, wanted)) == (refused and wanted == C)
    both = {n: running(B, entry(A), entry(C), entry(B), checks={A: [], B: damage, C: []}) for n in (0, 1)}
    assert rollback.no_way_back(both, C) == ""
    assert rollback.no_way_back({n: running(B, checks={B: damage}) for n in (0, 1)}, wanted) == ""
    assert rollback.no_way_back({n: running(B, entry(B), containers=[], checks={B: damage}) for n in (0, 1)}, C) == ""
    assert rollback.no_way_back({}, wanted) == rollback.no_way_back({**states, 1: None}, wanted) == ""


def test_a_pair_that_was_deployed_below_another_root_was_stopped_without_a_way_back() -> None:
    foreign = {n: running(B, entry(A), checks={A: []}) for n in (0, 1)}
    assert "deployed below another root" in rollback.no_way_back(foreign, C)
    # One that half a pair runs serves nobody, and one that a rank knows is not foreign.
    assert rollback.no_way_back({**foreign, 1: running(A, entry(A))}, C) == ""
    assert rollback.no_way_back({**foreign, 1: running(B, entry(A))}, C) == ""


@pytest.mark.parametrize(
    ("now", "says"),
    [("one", ""), ("", ""), ("two", f"its image i {rollback.MOVED}"), (None, "its image i is not on this rank")],
)
def test_a_release_whose_image_is_gone_or_moved_is_no_way_back(now: str | None, says: str) -> None:
    plan = {"image": "i", "ranks": [{"rank": rank, "address": address} for rank, address in ADDRESSES.items()]}
    own = {"current": A, "plans": {A: plan}}
    accepted = entry(A, image_layers="one")
    states: dict[int, Any] = {
        0: state(accepted, **own, images={"i": "one"}),
        1: state(accepted, **own, images={"i": now}),
    }
    placed = rollback.placed(states, ADDRESSES)
    assert (placed[0] or {})["checks"][A] == []
    assert (placed[1] or {})["checks"][A] == ([says] if says else [])
    assert rollback.fallback(placed, B) == (None if says else A)
    # A record from before the layers were noted compares nothing.
    states[1]["history"] = [entry(A)]
    assert (rollback.fallback(rollback.placed(states, ADDRESSES), B) == A) == (now is not None)


# --- where a rollback goes -------------------------------------------------------------------------------------------


def test_rollback_goes_to_the_last_accepted_stock_release() -> None:
    states = pair(entry(A, stock=True), entry(B, stock=True), entry(C), current=C)
    assert rollback.choose("stock", states).release == B
    states[1]["checks"][B] = ["compose.yaml: missing"]
    assert rollback.choose("stock", states).release == A


def test_rollback_plans_stock_anew_where_none_was_accepted() -> None:
    assert rollback.choose("stock", pair(entry(A), current=A)).release is None


def test_rollback_to_previous_is_the_accepted_release_before_the_current() -> None:
    assert rollback.choose("previous", pair(entry(A), entry(B), entry(C), current=C)).release == B
    with pytest.raises(rollback.RollbackError, match="no release but"):
        rollback.choose("previous", pair(entry(A), current=A))


def test_a_rollback_that_was_interrupted_goes_the_same_way_again() -> None:
    """Its switch has moved the link already; the record tells what served."""
    cut = entry(A, "interrupted", verb="rollback")
    assert rollback.choose("previous", pair(entry(A), entry(B), cut, current=A)).release == A
    returned = entry(C, "rolled_back", returned_to=B)
    assert rollback.choose("previous", pair(entry(A), entry(B), returned, current=B)).release == A


def test_rollback_to_a_release_that_is_damaged_or_was_never_accepted_is_refused() -> None:
    states = pair(entry(A), entry(B, "rolled_back"), current=A)
    assert rollback.choose(A, states).release == A
    with pytest.raises(rollback.RollbackError, match="was not accepted on every rank; accepted: a"):
        rollback.choose(B, states)
    states[1]["checks"][A] = [".env: missing"]
    with pytest.raises(rollback.RollbackError, match=r"cannot be used: spark: \.env: missing"):
        rollback.choose(A, states)


# --- what pruning leaves ---------------------------------------------------------------------------------------------


def test_pruning_keeps_the_live_the_one_before_some_accepted_and_the_last_stock() -> None:
    states = pair(entry(A, stock=True), entry(B), entry(C), entry(D, "rolled_back"), current=C)
    live_now, before = "e" * 12, C
    assert rollback.to_keep(states, live_now, before, 0)[0] == sorted([A, C, live_now])
    assert rollback.to_keep(states, live_now, before, 1)[1] == sorted([A, B, C, live_now])
    assert D not in rollback.to_keep(states, live_now, None, 9)[0]


# --- ranks that were swapped -----------------------------------------------------------------------------------------


def made_for(addresses: dict[int, str]) -> dict[int, Any]:
    """Two ranks that accepted release A, which was made for these addresses."""
    plan = {"ranks": [{"rank": rank, "address": address} for rank, address in addresses.items()]}
    return {rank: state(entry(A), current=A, plans={A: plan}) for rank in (0, 1)}


def test_a_release_of_the_same_ranks_can_be_gone_back_to() -> None:
    states = rollback.placed(made_for(ADDRESSES), ADDRESSES)
    assert rollback.choose(A, states).release == A
    assert rollback.fallback(states, B) == A


def test_a_release_of_swapped_ranks_is_refused_and_no_return_goes_to_it() -> None:
    states = rollback.placed(made_for({0: ADDRESSES[1], 1: ADDRESSES[0]}), ADDRESSES)
    with pytest.raises(rollback.RollbackError, match=r"made for rank 0 at 192\.0\.2\.2, rank 1 at 192\.0\.2\.1"):
        rollback.choose(A, states)
    assert rollback.fallback(states, B) is None


def test_a_rank_that_was_not_read_stays_unread() -> None:
    assert rollback.placed({0: None, 1: {"docker": None}}, ADDRESSES) == {0: None, 1: {"docker": None}}
