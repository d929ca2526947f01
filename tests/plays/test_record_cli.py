"""What a rollout leaves in the history, in a real ansible-playbook run on two local hosts.

``spark_rollout`` and ``spark_gate`` are the product's tasks, the actions and the module that write the record too. The
roles around them do nothing, and modules that would need a pair return what the test has written down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkpair.live import switch_settings

from tests.planning import plan as make_plan
from tests.sshhere import ansible

ROOT = Path(__file__).resolve().parents[2]
# Answers with the next line of the file that is named like the module, or with its only one.
MODULE = """#!/usr/bin/python
import json, os
from ansible.module_utils.basic import AnsibleModule
names = NAMES
module = AnsibleModule(argument_spec={n: {"type": "raw"} for n in names}, supports_check_mode=True)
path = os.environ["TEST_FOLDER"] + "/NAME.json"
lines = open(path).read().splitlines()
if module.params.get("choice_only"):
    wishes = {n: module.params[n] for n in ("skip", "also", "limits", "deadlines")}
    if module.params.get("accepted"):
        open(os.environ["TEST_FOLDER"] + "/accepted", "a").write(json.dumps(module.params["accepted"]) + "\\n")
    module.exit_json(choice=wishes)
if len(lines) > 1:
    open(path, "w").write("\\n".join(lines[1:]))
found = json.loads(lines[0])
if module.params.get("run"):
    found["run"] = module.params["run"]
module.fail_json(**found) if found.get("failed") else module.exit_json(**found)
"""
ARGUMENTS = {
    "spark_state": (
        *("root", "release", "records", "probe", "ray", "host"),
        *("compose", "cool", "cool_celsius", "cool_seconds"),
    ),
    "spark_verdict": ("states", "plan", "run", "keep", "keep_states"),
    "spark_lock": ("root", "state", "run", "phase"),
    "spark_diagnose": ("root", "name"),
    "spark_gate": (
        *("plan", "states", "before", "api_key_file", "history", "skip", "also", "only"),
        *("limits", "deadlines", "choice_only", "accepted"),
    ),
}
ROLES = ("spark_engine", "spark_preflight", "spark_lock", "spark_release")
ENTRIES = ("main", "prepared", "unprepared", "pruned", "switch")
# A task that a test adds to a role: it cannot reach the host it names, or fails there.
LOSE = """
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        args = self._task.args
        if str(task_vars["inventory_hostname"]) != args["host"]:
            return {"changed": False, "ours": True, "text": ""}
        if args.get("msg"):
            return {"failed": True, "msg": args["msg"]}
        raise AnsibleConnectionFailure("cut")
