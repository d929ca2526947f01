"""The action in a real ansible-playbook run: its module goes to a local host, its traffic to the stand-in engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sparkpair.gates import choose

from tests.planning import plan as make_plan
from tests.sshhere import program
from tests.standin.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
KEY = "a-key-of-the-test"


@dataclass
class Run:
    """Results of the tasks by name, and everything that was printed."""

    tasks: dict[str, dict[str, Any]]
    output: str


def play(folder: Path, tasks: list[dict[str, Any]], *arguments: str, path: str = os.environ["PATH"]) -> Run:
    """Run spark_gate tasks on a local host; a task that fails does not end the play. ``path`` finds its programs."""
    (folder / "ansible.cfg").write_text(
        f"[defaults]\naction_plugins = {ROOT}/plugins/action\nlibrary = {ROOT}/plugins/modules\n"
        f"module_utils = {ROOT}/plugins/module_utils\nstdout_callback = ansible.posix.json\n"
        f"interpreter_python = {sys.executable}\nlocal_tmp = {folder}/local\nremote_tmp = {folder}/remote\n",
        encoding="utf-8",
    )
    book = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]
    (folder / "play.json").write_text(json.dumps(book), encoding="utf-8")
    done = subprocess.run(
        [PLAYBOOK, "-i", "localhost,", "play.json", *arguments],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}
        | {"ANSIBLE_CONFIG": "ansible.cfg", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    parsed = json.loads("\n".join(lines[lines.index("{") :]))
    found = {t["task"]["name"]: t["hosts"]["localhost"] for t in parsed["plays"][0]["tasks"]}
    return Run(found, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return make_plan(served_model_name="stand-in", max_model_len=1024, verify_tokens=3) | {"api_key_set": True}


@pytest.fixture(scope="module")
def run(plan: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One play with every case, since starting Ansible is what costs."""
    folder = tmp_path_factory.mktemp("gates")
    (folder / "api_key").write_text(KEY, encoding="utf-8")

    def task(name: str, engine: Engine, **args: Any) -> dict[str, Any]:
        given = {"plan": plan, "base_url": engine.url, "api_key_file": str(folder / "api_key"), **args}
        return {"name": name, "spark_gate": given, "ignore_errors": True}

    with (
        Engine(api_key=KEY) as sound,
        Engine("broken_grammar", "reflects_key", api_key=KEY) as broken,
        Engine("hang", api_key=KEY) as hanging,
    ):
        yield play(
            folder,
            [
                task("passes", sound, only=["auth", "width", "long"], skip=["long"], also=["health"]),
                task("fails", broken, only=["health", "json", "tool"]),
                task("hangs", hanging, only=["completion"], deadlines={"completion": 0.5}),
                task("refuses", sound, only=["helth"]),
                task("refuses a limit", sound, only=["health"], limits={"celcius": 80}),
                task("text with commas", sound, only="health,auth", skip="auth"),
                task("states", sound, only=["ranks"], states={"0": None}),
            ],
        )


def test_gates_that_pass_are_returned_in_order(run: Run) -> None:
    result = run.tasks["passes"]
    assert [(g["name"], g["ok"]) for g in result["gates"]] == [(n, True) for n in ("health", "auth", "width", "long")]
    assert all(set(g) >= {"name", "ok", "seen", "wanted", "seconds", "deadline"} for g in result["gates"])
    assert [g["deadline"] for g in result["gates"]] == [30, 30, 180, 300]
    assert (result["changed"], result["draft_tokens_per_step"]) == (False, 3.0)
    assert result["sparkpair_report"] == {"gates": result["gates"], "draft_tokens_per_step": 3.0}


def test_skipped_gate_is_named(run: Run) -> None:
    entry = run.tasks["passes"]["gates"][-1]
    assert (entry["skipped"], entry["seen"]) == ("skipped on request", "left out: skipped on request")
    assert "gate 4/4 long: left out, skipped on request" in run.output


def test_each_gate_prints_a_line(run: Run) -> None:
    assert "gate 2/4 auth: ok (" in run.output
    assert "s): 3.00 draft tokens per step" in run.output


def test_first_failure_ends_the_gates_and_says_what_was_seen_and_wanted(run: Run) -> None:
    result = run.tasks["fails"]
    assert result["failed"] is True
    assert [g["name"] for g in result["gates"]] == ["health", "json"]
    assert result["msg"].startswith("gate json failed: saw 39 items")
    assert result["msg"].endswith("wanted the array 1..40")
    assert result["sparkpair_report"]["messages"] == [result["msg"]]


