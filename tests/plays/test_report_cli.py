"""What a verb reports when it has nothing to act on: real ansible-playbook runs with the checkout's ansible.cfg."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sshhere import ROOT, ansible


def run(folder: Path, inventory: str, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, screen and result.json of ``history.yml`` with this inventory."""
    reports = str(folder / "reports")
    done = ansible(ROOT, "-i", inventory, "playbooks/history.yml", *arguments, SPARKPAIR_REPORTS=reports)
    report = folder / "reports" / "history" / "latest" / "result.json"
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.exists() else {}


def test_a_forgotten_inventory_is_the_operators_own_and_never_the_lab(tmp_path: Path) -> None:
    """The hosts of the lab have the same names, so a verb on it would look like one on the Sparks."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("roles", "plugins", "playbooks", "files"):
        (copy / name).symlink_to(ROOT / name)
    (copy / "ansible.cfg").write_text((ROOT / "ansible.cfg").read_text())
    (copy / "inventories").mkdir()
    (copy / "inventories" / "lab").symlink_to(ROOT / "inventories" / "lab")

    def listed() -> str:
        done = ansible(copy, "playbooks/status.yml", "--list-hosts")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "hosts (0)" in listed()
    (copy / "inventories" / "mine").symlink_to(ROOT / "inventories" / "example")
    assert "hosts (2)" in listed()


@pytest.mark.parametrize("inventory", ["another group", "a path that is not there"])
def test_a_verb_without_a_spark_is_no_success(tmp_path: Path, inventory: str) -> None:
    hosts = tmp_path / "hosts.yml"
    if inventory == "another group":
        hosts.write_text("other:\n  hosts:\n    spark-0:\n")
    code, screen, result = run(tmp_path, str(hosts))
    assert code == 2, screen
    assert "nothing was done" in screen
    assert result["outcome"] == "refused"
    assert "look at -i" in result["messages"][-1]


@pytest.mark.parametrize(
    ("name", "refused"),
    [("spark_engine_state", True), ("spark_gate_accepted", True), ("spark_engine_stall_timeout", False)],
)
def test_what_a_verb_passes_on_itself_is_refused_from_the_command_line(
    tmp_path: Path, name: str, refused: bool
) -> None:
    """A state of the engine that holds for every role would stop the pair where it is to be started."""
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "sparks:\n  hosts:\n    spark-0:\n      ansible_host: 192.0.2.1\n      ansible_connection: nowhere\n"
    )
    code, screen, result = run(tmp_path, str(hosts), "-e", f"{name}=5")
    assert code != 0
    assert (f"nothing was done: {name} (from -e)" in screen) == refused, screen
    assert (result["outcome"] == "refused") == refused


@pytest.mark.parametrize(
    "option", [("--start-at-task", "no such task"), ("--skip-tags", "all"), ("--tags", "a,b"), ("--step",)]
)
def test_a_verb_that_was_told_to_leave_tasks_out_is_refused(tmp_path: Path, option: tuple[str, ...]) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("sparks:\n  hosts:\n    spark-0:\n      ansible_host: 192.0.2.1\n")
    code, screen, result = run(tmp_path, str(hosts), *option)
    assert (code, result["outcome"]) == (2, "refused"), screen
    assert f"{' '.join(option)} leaves tasks out" in result["messages"][-1]
    assert "TASK [" not in screen


def test_a_verb_with_a_spark_is_judged_by_what_it_finds(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("sparks:\n  hosts:\n    spark-0:\n      ansible_host: 127.0.0.1\n      ansible_port: 1\n")
    code, screen, result = run(tmp_path, str(hosts))
    assert "nothing was done" not in screen
    assert (code, result["outcome"]) != (2, "refused"), screen


def test_a_report_that_cannot_be_written_is_told_and_changes_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file in the place of the folder")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("other:\n  hosts:\n    spark-0:\n")
    code, screen, _ = run(tmp_path, str(hosts))
    assert code == 2
    assert "no report: " in screen
    assert "nothing was done" in screen
