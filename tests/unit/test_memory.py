"""Memory of the host, and the wait until a stopped engine has given it back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sparkpair import engine, memory
from sparkpair.runner import Completed

GIB = 1 << 30


def meminfo(path: Path, free: int) -> Path:
    """A /proc/meminfo with ``free`` bytes free."""
    path.write_text(
        f"MemTotal:       125533828 kB\nMemFree:        {free // 1024} kB\nMemAvailable:   110000000 kB\n"
        "SwapTotal:  7 kB\nHugePages_Total:       0\n"
    )
    return path


def test_memory_is_read_in_kib(tmp_path: Path) -> None:
    found = memory.kib(meminfo(tmp_path / "meminfo", 2048 * 1024))
    assert found == {"MemTotal": 125533828, "MemFree": 2048, "MemAvailable": 110000000}


def test_memory_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    assert memory.kib(path) == {}
    for cut in ("MemTotal: much kB\n", "MemTotal:\n"):
        path.write_text(cut)
        assert memory.kib(path) == {}


def test_an_engine_needs_its_share_and_the_margin_and_no_share_needs_nothing() -> None:
    assert memory.need(0.5, 100 * GIB) == 50 * GIB + memory.MARGIN
    assert memory.need(0.0, 100 * GIB) == 0


class Returning:
    """A clock whose every wait gives memory back."""

    def __init__(self, path: Path, free: list[int]) -> None:
        self.path, self.free, self.now = path, free, 0.0
        self.sleep(0.0)

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait, and find what is free then."""
        self.now += seconds
        if self.free:
            meminfo(self.path, self.free.pop(0))


def test_the_wait_ends_when_the_memory_is_back(tmp_path: Path) -> None:
    time = Returning(tmp_path / "meminfo", [GIB, 2 * GIB, 5 * GIB, 9 * GIB])
    found = engine.settle(4 * GIB, 60, meminfo=time.path, clock=time.clock, sleep=time.sleep)
    assert (found.ok, found.free, found.seconds) == (True, 5 * GIB, 2.0)


def test_memory_that_never_settles_ends_the_wait_at_its_deadline(tmp_path: Path) -> None:
    time = Returning(tmp_path / "meminfo", [GIB])
    found = engine.settle(4 * GIB, 3, meminfo=time.path, clock=time.clock, sleep=time.sleep)
    assert (found.ok, found.free, found.wanted, found.seconds) == (False, GIB, 4 * GIB, 3.0)


def test_nothing_wanted_is_no_wait_even_where_memory_cannot_be_read(tmp_path: Path) -> None:
    found = engine.settle(0, 60, meminfo=tmp_path / "none", sleep=lambda _: pytest.fail("waited"))
    assert (found.ok, found.free) == (True, 0)


class Host:
    """Commands of a host with a clock; one that hangs takes all the time that it gets."""

    def __init__(self, broken: str = "") -> None:
        self.broken, self.now = broken, 0.0
        self.calls: list[tuple[list[str], float]] = []

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        """Run nothing."""
        assert stdin is None
        self.calls.append((list(argv), timeout))
        if argv[0] == self.broken:
            self.now += timeout
            return Completed(124, "", f"no answer within {timeout:.0f} s")
        return Completed(0, "", "")


def test_the_cache_is_written_back_and_then_dropped() -> None:
    host = Host()
    assert memory.drop_caches(host, 60, clock=lambda: host.now) == []
    assert [argv for argv, _ in host.calls] == [["sync"], ["sysctl", "-q", "-w", "vm.drop_caches=3"]]


def test_a_sync_that_hangs_is_ended_and_told() -> None:
    host = Host("sync")
    assert memory.drop_caches(host, 20, clock=lambda: host.now) == ["sync: no answer within 20 s"]
    assert [timeout for _, timeout in host.calls] == [20, 1]


def test_a_cache_that_cannot_be_dropped_is_told() -> None:
    host = Host("sysctl")
    assert memory.drop_caches(host, 20, clock=lambda: host.now)[0].startswith("sysctl -q -w vm.drop_caches=3: ")