def test_deadline_given_for_a_gate_is_kept(run: Run) -> None:
    result = run.tasks["hangs"]
    # A busy machine needs a part of it before the request is sent.
    assert re.search(r"no complete answer within 0\.\d s", result["msg"])
    assert result["gates"][0]["seconds"] < 10
    assert result["gates"][0]["deadline"] == 0.5


def test_unknown_gate_is_refused_before_any_traffic(run: Run) -> None:
    result = run.tasks["refuses"]
    assert "no gate is named helth" in result["msg"]
    assert result["sparkpair_report"] == {"outcome": "refused"}


def test_unknown_limit_is_refused_before_any_traffic(run: Run) -> None:
    assert "no limit of a gate is named celcius" in run.tasks["refuses a limit"]["msg"]


def test_names_may_be_text_with_commas_as_the_command_line_gives_it(run: Run) -> None:
    found = run.tasks["text with commas"]["gates"]
    assert [(g["name"], g.get("skipped")) for g in found] == [("health", None), ("auth", "skipped on request")]


def test_states_come_with_ranks_as_text(run: Run) -> None:
    assert run.tasks["states"]["msg"].startswith("gate ranks failed: saw spark-0: not reached; spark-1: not reached")


def test_key_is_nowhere_in_the_output(run: Run) -> None:
    assert KEY not in run.output


def test_a_pause_for_the_temperature_is_on_record_and_does_not_eat_the_deadline(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    """The head is too hot for longer than the deadlines; after the bound it goes on, and a hang fails at its own."""
    plan = plan | {"api_key_set": False}
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "nvidia-smi", f"cat {tmp_path}/celsius")
    (tmp_path / "celsius").write_text("0, 149\n", encoding="utf-8")
    with Engine() as engine, Engine("hang") as hanging:

        def task(name: str, url: str, celsius: float, gate: str, deadline: float) -> dict[str, Any]:
            limits = {"celsius": celsius, "pause_seconds": deadline + 0.5}
            given = {"plan": plan, "base_url": url, "only": [gate], "limits": limits, "deadlines": {gate: deadline}}
            return {"name": name, "spark_gate": given, "ignore_errors": True}

        run = play(
            tmp_path,
            [
                # Two calls of the module with a group each: what the first has paused, the second must not.
                task("hot", engine.url, 140, "long", 3),
                task("cool", engine.url, 150, "long", 3),
                task("hot and hanging", hanging.url, 140, "completion", 1),
            ],
            path=f"{tmp_path}/bin:{os.environ['PATH']}",
        )
    hot, cool, hanging_too = (run.tasks[name] for name in ("hot", "cool", "hot and hanging"))
    assert (hot["gates"][0]["ok"], cool["gates"][0]["ok"]) == (True, True)
    assert re.search(r" s; paused [34] s, the head was too hot$", hot["gates"][0]["seen"])
    assert hot["gates"][0]["seconds"] > hot["gates"][0]["deadline"]
    assert "paused" not in cool["gates"][0]["seen"]
    assert re.search(
        r"no complete answer within 0?\.?\d s; paused 2 s, the head was too hot; wanted", hanging_too["msg"]
    )


def test_the_screen_names_a_rank_that_was_waited_for(plan: dict[str, Any], tmp_path: Path) -> None:
    states = {"0": {"cooled": 0.0}, "1": {"cooled": 35.0}}
    given = {"plan": plan, "states": states, "only": ["temperature"]}
    run = play(tmp_path, [{"name": "cooled", "spark_gate": given}])
    assert "  paused 35 s, spark-1 was too hot" in run.output
    assert "spark-0 was too hot" not in run.output


def test_check_mode_sends_nothing_and_names_every_gate(plan: dict[str, Any], tmp_path: Path) -> None:
    with Engine() as engine:
        task = {"name": "check", "spark_gate": {"plan": plan, "base_url": engine.url}}
        result = play(tmp_path, [task], "--check").tasks["check"]
        assert engine.seen == []
    assert (result["changed"], result["skipped"]) == (False, True)
    assert [g["name"] for g in result["gates"]] == [gate.name for gate, _ in choose()]
    skipped = {g["name"]: g["skipped"] for g in result["gates"]}
    assert skipped.pop("stock") == "a verify width is planned"
    assert set(skipped.values()) == {"check mode"}
