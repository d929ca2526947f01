"""Layers that an inner engine holds already are taken out of an image's archive, and only those. No Docker."""

from __future__ import annotations

import hashlib
import importlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def slim(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under test."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "molecule" / "lab"))
    return importlib.import_module("sparklab.slim")


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ([], 0),
        ([["a", "b", "old"]], 2),
        ([["a"], ["a", "b"], []], 2),
        ([["a", "b", "c", "more"]], 3),
        ([["x", "b", "c"]], 0),
        ([["a", "x", "c"]], 1),
    ],
)
def test_layers_count_only_from_the_lowest(slim: Any, held: list[list[str]], wanted: int) -> None:
    assert slim.shared_layers(["a", "b", "c"], held) == wanted


@pytest.mark.parametrize("known", [["base"], [], ["base", "top"]])
def test_known_layers_go_and_everything_else_stays(slim: Any, tmp_path: Path, known: list[str]) -> None:
    texts = {"base": b"b" * 3_000_000, "top": b"small"}
    files = {f"{name}/layer.tar": text for name, text in texts.items()} | {"manifest.json": b"[]", "c.json": b"{}"}
    saved = io.BytesIO()
    with tarfile.open(fileobj=saved, mode="w") as archive:
        folder = tarfile.TarInfo("base")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    saved.seek(0)
    counted: list[int] = []
    digests = [f"sha256:{hashlib.sha256(texts[name]).hexdigest()}" for name in known]
    slim.strip(saved, tmp_path / "slim.tar", digests, counted.append)
    with tarfile.open(tmp_path / "slim.tar") as archive:
        left = {m.name: f.read() for m in archive if (f := archive.extractfile(m))}
        assert "base" in archive.getnames()
    assert left == {name: text for name, text in files.items() if name.removesuffix("/layer.tar") not in known}
    assert sum(counted) == sum(map(len, files.values()))


def test_archive_that_breaks_off_is_an_error(slim: Any, tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        slim.strip(io.BytesIO(b""), tmp_path / "slim.tar", [], lambda _size: None)
