"""spark_engine's check of what a start would refuse, in real ansible-playbook runs; no host is contacted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sshhere import ansible, configure, program


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), ""),
        (("-f", "2"), ""),
        (("-f", "1"), "1 fork(s) cannot follow 2 ranks at once"),
        (("-e", "spark_engine_ready_timeout=0"), "are seconds above 0"),
    ],
    ids=str,
)
def test_what_no_start_can_meet_is_refused_before_the_stop(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    configure(tmp_path)
    program(tmp_path / "ssh", "exit 255")
    hosts = {f"spark-{rank}": {"spark_engine_rank": rank} for rank in (0, 1)}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    task = {"ansible.builtin.include_role": {"name": "spark_engine"}, "vars": {"spark_engine_state": "checked"}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.json").write_text(json.dumps([play]))
    done = ansible(tmp_path, "-i", "hosts.json", "play.json", *arguments)
    assert done.returncode == (2 if said else 0), done.stdout
    assert said in " ".join(done.stdout.split())
