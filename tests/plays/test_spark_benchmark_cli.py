"""The real playbook in real ansible-playbook runs, on two local hosts; rollouts and states are stand-ins.

``spark_rollout`` and ``spark_engine`` are replaced by roles that write down what they were asked, ``spark_state`` by a
module that returns a prepared state, with the rollouts of the run on record. Everything else is the product, and the
traffic goes to the stand-in engine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sparkpair import probe, traffic
from sparkpair.gates import GATES
from sparkpair.settings import NAME_OF_KEY

from tests.planning import host_variables
from tests.planning import plan as make_plan
from tests.standin.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
KEY = "a-key-of-the-test"
STATE_MODULE = """#!/usr/bin/python
import json
from ansible.module_utils.basic import AnsibleModule
names = {"root": "path", "release": "str", "ray": "bool", "records": "bool", "probe": "bool", "host": "bool"}
names |= {"compose": "bool", "cool": "bool", "cool_celsius": "float", "cool_seconds": "float"}
module = AnsibleModule(argument_spec={n: {"type": t} for n, t in names.items()}, supports_check_mode=True)
root = module.params["root"]
state = json.load(open(root + "/state.json"))
try:
    rollouts = [line for line in open(root + "/log") if line.startswith("rollout")]
except OSError:
    rollouts = []
later = state.pop("later")
if rollouts:
    accepted = {"outcome": state["ends"], "verb": "benchmark", "release": state["current"], "stock": True}
    state["history"] += [accepted] * len(rollouts) + later
    state["containers"][0]["running"] = True
    # A person stops the pair after so many rollouts.
    if len(rollouts) >= state["stopped_after"]:
        state["containers"] = []
