"""The action in a real ansible-playbook run, with hosts that cannot be reached and an ssh that records every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sparkpair.settings import NAME_OF_KEY

from tests.planning import host_variables

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
TASK: dict[str, Any] = {"name": "Plan", "spark_plan": {}, "run_once": True}


@dataclass
class Outcome:
    """Return code, the first host's result, and how often ssh was called."""

    code: int
    result: dict[str, Any]
    ssh_calls: int
    output: str


class Site:
    """A folder with an inventory of two unreachable hosts, a playbook and the recording ssh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "ssh-calls"
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexit 255\n', encoding="utf-8")
        ssh.chmod(0o755)
        (folder / "ansible.cfg").write_text(
            "[defaults]\n"
            f"action_plugins = {ROOT}/plugins/action\nlibrary = {ROOT}/plugins/modules\n"
            "stdout_callback = ansible.posix.json\n"
            f"[ssh_connection]\nssh_executable = {ssh}\nssh_args = -o BatchMode=yes\nretries = 0\n",
            encoding="utf-8",
        )
        self.inventory()

    def inventory(self, **changes: Mapping[str, Any]) -> None:
        """Write the inventory; ``changes`` are host variables by host name with an underscore."""
        hosts = {
            f"spark-{n}": {
                "ansible_host": f"192.0.2.{n + 1}",
                **host_variables(n),
                **changes.get(f"spark_{n}", {}),
            }
            for n in (0, 1)
        }
        data = {"all": {"children": {"sparks": {"hosts": hosts}}}}
        (self.folder / "hosts.json").write_text(json.dumps(data), encoding="utf-8")

    def run(
        self,
        *arguments: str,
        environ: dict[str, str] | None = None,
        task: dict[str, Any] | None = None,
        variables: dict[str, Any] | None = None,
    ) -> Outcome:
        """Run a playbook of one task."""
        play = {"hosts": "sparks", "gather_facts": False, "vars": variables or {}, "tasks": [task or TASK]}
        (self.folder / "play.json").write_text(json.dumps([play]), encoding="utf-8")
        self.calls.unlink(missing_ok=True)
        base = {k: v for k, v in os.environ.items() if k not in NAME_OF_KEY and not k.startswith("ANSIBLE_")}
        done = subprocess.run(
            [PLAYBOOK, "-i", self.folder / "hosts.json", self.folder / "play.json", *arguments],
            cwd=self.folder,
            env={**base, "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"), **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        start = done.stdout.find("{")
        assert start >= 0, output
        tasks = json.loads(done.stdout[start:])["plays"][0]["tasks"]
        result = next(iter(tasks[0]["hosts"].values()))
        calls = len(self.calls.read_text(encoding="utf-8").splitlines()) if self.calls.exists() else 0
        return Outcome(done.returncode, result, calls, output)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_mistake_is_reported_at_once_without_a_connection(site: Site) -> None:
    site.inventory(spark_0={"stop_grace": 10}, spark_1={"stop_grace": 20, "spark_gid_index": "x"})
    (site.folder / ".env").write_bytes(b"NOPE=1\nPORT=1\nPORT=2\nSHM_SIZE=1g\r\nLIMIT_MM='{\"image\": 2}'\n")
    outcome = site.run(
        *(
            "-e",
            "verify_tokens=2",
            "-e",
            "max_num_seqs=0",
            "-e",
            "dflash_token=3",
            "-e",
            '{"gpu_mem_util": "{{ gone }}"}',
        ),
        *("-e", "api_key=secret"),
        environ={"DFLASH_TOKENS": "abc"},
    )
    assert outcome.code != 0
    assert outcome.result["failed"]
    errors = outcome.result["errors"]
    for words in (
        "NOPE = 'NOPE' (from ",
        ".env line 1): is not a known key",
        "line 3 PORT): is set twice (also in line 2)",
        ".env line 4): contains a carriage return",
        "verify_tokens = '2' (from -e): is not one of the accepted values; allowed: 0, 1, 3 or 7",
        "max_num_seqs = '0' (from -e)",
        "dflash_token = 'dflash_token' (from -e): is not a setting (did you mean dflash_tokens?)",
        "dflash_tokens = 'abc' (from environment DFLASH_TOKENS)",
        "stop_grace = 10 and 20 (from inventory (host spark-0 and host spark-1))",
        "spark_gid_index = 'x' (from inventory (host spark-1))",
        "gpu_mem_util = a template (from -e): its template fails",
        "api_key = (hidden) (from -e)",
    ):
        assert any(words in error for error in errors), (words, errors)
    assert not any("LIMIT_MM" in error or "limit_mm" in error for error in errors)
    assert all(error in outcome.result["msg"] for error in errors)
    assert outcome.result["sparkpair_report"] == {"outcome": "refused", "messages": errors}
    assert outcome.ssh_calls == 0


def test_the_recorder_would_have_seen_a_connection(site: Site) -> None:
    outcome = site.run(task={"name": "Connect", "ansible.builtin.raw": "true"})
    assert outcome.code != 0
    assert outcome.ssh_calls > 0


def test_command_line_beats_environment_beats_env_file_beats_inventory(site: Site) -> None:
    site.inventory(spark_0={"verify_tokens": 7}, spark_1={"verify_tokens": 7})
    (site.folder / ".env").write_text("DFLASH_VERIFY_TOKENS=0\n", encoding="utf-8")
    seen = [
        site.run("-e", "verify_tokens=1", environ={"DFLASH_VERIFY_TOKENS": "3"}),
        site.run(environ={"DFLASH_VERIFY_TOKENS": "3"}),
        site.run("--check", "--diff"),
    ]
    (site.folder / ".env").unlink()
    seen.append(site.run())
    assert [o.code for o in seen] == [0, 0, 0, 0], seen
    assert [o.result["plan"]["verify_tokens"] for o in seen] == [1, 3, 0, 7]
    origins = [o.result["origins"]["verify_tokens"] for o in seen]
    assert origins[:2] == ["-e", "environment DFLASH_VERIFY_TOKENS"]
    assert origins[2].endswith("/.env line 1 DFLASH_VERIFY_TOKENS")
    assert origins[3] == "inventory (host spark-0)"
    assert sum(o.ssh_calls for o in seen) == 0
    assert seen[0].result["sparkpair_report"]["plan"]["release"] == seen[0].result["plan"]["release"]
    assert not any(o.result["changed"] for o in seen)


def test_templates_and_variables_of_the_play_are_resolved(site: Site) -> None:
    site.inventory(spark_0={"max_num_seqs": "{{ seqs }}", "seqs": 5}, spark_1={"max_num_seqs": "{{ seqs }}", "seqs": 5})
    outcome = site.run(
        *("-e", '{"verify_tokens": "{{ width }}"}', "-e", "width=3"),
        variables={"port": 9000, "extra_args": ["--seed", 1]},
    )
    assert outcome.code == 0, outcome.output
    plan = outcome.result["plan"]
    assert (plan["verify_tokens"], plan["max_num_seqs"], plan["port"]) == (3, 5, 9000)
    assert plan["capture_sizes"] == [1, 2, 4, 8, 12, 16, 20, 24, 32]
    assert plan["ranks"][0]["arguments"][-2:] == ["--seed", "1"]
    assert outcome.result["origins"]["verify_tokens"] == "-e"
    assert outcome.result["origins"]["port"] == "variables of the play"


def test_a_value_of_the_command_line_that_differs_by_host_is_refused(site: Site) -> None:
    outcome = site.run("-e", '{"served_model_name": "{{ inventory_hostname }}"}')
    assert [e for e in outcome.result["errors"] if "is another value on host spark-1" in e]


def test_a_named_env_file_must_exist(site: Site) -> None:
    missing = site.run("-e", "spark_env_file=gone.env")
    assert len(missing.result["errors"]) == 1
    assert f"{site.folder}/gone.env): does not exist" in missing.result["errors"][0]
    (site.folder / "here.env").write_text("PORT=9001\n", encoding="utf-8")
    by_argument = site.run("-e", "spark_env_file=gone.env", task={**TASK, "spark_plan": {"env_file": "here.env"}})
    assert by_argument.result["plan"]["port"] == 9001


def test_limit_never_makes_half_a_pair(site: Site) -> None:
    outcome = site.run("--limit", "spark-0")
    assert any("host spark-1 (from --limit): is left out" in error for error in outcome.result["errors"])
    assert site.run("--limit", "sparks").code == 0


def test_stock_ignores_malformed_tuning_and_hides_the_key(site: Site) -> None:
    outcome = site.run(
        *("-e", "verify_tokens=abc", "-e", "spec_method=?", "-e", "api_key=correct-horse"),
        task={**TASK, "spark_plan": {"stock": True}},
    )
    assert outcome.code == 0, outcome.output
    assert outcome.result["plan"]["verify_tokens"] == 0
    assert outcome.result["plan"]["api_key_set"] is True
    assert len(outcome.result["notes"]) == 2
    assert "correct-horse" not in outcome.output
