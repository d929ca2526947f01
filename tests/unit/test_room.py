"""Room kept in reserve is really taken, is given up once, and is what a full disk is told from other faults for."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from sparkpair import lock, modules, room
from sparkpair.store import Store, StoreError


@pytest.mark.parametrize("macos", [False, True])
def test_a_reserve_takes_its_blocks_and_is_given_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, macos: bool
) -> None:
    if macos:
        monkeypatch.delattr(room.os, "posix_fallocate")
    room.reserve(tmp_path, 65_536)
    assert sum(f.stat().st_blocks for f in (tmp_path / room.KEPT).iterdir()) * 512 >= 65_536
    assert len(list((tmp_path / room.KEPT).iterdir())) == room.FILES
    room.reserve(tmp_path, 65_536)
    assert [room.spend(tmp_path), room.spend(tmp_path)] == [True, False]
    assert list(tmp_path.iterdir()) == []


def test_a_reserve_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(room.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        room.reserve(tmp_path)
    assert list(tmp_path.iterdir()) == []
    # So a lock is not taken where a way back could not be written.
    with pytest.raises(lock.UnwritableError, match="No space left"):
        lock.take(tmp_path, {"run": "one"})
    assert not lock.read(tmp_path).held


def test_a_full_disk_is_told_from_other_faults() -> None:
    def caused(error: Exception) -> Exception:
        wrapped = StoreError("cannot write")
        wrapped.__cause__ = error
        return wrapped

    assert room.full(OSError(errno.ENOSPC, ""))
    assert room.full(caused(OSError(errno.EDQUOT, "")))
    assert not room.full(caused(OSError(errno.EACCES, "")))
    assert not room.full(StoreError("is not complete"))
    assert not room.full(None)


def test_the_lock_has_a_reserve_that_goes_with_it(tmp_path: Path) -> None:
    assert not lock.spend(tmp_path)
    lock.take(tmp_path, {"run": "one"})
    assert (tmp_path / lock.FOLDER / room.KEPT / "0").stat().st_size == room.BYTES
    assert lock.spend(tmp_path)
    assert lock.read(tmp_path).holder == {"run": "one"}
    lock.take(Store(tmp_path / "other").root, {"run": "one"})
    lock.release(tmp_path / "other", lock.Holder("one"))
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("spend", "number", "written"),
    [
        (True, errno.ENOSPC, True),
        (False, errno.ENOSPC, False),
        (True, errno.EACCES, False),
    ],
)
def test_a_disk_that_was_full_ended_the_way_back_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spend: bool, number: int, written: bool
) -> None:
    store = Store(tmp_path)
    store.stage("a" * 12, [])
    lock.take(tmp_path, {"run": "one"})
    fsync = room.os.fsync

    def sync(handle: int) -> None:
        if (tmp_path / lock.FOLDER / room.KEPT).exists():
            raise OSError(number, "no")
        fsync(handle)

    monkeypatch.setattr(room.os, "fsync", sync)
    given = {"release": "a" * 12, "secrets": {"ray_token": "t"}, "keep_secrets": [], "spend": spend}
    module = SimpleNamespace(params=given, check_mode=False)
    if not written:
        with pytest.raises(StoreError):
            modules._prepare(module, store)  # type: ignore[arg-type]
        return
    modules._prepare(module, store)  # type: ignore[arg-type]
    assert store.holds("a" * 12, "ray_token")