module.exit_json(changed=False, state=state)
"""


def log_task(text: str) -> dict[str, Any]:
    """A task that adds a line to the log."""
    return {
        "name": "Log",
        "ansible.builtin.shell": f"echo '{text}' >> {{{{ test_folder }}}}/log",
        "run_once": True,
        "changed_when": True,
    }


class Site:
    """A folder with inventory, configuration, the replaced roles, and the state that every rank is said to have."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder, self.engine = folder, engine
        self.settings = {
            "served_model_name": "stand-in",
            "max_model_len": 1024,
            "port": engine.server.server_address[1],
            "gpus": "none",
            "rdma": False,
        }
        self.plan = make_plan(**self.settings)
        (folder / "ansible.cfg").write_text(
            f"[defaults]\nroles_path = {folder}/roles:{ROOT}/roles\nlibrary = {folder}/library:{ROOT}/plugins/modules\n"
            f"action_plugins = {ROOT}/plugins/action\nmodule_utils = {ROOT}/plugins/module_utils\n"
            f"interpreter_python = {sys.executable}\nlocal_tmp = {folder}/tmp\nremote_tmp = {folder}/remote\n",
            encoding="utf-8",
        )
        hosts = {
            f"spark-{n}": {
                **host_variables(n),
                **self.settings,
                **{"ansible_connection": "local", "ansible_become": False, "test_folder": str(folder)},
                "spark_benchmark_root": str(folder / f"root-{n}"),
            }
            for n in (0, 1)
        }
        self._write("hosts.json", {"all": {"children": {"sparks": {"hosts": hosts}}}})
        rollout = log_task(
            'rollout {{ spark_rollout_run.split("-")[-1] }} {{ spark_rollout_plan.expected_width }}'
            " staged={{ spark_rollout_stage | default(true) }}"
        )
        broken = {
            "name": "Break",
            "ansible.builtin.fail": {"msg": "the rollout is broken"},
            "when": "spark_rollout_run.split('-')[-1] == test_broken_arm | default('')",
        }
        self._write("roles/spark_rollout/tasks/main.yml", [rollout, broken])
        self._write("roles/spark_engine/tasks/main.yml", [log_task("engine {{ spark_engine_state }}")])
        (folder / "library").mkdir()
        (folder / "library" / "spark_state.py").write_text(STATE_MODULE, encoding="utf-8")
        # Each rank has a root of its own, so a lock of its own; what they read is the same.
        for n in (0, 1):
            (folder / f"root-{n}").mkdir()
            for name in ("state.json", "log", "current"):
                (folder / f"root-{n}" / name).symlink_to(folder / name)
        (folder / "current" / "secrets").mkdir(parents=True)
        (folder / "current" / "secrets" / "api_key").write_text(KEY, encoding="utf-8")
        self.serve()

    def _write(self, name: str, data: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data), encoding="utf-8")

    def serve(
        self,
        *,
        accepted: bool = True,
        running: bool = True,
        later: Sequence[str] = (),
        stopped_after: int = 99,
        ends: str = "accepted",
    ) -> None:
        """Let every rank say that it serves the stock release.

        ``later`` are rollouts of others after the run's, which end as ``ends`` says; ``stopped_after`` so many a person
        runs stop.yml.
        """
        release = self.plan["release"]
        key = str(self.folder / "current" / "secrets" / "api_key")
        container = {"running": running, "labels": {"sparkpair.release": release}, "restart_count": 0}
        container |= {"name": "sparkpair-engine", "status": "running", "image": "i", "image_id": "x", "started_at": "t"}
        entry = {"release": release, "outcome": "accepted", "stock": True}
        state = {
            **{"hostname": "spark", "docker": None, "current": release, "leftovers": []},
            "release": {"id": release, "exists": True, "damage": []},
            "containers": [container],
            "plan": self.plan,
            "responses": traffic.run_groups(**probe.requests(self.plan), api_key_file=key),
            "history": [entry | {"verb": "deploy"}] if accepted else [],
            "stopped_after": stopped_after,
            "ends": ends,
            "later": [entry | {"verb": verb} for verb in later],
            "history_damaged": [],
            "history_fault": "",
            "lock": None,
            "checks": {release: []},
            "plans": {release: self.plan},
        }
        self._write("state.json", state)

    @property
    def locks(self) -> list[Path]:
        """The folder that is each rank's lock, when it is held."""
        return [self.folder / f"root-{n}" / "lock" for n in (0, 1)]

    def command(self, *arguments: str) -> list[str]:
        """The command line with short workloads."""
        short = ("-e", "spark_benchmark_runs=1")
        tokens = ("-e", "spark_benchmark_tokens=24")
        return [str(PLAYBOOK), "-i", "hosts.json", str(ROOT / "playbooks/benchmark.yml"), *short, *tokens, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """The caller's, without settings of this machine."""
        clean = {k: v for k, v in os.environ.items() if k not in NAME_OF_KEY and not k.startswith("ANSIBLE_")}
        return clean | {"ANSIBLE_CONFIG": "ansible.cfg", "SPARKPAIR_REPORTS": str(self.folder / "reports")}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        (self.folder / "log").unlink(missing_ok=True)
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def log(self) -> list[str]:
        """What the replaced roles were asked."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def results(self) -> dict[str, Any]:
        """results.json of the only run."""
        (path,) = (self.folder / "reports/benchmark/runs").glob("*/results.json")
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def site(tmp_path: Path) -> Any:
    with Engine(api_key=KEY, verify=7, step_seconds=0.002) as engine:
        yield Site(tmp_path, engine)


def test_bracket_interrupted_then_failed_then_complete(site: Site) -> None:
    """Ctrl-C after the first arm, a rollout that fails in the next run, and the end in the third."""
    bracket = ("-e", "arms=stock,7/3", "-e", "workloads=count")
    site.engine.behaviour.step_seconds = 0.05
    running = subprocess.Popen(
        site.command(*bracket),
        cwd=site.folder,
        env=site.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        found = list((site.folder / "reports").glob("benchmark/runs/*/results.json"))
        if found and json.loads(found[0].read_text(encoding="utf-8"))["arms"][0]["measured"]:
            break
        time.sleep(0.05)
    ends = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < ends:
        # Once was not enough in one of many runs: a signal that meets Ansible between two of its waits can be lost.
        os.killpg(running.pid, signal.SIGINT)
        time.sleep(0.5)
    site.engine.behaviour.step_seconds = 0.002
    first = site.results()
    assert (first["status"], first["restored"]) == ("unfinished", False)
    assert [sorted(a["measured"]) for a in first["arms"]] == [["count"], []]
    # Now an arm of the benchmark serves, and nobody accepted it: only the interrupted run knows what to put back.
    site.serve(accepted=False)
    refused = site.run(*bracket)
    assert "was not accepted on every rank" in " ".join(refused.stdout.split())
    site.serve()

    failed = site.run(*bracket, "-e", "test_broken_arm=B")
    assert failed.returncode == 2, failed.stdout
    assert site.log == ["rollout B 3 staged=True", "rollout restore 7 staged=False"]
    second = site.results()
    assert (second["id"], second["status"], second["restored"]) == (first["id"], "unfinished", True)
    assert [a["measured"] for a in second["arms"]] == [a["measured"] for a in first["arms"]]
    assert "is not finished (not measured: B); the same command continues it" in failed.stdout
    # Regression: the reason was nowhere in the report.
    assert second["messages"][-1].endswith("ended by a failure: the rollout is broken")
    (page,) = (site.folder / "reports/benchmark/runs").glob("*/report.html")
    assert "the rollout is broken" in page.read_text(encoding="utf-8")

    done = site.run(*bracket)
    assert done.returncode == 0, done.stdout
    assert site.log == ["rollout B 3 staged=True", "rollout restore 7 staged=False"]
    third = site.results()
    assert (third["id"], third["status"], third["restored"]) == (first["id"], "complete", True)
    assert [sorted(a["measured"]) for a in third["arms"]] == [["count"]] * 2
    assert third["procedure_only"] is True
    # Taken up by the try that was refused, the one that failed, and the last.
    assert len(third["resumed"]) == 3
    assert third["left"] is None
    assert all(arm["started"] <= arm["finished"] for arm in third["arms"])
    assert "arm B 7/3 (2/2), count 1-200 (1/1), run 1/1: " in done.stdout
    assert "less than a minute left" in done.stdout
    folder = site.folder / "reports/benchmark/runs" / third["id"]
    assert "This proves the procedure, not speed" in (folder / "report.html").read_text(encoding="utf-8")
    assert KEY not in done.stdout + "".join(p.read_text(encoding="utf-8") for p in folder.iterdir())
    hosts = [t["host"] for t in third["arms"][1]["measured"]["count"]["temperatures"]]
    assert hosts == ["spark-0", "spark-1"]


@pytest.mark.parametrize(
    ("call", "says"),
    [(1, "stopped on request before count 1-200 of A1 7/7 was measured"), (2, "after count 1-200 of A1 7/7")],
    ids=["in the warm-up", "in the last run of an arm"],
)
def test_the_first_interruption_ends_in_order_and_puts_back_what_served(site: Site, call: int, says: str) -> None:
    """The next arm is not begun, and the same command goes on."""
    with (site.folder / "ansible.cfg").open("a", encoding="utf-8") as stream:
        stream.write(f"callback_plugins = {ROOT}/plugins/callback\ncallbacks_enabled = sparkpair_stop\n")
    bracket = ("-e", "arms=stock,7/3", "-e", "workloads=count")
    site.engine.behaviour.step_seconds = 0.1
    running = subprocess.Popen(
        site.command(*bracket),
        cwd=site.folder,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ends = time.monotonic() + 60
    while sum("messages" in body for body in site.engine.seen) < call:
        assert time.monotonic() < ends
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    screen, _ = running.communicate(timeout=60)
    assert running.returncode == 2, screen
    assert "Stopping after the answer at hand" in screen
    assert says in " ".join(screen.split())
    assert site.log == ["rollout A1 7 staged=True", "rollout restore 7 staged=False"]
    assert (site.results()["status"], site.results()["restored"]) == ("unfinished", True)
    site.engine.behaviour.step_seconds = 0.002
    done = site.run(*bracket)
    assert done.returncode == 0, done.stdout
    assert (site.results()["status"], site.results()["restored"]) == ("complete", True)


def test_current_is_measured_without_a_rollout(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("My own prompt.", encoding="utf-8")
    done = site.run("-e", "arms=current", "-e", "workloads=count", "-e", f"prompts={tmp_path}/mine.txt")
    assert done.returncode == 0, done.stdout
    assert site.log == []
    found = site.results()
    assert found["status"] == "complete"
    assert sorted(found["arms"][0]["measured"]) == ["count", "mine"]
    assert found["arms"][0]["plan"]["release"] == site.plan["release"]
    assert done.stdout.count("changed=0") == 2


def test_a_pair_that_did_not_serve_is_stopped_at_the_end(site: Site) -> None:
    site.serve(running=False)
    done = site.run("-e", "arms=stock", "-e", "workloads=count")
    assert done.returncode == 0, done.stdout
    assert site.log == ["rollout A1 7 staged=True", "engine stopped"]
    assert not any(lock.exists() for lock in site.locks)


def test_a_pair_that_another_controller_starts_is_not_stopped(site: Site) -> None:
    """Its lock refuses the arm, and the stop at the end as well."""
    site.serve(running=False)
    note = {"run": "other", "who": "somebody", "controller": "laptop", "verb": "deploy", "release": "x", "time": 0}
    for lock in site.locks:
        lock.mkdir()
        (lock / "holder.json").write_text(json.dumps(note), encoding="utf-8")
    done = site.run("-e", "arms=stock", "-e", "workloads=count", "-e", "test_broken_arm=A1")
    assert done.returncode == 2, done.stdout
    assert site.log == ["rollout A1 7 staged=True"]
    assert "by somebody on laptop, deploy of x" in " ".join(done.stdout.split())
    assert [json.loads((lock / "holder.json").read_text(encoding="utf-8")) for lock in site.locks] == [note, note]
    found = site.results()
    assert (found["status"], found["restored"]) == ("unfinished", False)


@pytest.mark.parametrize("running", [True, False], ids=["served before", "did not serve before"])
def test_a_release_that_another_controller_rolled_out_in_between_stays(site: Site, running: bool) -> None:
    """Neither put back nor stopped, since no arm changed the pair last."""
    site.serve(running=running, later=["deploy"])
    done = site.run("-e", "arms=stock", "-e", "workloads=count")
    assert done.returncode == 0, done.stdout
    assert site.log == ["rollout A1 7 staged=True"]
    assert "no arm changed the pair last" in done.stdout
    assert site.results()["restored"] is True
    # Regression: the report said "restored".
    assert site.results()["left"] == site.plan["release"]
    assert not any(lock.exists() for lock in site.locks)


def test_what_an_arm_returned_to_is_put_back_and_nobody_elses(site: Site) -> None:
    """Another verb brought it, but the last run on the pair was the benchmark's own."""
    site.serve(ends="rolled_back")
    done = site.run("-e", "arms=stock", "-e", "workloads=count")
    assert done.returncode == 0, done.stdout
    assert [line.partition(" ")[0] for line in site.log] == ["rollout", "rollout"]
    assert "no arm changed the pair last" not in done.stdout
    assert site.results()["left"] is None


def test_a_pair_that_a_person_has_stopped_stays_stopped(site: Site) -> None:
    """Neither is the next arm deployed nor what served before put back."""
    site.serve(stopped_after=1)
    done = site.run("-e", "arms=stock,7/3,stock", "-e", "workloads=count")
    assert done.returncode == 2, done.stdout
    assert site.log == ["rollout A1 7 staged=True"]
    assert "somebody has stopped it" in done.stdout
    assert "somebody has stopped the pair, so nothing is put back" in done.stdout
    assert not any(lock.exists() for lock in site.locks)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-e", "arms=stock,7/2"), "arms = '7/2': is not an arm"),
        (("-e", "arms=7/3", "-e", "max_num_seqs=0"), "max_num_seqs = '0' (from -e)"),
    ],
)
def test_a_request_that_is_wrong_is_refused_before_anything_is_deployed(
    site: Site, arguments: tuple[str, ...], words: str
) -> None:
    done = site.run(*arguments)
    assert done.returncode == 2, done.stdout
    assert words in " ".join(done.stdout.split())
    assert site.log == []
    assert not (site.folder / "reports").exists()


