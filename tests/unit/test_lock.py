"""The rollout lock: atomic, never taken over, given back by its run or with a reason."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from sparkpair import lock, room

NOTE: dict[str, Any] = {"run": "r1", "who": "op", "controller": "laptop", "verb": "deploy", "release": "a" * 12}


def test_a_free_lock_is_taken_and_given_back(tmp_path: Path) -> None:
    assert lock.take(tmp_path, {**NOTE, "time": 1000.0})
    found = lock.read(tmp_path, now=1042.0)
    assert found.held
    assert found.text() == f"held for 42 s by op on laptop, deploy of {'a' * 12}"
    assert lock.release(tmp_path, lock.Holder("r1"))
    assert not lock.read(tmp_path).held
    assert list(tmp_path.iterdir()) == []


def test_a_stop_names_no_release(tmp_path: Path) -> None:
    lock.take(tmp_path, {**NOTE, "verb": "stop", "release": "", "phase": "stop"})
    assert lock.read(tmp_path).text().endswith("by op on laptop, stop in phase stop")


def test_the_same_run_takes_it_again_without_a_change(tmp_path: Path) -> None:
    assert lock.take(tmp_path, NOTE)
    assert not lock.take(tmp_path, NOTE)


def test_two_names_that_lead_to_one_machine_are_refused(tmp_path: Path) -> None:
    lock.take(tmp_path, {**NOTE, "host": "spark-0"})
    assert not lock.take(tmp_path, {**NOTE, "host": "spark-0"})
    with pytest.raises(lock.LockError, match="spark-1 and spark-0 lead to the same machine; correct ansible_host"):
        lock.take(tmp_path, {**NOTE, "host": "spark-1"})
    assert lock.read(tmp_path).holder["host"] == "spark-0"


def test_another_run_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    lock.take(tmp_path, {**NOTE, "time": 0.0})
    with pytest.raises(lock.LockError, match=r"held for \d+ d by op on laptop.*lock\.yml -e lock=release"):
        lock.take(tmp_path, {**NOTE, "run": "r2"})
    assert lock.read(tmp_path).holder["run"] == "r1"


def test_a_lock_that_is_given_back_while_it_is_asked_for_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds the folder in the way and then no lock must not take itself for the holder."""
    lock.take(tmp_path, {**NOTE, "run": "r2"})
    monkeypatch.setattr(lock, "read", lambda _: lock.Lock(held=False))
    with pytest.raises(lock.LockError, match="was in the way; try again"):
        lock.take(tmp_path, NOTE)


def test_another_run_cannot_give_it_back(tmp_path: Path) -> None:
    lock.take(tmp_path, NOTE)
    assert not lock.release(tmp_path, lock.Holder("r2"))
    assert lock.read(tmp_path).held
    assert lock.release(tmp_path, None)


@pytest.mark.parametrize("note", ["", "{", "[]"])
def test_a_lock_without_a_sound_note_is_held_all_the_same(tmp_path: Path, note: str) -> None:
    lock.take(tmp_path, NOTE)
    for name in (lock.NOTE, lock.COPY):
        (tmp_path / lock.FOLDER / name).write_text(note)
    with pytest.raises(lock.LockError, match="a run that left no note"):
        lock.take(tmp_path, NOTE)


def test_the_reason_to_keep_it_is_noted_by_its_run_only(tmp_path: Path) -> None:
    lock.take(tmp_path, NOTE)
    assert not lock.keep(tmp_path, lock.Holder("r2"), "no")
    assert lock.keep(tmp_path, lock.Holder("r1"), "both ranks are stopped")
    assert lock.read(tmp_path).text().endswith("; reason: both ranks are stopped")


def test_the_phase_is_noted_by_its_run_only(tmp_path: Path) -> None:
    lock.take(tmp_path, {**NOTE, "time": 1000.0})
    lock.advance(tmp_path, lock.Holder("r1"), "start")
    assert (
        lock.read(tmp_path, now=1001.0).text() == f"held for 1 s by op on laptop, deploy of {'a' * 12} in phase start"
    )
    with pytest.raises(lock.LockError, match="not this run's any more"):
        lock.advance(tmp_path, lock.Holder("r2"), "gates")
    assert lock.read(tmp_path).holder["phase"] == "start"


def test_nothing_is_given_back_where_nothing_is_held(tmp_path: Path) -> None:
    assert not lock.release(tmp_path, lock.Holder("r1"))
    assert not lock.keep(tmp_path, lock.Holder("r1"), "why")
    assert lock.read(tmp_path).text() == "not held"


def _try(root: Path, run: str, results: Any) -> None:
    try:
        results.put((run, lock.take(root, {**NOTE, "run": run})))
    except lock.LockError:
        results.put((run, False))


def test_of_many_that_take_it_at_once_one_gets_it(tmp_path: Path) -> None:
    results: Any = multiprocessing.Queue()
    racers = [multiprocessing.Process(target=_try, args=(tmp_path, f"r{n}", results)) for n in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    won = [run for run, got in (results.get(timeout=5) for _ in racers) if got]
    assert len(won) == 1
    assert lock.read(tmp_path).holder["run"] == won[0]


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (2e5, "2 d")])
def test_age_is_told_in_the_largest_unit(seconds: float, text: str) -> None:
    assert lock.age(seconds) == text


