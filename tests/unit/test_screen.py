"""A screen that breaks must not break the run: what it cannot take goes nowhere."""

from __future__ import annotations

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


def test_a_file_on_a_full_disk_takes_everything() -> None:
    with Path("/dev/full").open("w") as stream:
        screen = Unbroken(stream)
        assert screen.encoding == stream.encoding
        assert screen.write("lost\n") == 5
        screen.flush()
        screen.flush()