def test_check_mode_measures_and_writes_nothing(site: Site) -> None:
    before = len(site.engine.seen)
    done = site.run("--check", "-e", "arms=7/3", "-e", "workloads=count")
    assert done.returncode == 0, done.stdout
    assert len(site.engine.seen) == before
    assert not (site.folder / "reports").exists()


def test_record_of_an_acceptance_has_both_rounds_of_its_own_gates(site: Site) -> None:
    """A play may hold several rollouts: the second one's gates are not those of the first."""
    others = [gate.name for gate in GATES if gate.name != "kernel"]

    def gate(skip: list[str]) -> dict[str, Any]:
        given = {"spark_gate_root": str(site.folder), "spark_gate_plan": site.plan, "spark_gate_skip": skip}
        given |= {"spark_gate_rank": "{{ spark_rank }}"}
        return {"name": "Gate", "ansible.builtin.include_role": {"name": "spark_gate"}, "vars": given}

    said = log_task('{{ spark_gate_output.gates | rejectattr("skipped", "defined") | map(attribute="name") | list }}')
    tasks = [gate([n for n in others if n != "health"]), said, gate([n for n in others if n != "models"]), said]
    play = {"hosts": "sparks", "gather_facts": False, "tasks": tasks}
    (site.folder / "play.json").write_text(json.dumps([play]), encoding="utf-8")
    command = [str(PLAYBOOK), "-i", "hosts.json", "play.json"]
    done = subprocess.run(command, cwd=site.folder, env=site.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert [line.replace("'", "") for line in site.log] == ["[health, kernel]", "[models, kernel]"]


def test_second_rollout_of_one_play_had_the_run_of_the_first(site: Site) -> None:
    """The record of its acceptance was then taken for the first one's, and never written."""
    real = str(ROOT / "roles" / "spark_rollout")

    def look(run: str, *, again: bool) -> dict[str, Any]:
        given = {"spark_rollout_root": str(site.folder), "spark_rollout_run": run, "spark_rollout_rank": 0}
        given |= {"spark_rollout_plan": site.plan, "__spark_rollout_again": again, "spark_rollout_keep": 1}
        asked = {"name": real, "tasks_from": "read.yml"}
        return {"name": "Look", "ansible.builtin.include_role": asked, "vars": given}

    said = log_task("run {{ __spark_rollout_verdict.run }}")
    tasks = [look("one", again=False), said, look("two", again=False), said, look("three", again=True), said]
    play = {"hosts": "sparks", "gather_facts": False, "tasks": tasks}
    (site.folder / "play.json").write_text(json.dumps([play]), encoding="utf-8")
    command = [str(PLAYBOOK), "-i", "hosts.json", "play.json"]
    done = subprocess.run(command, cwd=site.folder, env=site.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert site.log == ["run one", "run two", "run two"]