def test_a_lock_that_was_kept_is_not_walked_through_by_its_own_run(tmp_path: Path) -> None:
    lock.take(tmp_path, NOTE)
    lock.keep(tmp_path, lock.Holder("r1"), "the return failed")
    with pytest.raises(lock.LockError, match="reason: the return failed"):
        lock.take(tmp_path, NOTE)


def _no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.os, "fsync", refuse)


def test_a_lock_whose_note_has_no_room_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        _no_room(full)
        with pytest.raises(lock.LockError, match="No space left"):
            lock.take(tmp_path, NOTE)
    assert not lock.read(tmp_path).held
    assert lock.take(tmp_path, NOTE)


def test_a_phase_that_has_no_room_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.take(tmp_path, NOTE)
    assert lock.advance(tmp_path, lock.Holder("r1"), "stop") == ""
    with monkeypatch.context() as full:
        _no_room(full)
        assert "No space left" in lock.advance(tmp_path, lock.Holder("r1"), "start")
        with pytest.raises(lock.LockError, match="not this run's any more"):
            lock.advance(tmp_path, lock.Holder("r2"), "start")
    assert lock.read(tmp_path).holder["phase"] == "stop"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_leftover_of_a_release_is_in_nobodys_way(tmp_path: Path, kind: str) -> None:
    aside = tmp_path / f".{lock.FOLDER}-released"
    aside.mkdir() if kind == "folder" else aside.write_text("")
    lock.take(tmp_path, NOTE)
    assert lock.release(tmp_path, lock.Holder("r1"))
    assert list(tmp_path.iterdir()) == []


def test_the_same_command_in_two_terminals_is_two_holders(tmp_path: Path) -> None:
    """Regression: a benchmark that is continued has one name, so a second terminal shared the lock and gave it back."""
    first, second = lock.Holder("r1", "terminal-1"), lock.Holder("r1", "terminal-2")
    assert lock.take(tmp_path, {**NOTE, "session": "terminal-1"})
    assert not lock.take(tmp_path, {**NOTE, "session": "terminal-1"})
    with pytest.raises(lock.LockError, match="never taken over"):
        lock.take(tmp_path, {**NOTE, "session": "terminal-2"})
    with pytest.raises(lock.LockError, match="not this run's any more"):
        lock.advance(tmp_path, second, "stop")
    assert not lock.keep(tmp_path, second, "why")
    assert not lock.release(tmp_path, second)
    assert lock.advance(tmp_path, first, "stop") == ""
    assert lock.release(tmp_path, first)


@pytest.mark.parametrize("spoilt", ["", "{", "[]"])
def test_a_note_that_was_emptied_made_a_run_lose_its_own_lock(tmp_path: Path, spoilt: str) -> None:
    lock.take(tmp_path, {"run": "one", "time": 1.0})
    note = tmp_path / lock.FOLDER / lock.NOTE
    note.write_text(spoilt)
    assert lock.Holder("one").holds(lock.read(tmp_path))
    assert lock.advance(tmp_path, lock.Holder("one"), "gates") == ""
    assert json.loads(note.read_text())["phase"] == "gates"
    # The control: with both gone it is nobody's.
    for name in (lock.NOTE, lock.COPY):
        (tmp_path / lock.FOLDER / name).write_text(spoilt)
    assert not lock.Holder("one").holds(lock.read(tmp_path))


@pytest.mark.parametrize("number", [errno.EIO, errno.ELOOP])
def test_a_disk_that_does_not_tell_was_taken_for_a_lock_that_somebody_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The run left half a pair then, as one whose lock is another run's."""
    lock.take(tmp_path, {"run": "one"})
    read_text, lstat = Path.read_text, Path.lstat

    def unread(path: Path, *given: Any, **more: Any) -> str:
        if path.name in broken:
            raise OSError(number, "no")
        return read_text(path, *given, **more)

    broken = {lock.NOTE}
    monkeypatch.setattr(Path, "read_text", unread)
    assert lock.Holder("one").holds(lock.read(tmp_path))
    broken.add(lock.COPY)
    with pytest.raises(lock.LockError, match="cannot be read"):
        lock.read(tmp_path)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert not lock.read(tmp_path / "nowhere").held

    def unseen(path: Path) -> Any:
        if path.name == lock.FOLDER:
            raise OSError(number, "no")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", unseen)
    with pytest.raises(lock.LockError, match="cannot be read"):
        lock.read(tmp_path)


def test_a_kept_lock_on_a_full_disk_stayed_without_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.take(tmp_path, {"run": "one"})
    fsync = os.fsync

    def full(handle: int) -> None:
        if (tmp_path / lock.FOLDER / room.KEPT).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert lock.keep(tmp_path, lock.Holder("one"), "every rank is stopped")
    assert lock.read(tmp_path).holder["reason"] == "every rank is stopped"
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(lock.LockError, match="No space left"):
        lock.keep(tmp_path, lock.Holder("one"), "another")
