"""What a verb reports when it has nothing to act on: real ansible-playbook runs with the checkout's ansible.cfg."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sparkpair.report import Report

from plugins.callback.sparkpair_report import CallbackModule
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


SAYS = """
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        Display().display("  gate 1/2")
        return super().run(tmp, task_vars) | {"changed": False}
"""
PLAY = """
- hosts: sparks
  connection: local
  gather_facts: false
  tasks:
    - says:
    - ansible.builtin.file: {path: "{{ inventory_dir }}/done", state: touch, mode: "0600"}
"""


@pytest.mark.parametrize("unbuffered", ["1", ""], ids=["unbuffered", "buffered"])
def test_a_screen_that_broke_ended_the_run_in_mid_switch(tmp_path: Path, unbuffered: str) -> None:
    """``deploy.yml | grep -m1 ...``: the reader of the screen ends long before the run does."""
    # A copy, since only a playbook of the callback's own checkout is a verb.
    shutil.copytree(ROOT / "plugins", tmp_path / "plugins")
    (tmp_path / "ansible.cfg").write_text((ROOT / "ansible.cfg").read_text())
    (tmp_path / "hosts.yml").write_text(
        f"sparks:\n  hosts:\n    spark-0:\n      ansible_python_interpreter: {sys.executable}\n"
    )
    for name, file, text in (("says", "says.py", SAYS), ("playbooks", "status.yml", PLAY)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "hosts.yml", "playbooks/status.yml"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_ACTION_PLUGINS": str(tmp_path / "says"), "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    os.close(writer)
    assert (done.returncode, (tmp_path / "done").exists()) == (0, True), done.stderr


COUNTS = ("failures", "unreachable")


def callback() -> CallbackModule:
    """The callback as it is in the middle of a deploy."""
    found = CallbackModule()
    found._report = Report(verb="deploy")
    return found


def hold(made: CallbackModule, states: list[str]) -> None:
    """Let the callback see these states of the lock succeed."""
    for state in states:
        made.v2_runner_on_ok(
            SimpleNamespace(
                _result={}, _task=SimpleNamespace(action="spark_lock"), _task_fields={"args": {"state": state}}
            )
        )


@pytest.mark.parametrize(
    ("states", "outcome"), [(["held", "advanced"], "failed"), (["held", "released"], None), (["shown"], None)]
)
def test_a_play_that_broke_in_itself_was_reported_as_ok(
    monkeypatch: pytest.MonkeyPatch, states: list[str], outcome: str | None
) -> None:
    made = callback()
    monkeypatch.setattr(made, "_write", lambda *_, **__: None)
    hold(made, states)
    made.v2_playbook_on_stats(SimpleNamespace(processed={"spark-0": 1}, summarize=lambda _: dict.fromkeys(COUNTS, 0)))
    assert made._report is not None
    assert made._report.outcome == outcome


@pytest.mark.parametrize(
    ("states", "lost", "outcome"),
    [
        (["held", "advanced"], 2, "not_restored"),
        (["held", "advanced"], 1, None),
        (["held", "released"], 2, None),
        (["shown"], 2, None),
    ],
)
def test_a_controller_that_lost_every_rank_said_nothing_of_the_lock(
    monkeypatch: pytest.MonkeyPatch, states: list[str], lost: int, outcome: str | None
) -> None:
    said: list[str] = []
    made = callback()
    monkeypatch.setattr(made._display, "error", said.append)
    monkeypatch.setattr(made, "_write", lambda _, failed: said.append(f"failed {failed}"))
    hold(made, states)
    counted = {f"spark-{n}": {"failures": 1 - (n < lost), "unreachable": int(n < lost)} for n in (0, 1)}
    made.v2_playbook_on_stats(SimpleNamespace(processed=counted, summarize=counted.get))
    assert made._report is not None
    assert made._report.outcome == outcome
    assert any("its lock names the phase" in line for line in said) == (outcome is not None)
    assert said[-1] == "failed True"
