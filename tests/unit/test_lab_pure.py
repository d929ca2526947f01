"""The lab's pure parts: names and addresses, image names from inputs, mirror detection, inventory. No Docker."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkpair.settings import NAME_OF_KEY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The lab's modules, with an empty folder as the lab's home."""
    monkeypatch.syspath_prepend(str(ROOT / "molecule" / "lab"))
    monkeypatch.setenv("SPARK_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_LAB_RANKS", raising=False)
    return importlib.import_module


def test_ranks_come_from_environment_then_record_then_default(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = lab("sparklab.layout")
    assert layout.ranks() == 2
    (tmp_path / "ranks").write_text("4\n")
    assert layout.ranks() == 4
    monkeypatch.setenv("SPARK_LAB_RANKS", "3")
    assert layout.ranks() == 3


@pytest.mark.parametrize("text", ["0", "99", "two"])
def test_ranks_outside_the_network_are_refused(lab: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SPARK_LAB_RANKS", text)
    with pytest.raises(ValueError):
        lab("sparklab.layout").ranks()


def test_digest_follows_names_and_contents_but_not_place(lab: Any, tmp_path: Path) -> None:
    digest = lab("sparklab.images").digest
    one, two = tmp_path / "one" / "input", tmp_path / "two" / "input"
    for folder in (one, two):
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "a").write_text("a")
    assert digest([one]) == digest([two])
    (two / "__pycache__" / "a.pyc").write_text("made by a run")
    assert digest([one]) == digest([two])
    (two / "a").write_text("b")
    assert digest([one]) != digest([two])
    assert digest([one], "x") != digest([one], "y")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("deb [arch=amd64] http://m.example/debian bookworm main\n", "http://m.example/debian"),
        ("Types: deb\nURIs: http://m.example/debian\nSuites: bookworm\n", "http://m.example/debian"),
        ("deb http://m.example/debian-security bookworm-security main\n", None),
        ("#deb http://m.example/debian bookworm main\n", None),
        ("deb http://m.example/ubuntu noble main\n", None),
    ],
)
def test_mirror_is_the_machines_own_debian_mirror(lab: Any, tmp_path: Path, text: str, wanted: str | None) -> None:
    (tmp_path / "sources.list").write_text(text)
    assert lab("sparklab.images").debian_mirror(tmp_path) == wanted


@pytest.mark.parametrize("count", [1, 2, 3])
def test_inventory_needs_no_lab(tmp_path: Path, count: int) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "inventories/lab/sparks.py", "--list"],
        env={**os.environ, "SPARK_LAB_HOME": str(tmp_path), "SPARK_LAB_RANKS": str(count)},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = json.loads(done.stdout)
    names = [f"spark-{rank}" for rank in range(count)]
    assert listed["sparks"]["hosts"] == names
    hosts = listed["_meta"]["hostvars"]
    assert [hosts[name]["spark_rank"] for name in names] == list(range(count))
    assert len({hosts[name]["ansible_host"] for name in names}) == count
    revisions = listed["sparks"]["vars"]["lab_revisions"]
    assert set(revisions) == {"tiny-target", "tiny-dflash", "tiny-mtp"}
    for revision in revisions.values():
        assert len(revision) == 40 and int(revision, 16) >= 0


@pytest.mark.parametrize(
    ("arguments", "target", "config"),
    [
        ((), "tiny-target", {"method": "dflash", "num_speculative_tokens": 7}),
        (("-e", "spec_method=mtp"), "tiny-mtp", {"method": "mtp", "num_speculative_tokens": 2}),
        (("-e", "spec_method=none"), "tiny-target", None),
    ],
)
def test_the_method_alone_chooses_the_labs_target(
    tmp_path: Path, arguments: tuple[str, ...], target: str, config: dict[str, Any] | None
) -> None:
    tasks = [
        {"spark_plan": {}, "register": "planned", "run_once": True},
        {"debug": {"var": "planned.plan"}, "run_once": True},
    ]
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            ROOT / "inventories/lab",
            tmp_path / "play.json",
            *arguments,
        ],
        cwd=ROOT,
        env={
            **{k: v for k, v in os.environ.items() if k not in NAME_OF_KEY and not k.startswith("ANSIBLE_")},
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "SPARKPAIR_REPORTS": str(tmp_path / "reports"),
            "SPARK_LAB_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    hosts = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][1]["hosts"]
    plan = next(iter(hosts.values()))["planned.plan"]
    assert plan["settings"]["model"] == f"sparkpair-lab/{target}"
    assert f"--sparkpair-lab--{target}/" in plan["ranks"][0]["arguments"][0]
    found = plan["speculative_config"]
    assert (found and {k: found[k] for k in ("method", "num_speculative_tokens")}) == config
    assert ("model" in (found or {})) == (plan["spec_method"] == "dflash")