"""
ASKED = {
    "name": "Note what was asked",
    "ansible.builtin.shell": "echo {{ inventory_hostname }} {{ spark_engine_state }} >> $TEST_FOLDER/asked",
}
BROKEN_START = {
    "name": "Start",
    "ansible.builtin.fail": {"msg": "not {{ __wanted }} within 5 s\nand the log says more"},
    # Of the role's own input, which nobody knows any more where the failure is looked at.
    "vars": {"__wanted": "{{ (spark_engine_state == 'started') | ternary('ready', 'stopped') }}"},
    "when": "spark_engine_state == 'started' and spark_engine_attempt in test_broken",
}
PRUNED = {
    "ansible.builtin.debug": {"msg": "run {{ spark_release_run }} prunes all but {{ spark_release_keep | join(' ') }}"}
}
PASSED = {
    "gates": [{"name": "width", "ok": True}],
    "figures": {"draft_tokens_per_step": 3.0},
    "settings": {"skip": ["long"]},
}
AFTER = {"gates": [{"name": "kernel", "ok": True}], "figures": {}}
OF_THE_RETURN = {"gates": [{"name": "ranks", "ok": True}], "figures": {"draft_tokens_per_step": 7.0}}


def fails(name: str) -> dict[str, Any]:
    """What the action returns when a gate fails."""
    message = f"gate {name} failed: saw this; wanted that"
    return {"failed": True, "msg": message, "gates": [{"name": name, "ok": False}], "figures": {}}


class Site:
    """Two hosts, each with a history; ``run`` rolls out once for each run id, in one play."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ansible.cfg").write_text(
            f"[defaults]\nroles_path = {folder}/roles:{ROOT}/roles\nlibrary = {folder}/library:{ROOT}/plugins/modules\n"
            f"action_plugins = {folder}/actions\nmodule_utils = {ROOT}/plugins/module_utils\n"
            f"interpreter_python = {sys.executable}\nlocal_tmp = {folder}/tmp\nremote_tmp = {folder}/remote\n",
            encoding="utf-8",
        )
        (folder / "actions").mkdir()
        for name in ("spark_record", "spark_outcome", "spark_failure"):
            (folder / "actions" / f"{name}.py").symlink_to(ROOT / f"plugins/action/{name}.py")
        (folder / "library").mkdir()
        for name, arguments in ARGUMENTS.items():
            text = MODULE.replace("NAMES", repr(arguments)).replace("NAME", name)
            (folder / "library" / f"{name}.py").write_text(text, encoding="utf-8")
        for role in ROLES:
            (folder / "roles" / role / "tasks").mkdir(parents=True)
            for entry in ENTRIES:
                tasks = [ASKED, BROKEN_START] if role == "spark_engine" else [PRUNED] if entry == "pruned" else []
                self.tasks(role, *tasks, entry=entry)
        (folder / "actions" / "lose.py").write_text(LOSE, encoding="utf-8")
        self.plan = make_plan()
        fallback = self.plan | {"release": "b" * 12}
        self.verdict = {
            "serving": False,
            "advisory": [],
            "fallback": fallback,
            "fallback_gates": {"also": ["soak"]},
            "plan_gates": {"also": ["quality"]},
            "standing": False,
            "no_way_back": "",
            "keep": {"0": [], "1": []},
        }
        state = {"docker": None, "release": {"exists": True, "damage": []}, "current": "b" * 12, "history": []}
        state |= {"history_fault": ""}
        self.answers("spark_state", {"state": state | {"overlays": []}})
        self.answers("spark_lock", {"ours": True, "text": ""})
        self.answers("spark_diagnose", {})

    def tasks(self, role: str, *tasks: dict[str, Any], entry: str = "main") -> None:
        """What a role does."""
        path = self.folder / "roles" / role / "tasks" / f"{entry}.yml"
        path.write_text(json.dumps(tasks), encoding="utf-8")

    @property
    def asked(self) -> list[str]:
        """Host and wanted state, in the order in which the engine role was asked."""
        return (self.folder / "asked").read_text(encoding="utf-8").splitlines()

    def answers(self, module: str, *results: dict[str, Any]) -> None:
        """What a module returns, call by call."""
        (self.folder / f"{module}.json").write_text("\n".join(json.dumps(r) for r in results), encoding="utf-8")

    def run(self, *runs: str, broken: tuple[str, ...] = (), **verdict: Any) -> list[list[dict[str, Any]]]:
        """The history of each host after these rollouts; ``broken`` starts are run and attempt."""
        self.answers("spark_verdict", self.verdict | verdict | {"states": {}})
        done = self.play("rollout.yml", *runs, broken=broken, **verdict)
        paths = [self.folder / f"spark-{n}" / "history.jsonl" for n in (0, 1)]
        assert all(path.exists() for path in paths), done.stdout + done.stderr
        return [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in paths]

    def play(
        self, entry: str, *runs: str, broken: tuple[str, ...] = (), **verdict: Any
    ) -> subprocess.CompletedProcess[str]:
        """Include tasks of the rollout once for each run; ``verdict`` is what its first look has found."""
        tasks = [
            {
                "block": [
                    # As the first look at the pair leaves it.
                    {
                        "ansible.builtin.set_fact": {
                            "__spark_rollout_verdict": self.verdict | verdict | {"run": run},
                            "spark_rollout_run": run,
                        }
                    },
                    {"ansible.builtin.include_role": {"name": "spark_rollout", "tasks_from": entry}},
                ],
                "rescue": [{"ansible.builtin.debug": {"msg": "it failed"}}],
            }
            for run in runs
        ]
        variables = {
            "spark_rollout_plan": self.plan,
            "spark_rollout_rank": "{{ spark_rank }}",
            "spark_rollout_root": f"{self.folder}/{{{{ inventory_hostname }}}}",
            "spark_rollout_verb": "deploy",
            "spark_rollout_stage": False,
            "spark_rollout_architecture": "arm64",
            "test_broken": list(broken),
        }
        book = {"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "vars": variables, "tasks": tasks}
        (self.folder / "play.json").write_text(json.dumps([book]), encoding="utf-8")
        hosts = {
            f"spark-{n}": {"ansible_connection": "local", "ansible_become": False, "spark_rank": n} for n in (0, 1)
        }
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
        return ansible(self.folder, "-i", "hosts.json", "play.json", TEST_FOLDER=str(self.folder))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def told(entry: dict[str, Any]) -> tuple[str, list[tuple[str, bool]], dict[str, float], str]:
    """Outcome, gates, figures and reason."""
    return entry["outcome"], [(g["name"], g["ok"]) for g in entry["gates"]], entry["figures"], entry["reason"]


def test_failed_rollouts_record_gates_and_reason_of_their_own(site: Site) -> None:
    """As a benchmark has them, three failures and a success in one play; none tells what is another's."""
    back = (OF_THE_RETURN, AFTER)
    site.answers("spark_gate", PASSED, fails("memory"), *back, *back, fails("canary"), *back, PASSED, AFTER)
    head, worker = site.run("late", "start", "early", "good", broken=("start-deploy",))
    expected = [
        (
            "rolled_back",
            [("width", True), ("memory", False)],
            {"draft_tokens_per_step": 3.0},
            "spark-0: Confirm that every rank still runs as it was started: gate memory failed: saw this; wanted that",
        ),
        ("rolled_back", [], {}, "spark-0: Start: not ready within 5 s"),
        (
            "rolled_back",
            [("canary", False)],
            {},
            "spark-0: Pass every gate: gate canary failed: saw this; wanted that",
        ),
        ("accepted", [("width", True), ("kernel", True)], {"draft_tokens_per_step": 3.0}, ""),
    ]
    assert [told(entry) for entry in head] == expected
    assert [told(entry) for entry in worker] == expected
    # With which a later return to it is made.
    assert head[-1]["switch_settings"] == switch_settings(site.plan["settings"]) != {}
    assert head[-1]["gate_settings"] == {"skip": ["long"]}
    # A return is judged as its release was accepted, and nothing else is.
    asked = (site.folder / "accepted").read_text(encoding="utf-8").splitlines()
    own, back = [{"also": ["quality"]}], [{"also": ["soak"]}]
    assert [json.loads(line) for line in asked] == own + back * 2 + own + back + own


def test_a_return_that_fails_too_leaves_the_first_reason(site: Site) -> None:
    site.answers("spark_gate", fails("canary"), fails("ranks"))
    for entries in site.run("one"):
        outcome, gates, _, reason = told(entries[-1])
        assert (outcome, gates) == ("not_restored", [("canary", False)])
        assert reason.endswith("gate canary failed: saw this; wanted that; the return failed too")


def test_what_served_before_and_was_accepted_stays_when_only_a_gate_of_today_fails(site: Site) -> None:
    """Neither is it stopped, nor does another release come into its place."""
    site.answers("spark_gate", fails("quality"))
    for entries in site.run("one", serving=True, standing=True, broken=("one-return",)):
        assert told(entries[-1])[:2] == ("failed", [("quality", False)])
        assert entries[-1]["returned_to"] == site.plan["release"]


def test_what_served_before_and_died_in_the_gates_does_not_stay(site: Site) -> None:
    site.answers("spark_gate", fails("ranks"), OF_THE_RETURN, AFTER)
    up, down = (site.verdict | {"serving": up, "standing": True, "run": "one", "states": {}} for up in (True, False))
    # The look under the lock, the gates' own, and the one after their failure.
    site.answers("spark_verdict", up, up, down)
    site.play("rollout.yml", "one", serving=True, standing=True)
    for host in ("spark-0", "spark-1"):
        entries = [json.loads(line) for line in (site.folder / host / "history.jsonl").read_text().splitlines()]
        assert told(entries[-1])[:2] == ("rolled_back", [("ranks", False)])


@pytest.mark.parametrize("message", ["the lock cannot be released: busy", ""], ids=["refused", "unreachable"])
def test_a_pair_that_was_back_was_stopped_because_its_lock_could_not_be_given_back(site: Site, message: str) -> None:
    site.answers("spark_gate", fails("canary"), OF_THE_RETURN, AFTER)
    site.tasks("spark_lock", {"lose": {"host": "spark-0", "msg": message}, "when": "spark_lock_state == 'released'"})
    for entries in site.run("one"):
        assert [entry["outcome"] for entry in entries] == ["rolled_back"]
    assert site.asked[-1].endswith("started"), site.asked


def test_a_rank_lost_while_the_lock_was_read_was_not_missed_and_half_a_pair_was_started(site: Site) -> None:
    site.answers("spark_gate", fails("canary"), OF_THE_RETURN, AFTER)
    (site.folder / "actions" / "spark_lock.py").write_text(
        LOSE.replace('args["host"]', '"spark-1" or args["state"] != "shown"'), encoding="utf-8"
    )
    site.answers("spark_verdict", site.verdict | {"run": "one", "states": {}})
    done = site.play("rollout.yml", "one")
    since = site.asked[site.asked.index("spark-0 started") :]
    assert "spark-0 stopped" in since, done.stdout
    assert since.count("spark-0 started") == 1, since
    assert "cannot reach spark-1, so the others are stopped" in done.stdout


def test_a_second_look_that_failed_left_the_lock_behind(site: Site) -> None:
    given = {"name": "Give back", "ansible.builtin.debug": {"msg": "{{ spark_lock_state }} for {{ spark_lock_run }}"}}
    site.tasks("spark_lock", given)
    site.answers("spark_gate", PASSED)
    site.answers("spark_verdict", {"failed": True, "msg": "what a bug says"})
    done = site.play("rollout.yml", "one")
    assert "released for one" in done.stdout, done.stdout


@pytest.mark.parametrize("serving", [True, False])
def test_a_stop_that_failed_at_the_head_ended_a_pair_that_had_lost_nothing(site: Site, serving: bool) -> None:
    first = "not spark_engine_stop_all | default(true) and spark_engine_state == 'stopped'"
    site.tasks("spark_engine", {"lose": {"host": "spark-0", "msg": "docker stop failed"}, "when": first}, ASKED)
    site.answers("spark_gate", OF_THE_RETURN, AFTER)
    look = site.verdict | {"run": "one", "states": {}}
    # The look under the lock, and the one after the failure.
    site.answers("spark_verdict", look, look | {"serving": serving})
    done = site.play("rollout.yml", "one")
    entry = json.loads((site.folder / "spark-1" / "history.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert (entry["outcome"], entry["returned_to"]) == ("failed" if serving else "rolled_back", "b" * 12)
    assert ("nothing was stopped: release " + "b" * 12 in done.stdout) == serving
    assert ("spark-1 started" in site.asked) != serving


def test_a_rollout_with_nothing_to_return_to_records_why(site: Site) -> None:
    site.answers("spark_gate", fails("canary"))
    for entries in site.run("one", fallback=None):
        assert told(entries[-1])[:2] == ("not_restored", [("canary", False)])
        assert "gate canary failed" in entries[-1]["reason"]


def test_what_a_colleague_deployed_since_the_first_look_is_not_pruned(site: Site) -> None:
    """A run with nothing to do but tidy up has looked, and waits; what is kept is known under its lock only."""
    theirs = site.verdict | {"keep": {"0": ["a" * 12, "c" * 12], "1": ["a" * 12, "c" * 12]}, "states": {}}
    site.answers("spark_verdict", theirs)
    done = site.play("tidy.yml", "mine", keep={"0": ["a" * 12], "1": ["a" * 12]}, done=True)
    assert done.stdout.count(f"run mine prunes all but {'a' * 12} {'c' * 12}") == 2, done.stdout
