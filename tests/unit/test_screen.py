"""A screen that breaks must not break the run: what it cannot take goes nowhere."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from sparkpair.screen import Unbroken


@pytest.mark.parametrize("buffering", [1, 4096], ids=["by line", "buffered"])
def test_a_pipe_whose_reader_has_ended_takes_everything(buffering: int) -> None:
    reader, writer = os.pipe()
    stream = open(writer, "w", buffering=buffering)  # noqa: PTH123, SIM115 - a descriptor
    screen = Unbroken(stream)
    assert screen.write("seen\n") == 5
    screen.flush()
    assert os.read(reader, 100) == b"seen\n"
    os.close(reader)
    for _ in range(3):
        assert screen.write("x" * 5000 + "\n") == 5001
        screen.flush()
    stream.close()


def test_a_disk_that_has_room_again_takes_the_rest() -> None:
    kept: list[str] = []

    class Disk:
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            kept.append(text)
            return len(text)

    disk = Disk()
    screen = Unbroken(disk)  # type: ignore[arg-type]
    assert screen.write("lost") == 4
    disk.full = False
    assert screen.write("told") == 4
    assert kept == ["told"]


def test_a_file_on_a_full_disk_takes_everything() -> None:
    stream = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails, as it should
    screen = Unbroken(stream)
    assert screen.encoding == stream.encoding
    assert screen.write("lost\n") == 5
    screen.flush()
    screen.flush()
    with pytest.raises(OSError, match="No space"):
        stream.close()
