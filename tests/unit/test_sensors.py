"""Temperatures of a rank: what sensors say, and that a missing one is stated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sparkpair.runner import Completed
from sparkpair.sensors import QUERY, read


class Host:
    """A host whose nvidia-smi answers as given, with kernel zones below a folder."""

    def __init__(self, folder: Path, answer: Completed, **zones: str) -> None:
        self.folder, self.answer = folder, answer
        for name, value in zones.items():
            (folder / name).mkdir()
            (folder / name / "type").write_text("acpitz\n", encoding="utf-8")
            (folder / name / "temp").write_text(value, encoding="utf-8")

    def __call__(self, argv: Sequence[str], **_: Any) -> Completed:
        assert tuple(argv) == QUERY
        return self.answer


def test_hottest_of_gpu_and_zones(tmp_path: Path) -> None:
    host = Host(tmp_path, Completed(0, "0, 67\n", ""), thermal_zone0="61500\n", thermal_zone1="48000\n")
    found = read(host, tmp_path)
    assert [r["celsius"] for r in found["readings"]] == [67.0, 61.5, 48.0]
    assert found["hottest"] == {"sensor": "gpu 0", "celsius": 67.0}
    assert found["missing"] is None


def test_zones_serve_where_there_is_no_gpu(tmp_path: Path) -> None:
    host = Host(tmp_path, Completed(127, "", "nvidia-smi: No such file or directory"), thermal_zone0="61500\n")
    assert read(host, tmp_path)["hottest"] == {"sensor": "thermal_zone0 acpitz", "celsius": 61.5}


@pytest.mark.parametrize("value", ["0\n", "-274000\n", "9999000\n", "", "hot\n"])
def test_a_value_that_nobody_believes_is_no_reading(value: str, tmp_path: Path) -> None:
    host = Host(tmp_path, Completed(127, "", "nvidia-smi: No such file or directory"), thermal_zone0=value)
    found = read(host, tmp_path)
    assert (found["readings"], found["hottest"]) == ([], None)
    assert found["missing"].startswith("no sensor: nvidia-smi: nvidia-smi: No such file")


def test_a_gpu_without_a_temperature_is_stated(tmp_path: Path) -> None:
    found = read(Host(tmp_path, Completed(0, "0, [N/A]\n", "")), tmp_path)
    assert "it names no temperature" in found["missing"]
