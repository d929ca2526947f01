"""The action and the module through Ansible, with a Docker CLI that serves real engine sources from a directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sparkpair.overlay import sha256
from sparkpair.overlay_manifest import overlay_digest

from tests.overlays.engine import FOLDER, overlaid
from tests.overlays.sources import GDN, UTILS

pytestmark = pytest.mark.sources
CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE, ROOT = "registry.example/engine:1", "/usr/lib/packages"
NAMES = ["gdn_runtime_width", "verify_width"]


class Rank:
    """One rank: an image made of a release's sources, and a directory for releases."""

    def __init__(self, base: Path, files: dict[str, bytes]) -> None:
        self.base = base
        self.tree = base / "images" / "registry.example_engine_1" / ROOT.lstrip("/")
        self.destination = base / "staging" / "overlays"
        for path, content in files.items():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_bytes(content)
        self.cli = base / "docker"
        self.cli.write_text(
            f"#!/bin/sh\nexport FAKE_DOCKER_ROOT={base / 'images'} PYTHONPATH={CHECKOUT}\n"
            f'exec {sys.executable} {CHECKOUT}/tests/fakedocker.py "$@"\n'
        )
        self.cli.chmod(0o755)
        (base / "ansible.cfg").write_text(
            f"[defaults]\nlibrary={CHECKOUT}/plugins/modules\nmodule_utils={CHECKOUT}/plugins/module_utils\n"
            f"action_plugins={CHECKOUT}/plugins/action\nretry_files_enabled=False\n"
        )

    def play(self, *options: str, **changes: Any) -> dict[str, Any]:
        """Result of one task with ``spark_overlay``."""
        task = {
            "image": IMAGE,
            "package_root": ROOT,
            "overlays": [{"name": n, "digest": overlay_digest(FOLDER / n)} for n in NAMES],
            "destination": str(self.destination),
            "docker_cli": str(self.cli),
        } | changes
        result = self.base / "result.json"
        result.unlink(missing_ok=True)
        copy = {
            "ansible.builtin.copy": {"content": "{{ got | to_json }}", "dest": str(result)},
            "check_mode": False,
            "diff": False,
        }
        tasks = [{"spark_overlay": task, "register": "got", "ignore_errors": True}, copy]
        (self.base / "play.json").write_text(
            json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}])
        )
        (self.base / "calls").unlink(missing_ok=True)
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", *options),
                str(self.base / "play.json"),
            ],
            env=os.environ
            | {
                "ANSIBLE_CONFIG": str(self.base / "ansible.cfg"),
                "ANSIBLE_STDOUT_CALLBACK": "default",
                "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.exists(), done.stdout + done.stderr
        loaded: dict[str, Any] = json.loads(result.read_text())
        return loaded

    def calls(self) -> list[str]:
        """Docker's verbs in the order of the calls."""
        path = self.base / "calls"
        return [json.loads(row)[0] for row in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def rank(tmp_path: Path, pristine: Callable[[str], dict[str, bytes]]) -> Rank:
    return Rank(tmp_path, pristine("0.32.0"))


def test_check_apply_again_and_remove(rank: Rank, pristine: Callable[[str], dict[str, bytes]]) -> None:
    files = pristine("0.32.0")
    patched = overlaid("gdn_runtime_width", overlaid("verify_width", files))
    planned = rank.play("--check", "--diff")
    assert planned["changed"] is True
    assert {d["before"] for d in planned["diff"]} < {f.decode() for f in files.values()}
    assert not rank.destination.exists()
    done = rank.play()
    assert done["changed"] is True
    assert rank.calls() == ["create", *["cp"] * 4, "rm", "run"]
    assert "invocation" not in done
    for entry in done["mounts"]:
        assert (rank.destination.parent / entry["source"]).read_bytes() == patched[entry["path"]]
        assert sha256(patched[entry["path"]]) == entry["sha256_after"]
    assert sorted(e["path"] for e in done["overlays"]) == sorted(p for p in patched if patched[p] != files[p])
    again = rank.play()
    assert again["changed"] is False
    assert again["overlays"] == done["overlays"]
    assert rank.play(overlays=[])["changed"] is True
    assert rank.calls() == []
    assert not rank.destination.exists()


def test_one_changed_byte_is_refused_with_a_report(rank: Rank) -> None:
    (rank.tree / UTILS).write_bytes((rank.tree / UTILS).read_bytes() + b"#")
    result = rank.play()
    assert result["failed"] is True
    assert sha256((rank.tree / UTILS).read_bytes()) in result["msg"]
    assert result["sparkpair_report"] == {"outcome": "refused", "messages": [result["msg"]]}
    assert not rank.destination.exists()


def test_a_plan_of_another_checkout_is_refused_on_the_controller(rank: Rank) -> None:
    result = rank.play(overlays=[{"name": "verify_width", "digest": "0" * 64}])
    assert result["failed"] is True
    assert "edited after it was planned" in result["msg"]
    assert result["sparkpair_report"]["outcome"] == "refused"
    assert rank.calls() == []


def test_a_survey_shows_its_proposal_and_writes_nothing(rank: Rank) -> None:
    before = {n: overlay_digest(FOLDER / n) for n in NAMES}
    (rank.tree / GDN).write_bytes(b"# a fork\n\n" + (rank.tree / GDN).read_bytes())
    for options in ([], ["--check"]):
        result = rank.play(*options, survey=True, engine="a-fork", overlays=[], accept=bool(options))
        assert result["changed"] is bool(options)
        assert [look["known"] for look in result["looks"]] == ["unknown", "pinned", "pinned"]
        assert "+++ b/overlays/gdn_runtime_width/gdn_attn-a-fork.diff" in result["proposal"]
        assert '+            "a-fork"' in result["proposal"]
    assert {n: overlay_digest(FOLDER / n) for n in NAMES} == before
