"""stop.yml and lock.yml in real ansible-playbook runs: two hosts behind an ssh that runs here, each with a docker.

The docker is a stand-in of a few lines: one container while the file ``running`` is there, and ``docker stop`` fails
while the file ``broken`` is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sshhere import ansible, configure, program

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = {
    "Id": "c" * 64,
    "Name": "/sparkpair-engine",
    "Image": "sha256:1",
    "Config": {"Image": "i", "Labels": {"sparkpair.release": "a" * 12}},
    "State": {"Status": "running", "Running": True, "ExitCode": 0, "StartedAt": "2026-01-01T00:00:00Z"},
}
DOCKER = """cd {folder}
case "$1" in
ps) [ ! -e running ] || echo c ;;
inspect) cat container.json ;;
stop) [ ! -e broken ] || {{ echo "the daemon is confused" >&2; exit 1; }} ;;
rm) rm running ;;
esac
"""


class Site:
    """Two Sparks that serve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        hosts = {}
        for rank in (0, 1):
            spark = folder / f"spark-{rank}"
            (spark / "bin").mkdir(parents=True)
            (spark / "running").touch()
            (spark / "container.json").write_text(json.dumps([CONTAINER]))
            program(spark / "bin" / "docker", DOCKER.format(folder=spark))
            (spark / "bin" / "sudo").symlink_to(folder / "sudo")
            hosts[f"spark-{rank}"] = {
                "ansible_host": f"192.0.2.{rank + 1}",
                "ansible_python_interpreter": sys.executable,
                "ansible_become_exe": str(folder / "sudo"),
                "spark_rank": rank,
                "spark_fabric_address": f"192.0.2.{rank + 1}",
                "spark_lock_root": str(spark / "root"),
                "spark_stop_root": str(spark / "root"),
                "spark_status_root": str(spark / "root"),
                "spark_drift_root": str(spark / "root"),
                "spark_history_root": str(spark / "root"),
            }
        program(folder / "sudo", 'for last; do :; done\nexec sh -c "$last"\n')
        # An unreachable host is one whose folder holds the file "off".
        program(
            folder / "ssh",
            f'case "$*" in *192.0.2.1*) n=0;; *) n=1;; esac\n[ ! -e {folder}/spark-$n/off ] || exit 255\n'
            f'for last; do :; done\nPATH={folder}/spark-$n/bin:$PATH exec sh -c "$last"\n',
        )
        configure(folder)
        (folder / "hosts.json").write_text(json.dumps({"all": {"children": {"sparks": {"hosts": hosts}}}}))

    def run(self, verb: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a verb."""
        return ansible(self.folder, "-i", "hosts.json", ROOT / f"playbooks/{verb}.yml", *arguments, **environment)

    def ask(self, module: str, **arguments: str) -> dict[str, Any]:
        """Run a module on the head and return its result."""
        given = ("-b", "-m", module, "-a", json.dumps(arguments))
        done = ansible(self.folder, "-i", "hosts.json", "spark-0", *given, program="ansible")
        result: dict[str, Any] = json.loads(done.stdout.partition(" => ")[2])
        return result

    def lock(self, *ranks: int) -> None:
        """Let another run hold the lock of these ranks."""
        note = {"run": "another", "who": "eve", "controller": "laptop", "verb": "deploy", "time": time.time()}
        for rank in ranks:
            folder = self.folder / f"spark-{rank}" / "root" / "lock"
            folder.mkdir(parents=True)
            (folder / "holder.json").write_text(json.dumps(note))

    @property
    def locked(self) -> list[bool]:
        """Whether the lock is held, by rank."""
        return [(self.folder / f"spark-{rank}" / "root" / "lock").exists() for rank in (0, 1)]

    @property
    def running(self) -> list[bool]:
        """Whether the engine runs, by rank."""
        return [(self.folder / f"spark-{rank}" / "running").exists() for rank in (0, 1)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_stop_stops_both_ranks_and_leaves_no_lock(site: Site) -> None:
    done = site.run("stop")
    assert done.returncode == 0, done.stdout
    assert site.running == site.locked == [False, False]


def test_a_second_stop_changes_nothing(site: Site) -> None:
    assert "changed=1 " in site.run("stop").stdout
    again = site.run("stop")
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("changed=0 ") == 2


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_stop_is_refused_while_another_run_holds_the_lock(site: Site, check: tuple[str, ...]) -> None:
    site.lock(0, 1)
    done = site.run("stop", *check)
    assert done.returncode == 2, done.stdout
    assert "never taken over" in done.stdout
    assert site.running == site.locked == [True, True]


def test_a_check_of_stop_takes_no_lock_and_stops_nothing(site: Site) -> None:
    done = site.run("stop", "--check")
    assert "never taken over" not in done.stdout
    assert (site.running, site.locked) == ([True, True], [False, False]), done.stdout


def test_stop_gives_back_the_heads_lock_when_the_workers_is_held(site: Site) -> None:
    site.lock(1)
    assert site.run("stop").returncode == 2
    assert site.running == [True, True]
    assert site.locked == [False, True]


def test_a_head_that_cannot_be_stopped_does_not_keep_the_worker_running(site: Site) -> None:
    (site.folder / "spark-0" / "broken").touch()
    done = site.run("stop")
    assert done.returncode == 2, done.stdout
    assert "the engine of this rank is not stopped: docker stop sparkpair-engine: the daemon is confused" in done.stdout
    assert site.running == [True, False]
    assert site.locked == [False, False]


@pytest.mark.parametrize("off", [0, 1])
def test_a_spark_that_is_off_does_not_keep_the_other_running(site: Site, off: int) -> None:
    (site.folder / f"spark-{off}" / "off").touch()
    done = site.run("stop")
    assert done.returncode in {2, 4}, done.stdout
    assert "could not be reached, so its engine is not stopped" in done.stdout, done.stdout
    assert site.running == [rank == off for rank in (0, 1)]
    assert site.locked == [False, False]


def test_half_a_pair_is_not_stopped(site: Site) -> None:
    done = site.run("stop", "--limit", "spark-1")
    assert done.returncode == 2, done.stdout
    assert "host spark-0 (from --limit)" in done.stdout
    assert site.running == [True, True]


@pytest.mark.parametrize("verb", ["status", "drift", "history"])
@pytest.mark.parametrize("limit", ["spark-0", "spark-1"])
def test_half_a_pair_is_not_judged(site: Site, verb: str, limit: str) -> None:
    done = site.run(verb, "--limit", limit)
    assert done.returncode == 2, done.stdout
    assert "half a pair tells nothing of the pair" in done.stdout + done.stderr
    whole = site.run(verb)
    assert "half a pair" not in whole.stdout + whole.stderr


def test_half_a_pair_is_not_released_but_shown(site: Site) -> None:
    site.lock(0, 1)
    reason = ("-e", "lock=release", "-e", "reason=seen")
    assert site.run("lock", *reason, "--limit", "spark-0").returncode == 2
    assert site.locked == [True, True]
    shown = site.run("lock", "--limit", "spark-0")
    assert shown.returncode == 0
    assert "by eve on laptop" in shown.stdout
    released = site.run("lock", *reason)
    assert released.returncode == 0
    assert released.stdout.count("changed=1 ") == 2
    assert site.locked == [False, False]


def test_a_word_that_is_no_verb_of_a_lock_only_showed_it(site: Site) -> None:
    site.lock(0, 1)
    mistyped = site.run("lock", "-e", "lock=released", "-e", "reason=seen")
    assert mistyped.returncode == 2
    assert "lock=released" in mistyped.stdout
    assert site.locked == [True, True]
    assert "released; it was held for" in site.run("lock", "-e", "lock=release", "-e", "reason=seen").stdout


def test_a_lock_is_released_where_the_history_cannot_tell_of_it(site: Site) -> None:
    site.lock(0, 1)
    history = [site.folder / f"spark-{rank}" / "root" / "history.jsonl" for rank in (0, 1)]
    history[0].mkdir()
    released = site.run("lock", "-e", "lock=release", "-e", "reason=seen")
    assert released.returncode == 0, released.stdout
    assert "the lock is released, but the history cannot tell of it" in released.stdout + released.stderr
    assert site.locked == [False, False]
    assert json.loads(history[1].read_text())["outcome"] == "interrupted"


@pytest.mark.parametrize(("state", "outcome"), [("held", "refused"), ("advanced", None)])
def test_only_a_lock_that_is_not_given_leaves_a_pair_untouched(site: Site, state: str, outcome: str | None) -> None:
    site.lock(0)
    root = site.folder / "spark-0" / "root"
    told = site.ask("spark_lock", root=str(root), state=state, run="mine", phase="start")
    assert told["sparkpair_report"].get("outcome") == outcome


@pytest.mark.parametrize(("run", "stopped"), [("mine", False), ("another", False), ("", True)])
def test_what_was_started_since_the_lock_was_taken_away_is_not_stopped(site: Site, run: str, stopped: bool) -> None:
    """Neither by another run, nor by the same one that was started again in another terminal."""
    site.lock(0)
    told = site.ask("spark_engine", root=str(site.folder / "spark-0" / "root"), state="stopped", run=run)
    assert ("is not this run's any more, so nothing was stopped" in told.get("msg", "")) != stopped, told
    assert site.running == [not stopped, True]


def test_check_mode_stops_nothing(site: Site) -> None:
    site.run("stop", "--check")
    assert site.running == [True, True]
    assert site.locked == [False, False]


def test_a_rank_that_takes_no_file_kept_both_from_being_stopped(site: Site) -> None:
    hosts = json.loads((site.folder / "hosts.json").read_text())
    hosts["all"]["children"]["sparks"]["hosts"]["spark-1"]["spark_stop_root"] = "/proc/sparkpair"
    (site.folder / "hosts.json").write_text(json.dumps(hosts))
    done = site.run("stop")
    assert site.running == [False, False], done.stdout
    assert site.locked == [False, False]
    assert "the lock cannot be taken" in done.stderr
    # The control: a lock that somebody else holds.
    site.lock(1)
    hosts["all"]["children"]["sparks"]["hosts"]["spark-1"]["spark_stop_root"] = str(site.folder / "spark-1" / "root")
    (site.folder / "hosts.json").write_text(json.dumps(hosts))
    (site.folder / "spark-0" / "running").touch()
    assert site.run("stop").returncode == 2
    assert site.running == [True, False]


@pytest.mark.parametrize("off", [0, 1])
def test_a_spark_that_is_off_kept_the_others_lock_from_being_released(site: Site, off: int) -> None:
    site.lock(0, 1)
    (site.folder / f"spark-{off}" / "off").touch()
    done = site.run("lock", "-e", "lock=release", "-e", "reason=seen")
    assert done.returncode != 0
    assert site.locked == [rank == off for rank in (0, 1)], done.stdout


@pytest.mark.parametrize("whole", [True, False])
def test_a_lock_is_taken_of_the_whole_pair_or_not(site: Site, whole: bool) -> None:
    """As a benchmark goes on in its end after a rank was lost between two rollouts."""
    (site.folder / "spark-1" / "off").touch()
    role = {"name": "spark_lock"}
    wanted = {"spark_lock_state": "held", "spark_lock_run": "mine", "spark_lock_rank": "{{ spark_rank }}"}
    lost = {"ansible.builtin.ping": {}, "any_errors_fatal": False}
    take = {"ansible.builtin.include_role": role, "vars": {**wanted, "spark_lock_whole": whole}}
    play = {"hosts": "sparks", "gather_facts": False, "any_errors_fatal": True, "tasks": [lost, take]}
    (site.folder / "play.json").write_text(json.dumps([play]))
    done = ansible(site.folder, "-i", "hosts.json", "play.json")
    assert site.locked == [not whole, False], done.stdout
    assert ("spark-1 could not be reached, so the lock is not taken" in done.stdout) == whole


@pytest.mark.parametrize("everyone", [True, False])
def test_the_worker_goes_on_where_the_head_could_not_be_stopped_unless_all_must_go(site: Site, everyone: bool) -> None:
    (site.folder / "spark-0" / "broken").touch()
    stop = {
        "ansible.builtin.include_role": {"name": "spark_engine"},
        "vars": {
            "spark_engine_state": "stopped",
            "spark_engine_rank": "{{ spark_rank }}",
            "spark_engine_stop_all": everyone,
        },
    }
    play = {"hosts": "sparks", "gather_facts": False, "any_errors_fatal": True, "tasks": [stop]}
    (site.folder / "play.json").write_text(json.dumps([play]))
    done = ansible(site.folder, "-i", "hosts.json", "play.json")
    assert done.returncode == 2
    assert "the engine of this rank is not stopped: " in done.stdout
    assert site.running == [True, not everyone]
    (site.folder / "spark-0" / "broken").unlink()
    assert ansible(site.folder, "-i", "hosts.json", "play.json").returncode == 0
    assert site.running == [False, False]


@pytest.mark.parametrize("debugger", [True, False])
def test_a_run_in_which_tasks_can_be_left_out_had_the_lock_when_no_report_is_made(site: Site, debugger: bool) -> None:
    # The control has what molecule says in each of its plays.
    options = () if debugger else ("--skip-tags", "molecule-notest,notest")
    done = site.run("stop", *options, **({"ANSIBLE_ENABLE_TASK_DEBUGGER": "True"} if debugger else {}))
    assert ("the task debugger leaves tasks out" in done.stdout) == debugger
    assert site.running == [debugger, debugger]
    assert site.locked == [False, False]
