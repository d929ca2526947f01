"""Work in a process of its own: its result, its notes, its failures and its end, and the line that the screen shows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparkpair import image_job
from sparkpair.image_job import Notes, begin, look
from sparkpair.images import ImageError
from sparkpair.noting import Note
from sparkpair.screen import noted

GIB = 1024**3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where jobs are kept; nothing of them is left."""
    monkeypatch.setattr(image_job, "place", lambda: tmp_path)
    yield tmp_path
    assert list(tmp_path.glob(f"{image_job.PREFIX}*")) == []


def test_short_work_gives_its_result_in_the_first_look(folder: Path) -> None:
    job = begin(lambda _note: {"changed": True, "session": os.getsid(0)})
    assert job.parent == folder
    assert job.stat().st_mode & 0o777 == 0o700
    result, note = look(job, 20)
    assert (result or {})["changed"] is True
    assert (result or {})["session"] != os.getsid(0)
    assert note == {}


def test_long_work_tells_how_far_it_is_and_then_its_result(folder: Path) -> None:
    go = folder / "go"

    def work(note: Note) -> dict[str, Any]:
        note("send x", 0, 100, "bytes")
        while not go.exists():
            time.sleep(0.05)
            note("send x", 50, 100, "bytes")
        return {"changed": False}

    job = begin(work)
    result, note = look(job, 1.5)
    assert result is None
    assert (note["doing"], note["done"], note["of"], note["unit"]) == ("send x", 50, 100, "bytes")
    assert 1.0 < note["seconds"] < 10
    assert 5 < note["rate"] <= 50
    go.touch()
    assert look(job, 20) == ({"changed": False}, {})


def test_what_ends_the_work_is_its_result() -> None:
    def refused(_note: Note) -> dict[str, Any]:
        raise ImageError("no space left on device")

    def broken(_note: Note) -> dict[str, Any]:
        return {"x": 1 // 0}

    assert look(begin(refused), 20)[0] == {"failed": True, "msg": "no space left on device"}
    assert "ZeroDivisionError" in (look(begin(broken), 20)[0] or {})["msg"]


def test_a_process_that_was_killed_is_an_error() -> None:
    def work(note: Note) -> dict[str, Any]:
        note(str(os.getpid()))
        time.sleep(60)
        return {}

    job = begin(work)
    note: dict[str, Any] = {}
    while not note:
        _, note = look(job, 0)
    os.kill(int(note["doing"]), signal.SIGKILL)
    with pytest.raises(ImageError, match="is gone"):
        look(job, 20)
    with pytest.raises(ImageError, match="is gone"):
        look(job, 20)


def test_another_folder_is_not_taken_for_a_job(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    for other in (tmp_path / "precious", tmp_path / "precious" / f"{image_job.PREFIX}x"):
        with pytest.raises(ImageError, match="is no work on an image"):
            look(other, 0)
    assert (tmp_path / "precious").is_dir()


def test_notes_are_written_once_a_second_and_at_once_when_the_work_changes(tmp_path: Path) -> None:
    now = 0.0
    note = Notes(tmp_path, clock=lambda: now)

    def kept() -> tuple[Any, ...]:
        data = json.loads((tmp_path / image_job.NOTE).read_text())
        return data["doing"], data["done"], data["since"], data["at"]

    note("pull", 1)
    now = 0.9
    note("pull", 2)
    assert kept() == ("pull", 1, 0.0, 0.0)
    now = 1.0
    note("pull", 3)
    assert kept() == ("pull", 3, 0.0, 1.0)
    now = 1.1
    note("build")
    assert kept() == ("build", 0, 1.1, 1.1)


def test_a_note_that_cannot_be_written_does_not_end_the_work(tmp_path: Path) -> None:
    Notes(tmp_path / "absent")("pull", 1)


@pytest.mark.parametrize(
    ("note", "line"),
    [
        ({"done": 12, "of": 23, "unit": "layers", "seconds": 125}, "12 of 23 layers, since 2 min 5 s"),
        ({"seconds": 45}, "since 45 s"),
        ({"unit": "bytes", "of": 30 * GIB, "seconds": 9}, "0 MiB of 30.0 GiB, since 9 s"),
        (
            {"done": 10 * GIB, "of": 30 * GIB, "unit": "bytes", "seconds": 40, "rate": GIB / 4},
            "10.0 GiB of 30.0 GiB, 256 MiB/s, 1 min 20 s left",
        ),
        ({"done": 10 * GIB, "unit": "bytes", "seconds": 40, "rate": GIB}, "10.0 GiB, 1.0 GiB/s, since 40 s"),
        (
            {"done": 31 * GIB, "of": 30 * GIB, "unit": "bytes", "seconds": 40, "rate": GIB},
            "31.0 GiB of 30.0 GiB, 1.0 GiB/s, since 40 s",
        ),
    ],
)
def test_the_line_on_the_screen(note: dict[str, Any], line: str) -> None:
    given = {"doing": "pull x", "done": 0, "of": 0, "unit": "", "rate": 0.0} | note
    assert noted("spark-0", given) == f"spark-0: pull x, {line}"
