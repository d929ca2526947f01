"""The role in a real ansible-playbook run: two hosts behind an ssh that runs here, each with an engine of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkpair.inputs import OVERLAYS as FOLDERS
from sparkpair.inputs import ray_recipes
from sparkpair.overlay_manifest import overlay_digest
from sparkpair.plan import build_plan

from tests.fakeengine import FakeEngine, image
from tests.planning import OVERLAYS, host_variables, rank, resolved
from tests.sshhere import configure, program
from tests.unit.test_image_transfer import free_port

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
PIN = "registry.example/engine@sha256:" + "9" * 64
ADDRESSES = ("127.0.0.1", "127.0.0.2")
ROLE = [{"ansible.builtin.include_role": {"name": "spark_image"}}]
PASSWORD = "s3cret-token"


class Pair:
    """Two hosts; ``run`` counts the SSH executions of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines = [FakeEngine(folder / f"spark-{n}") for n in (0, 1)]
        for n, engine in enumerate(self.engines):
            engine.program()
            engine.put(info={"ServerVersion": "27.0"})
            for name in ("sync", "sysctl"):
                program(engine.folder / "bin" / name, f'echo "{name} $*" >> {engine.folder}/system')
            program(
                engine.folder / "ssh",
                f"echo x >> {folder}/ssh-{n}\nexport PATH={engine.folder}/bin:$PATH\n"
                'for last; do :; done\nexec sh -c "$last"',
            )
        program(
            folder / "ssh",
            f'case "$*" in *192.0.2.1*) exec {folder}/spark-0/ssh "$@";; esac\nexec {folder}/spark-1/ssh "$@"',
        )
        program(folder / "sudo", 'for last; do :; done\nexec sh -c "$last"')
        configure(folder)
        hosts = {
            f"spark-{n}": {
                "ansible_host": f"192.0.2.{n + 1}",
                "ansible_python_interpreter": sys.executable,
                "ansible_become_exe": str(folder / "sudo"),
                **host_variables(n),
            }
            for n in (0, 1)
        }
        (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        self.port = free_port()

    @staticmethod
    def plan(**values: Any) -> dict[str, Any]:
        """A plan whose fabric is the loopback interface."""
        made = build_plan(
            resolved(**{"image": PIN, **values}), [rank(0), rank(1)], OVERLAYS, ray_recipes=ray_recipes()
        ).to_json()
        for one, address in zip(made["ranks"], ADDRESSES, strict=True):
            one["address"] = address
        return made

    def run(
        self, *arguments: str, tasks: list[dict[str, Any]] = ROLE, more: dict[str, Any] | None = None, **values: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a play of ``tasks`` on both hosts."""
        given: dict[str, Any] = {"spark_image_plan": self.plan(**values), "spark_image_rank": "{{ spark_rank }}"}
        given |= {"spark_image_port": self.port, "spark_image_wait": 10} | (more or {})
        play = {"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "vars": given, "tasks": tasks}
        (self.folder / "play.yml").write_text(json.dumps([play]))
        for n in (0, 1):
            (self.folder / f"ssh-{n}").unlink(missing_ok=True)
        return subprocess.run(
            [PLAYBOOK, "-i", "hosts.json", "play.yml", *arguments],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def executions(self) -> list[int]:
        """SSH executions of the last run, by rank."""
        files = [self.folder / f"ssh-{n}" for n in (0, 1)]
        return [len(f.read_text().split()) if f.exists() else 0 for f in files]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Two hosts; only the head reaches the registry."""
    made = Pair(tmp_path)
    made.engines[0].put(registry={PIN: image("a", "b", digests=[PIN])})
    return made


def test_the_image_is_pulled_built_and_streamed_once(pair: Pair) -> None:
    said = pair.run("--check")
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"spark-0: pull {PIN}" in said.stdout
    assert pair.engines[0].images == pair.engines[1].images == {}

    first = pair.run()
    assert first.returncode == 0, first.stdout + first.stderr
    name = pair.plan()["image"]
    head, worker = (e.images[name] for e in pair.engines)
    assert head["RootFS"] == worker["RootFS"]
    assert worker["Config"]["Labels"]["sparkpair.image.inputs"] == pair.plan()["image_inputs"]
    assert not pair.engines[1].did("pull")

    before = [len(e.calls) for e in pair.engines]
    again = pair.run()
    assert again.returncode == 0, again.stdout + again.stderr
    assert pair.executions == [1, 1]
    assert "changed=0" in again.stdout
    assert {c[0] for e, n in zip(pair.engines, before, strict=True) for c in e.calls[n:]} == {"image"}


def test_a_slow_pull_shows_its_layers_and_a_stream_its_end(pair: Pair) -> None:
    slow = image("a", "b", digests=[PIN])
    slow["fake"]["slow"] = 0.5
    pair.engines[0].put(registry={PIN: slow})
    task = {"plan": pair.plan(), "rank": "{{ spark_rank }}"}
    done = pair.run(
        tasks=[
            {"spark_image": task | {"state": "prepared", "hold": 0.2}, "when": "spark_rank == 0", "register": "had"},
            {"ansible.builtin.debug": {"msg": "steps {{ had.steps | length }}"}, "when": "spark_rank == 0"},
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith(f"  spark-0: pull {PIN}, ")]
    assert re.search(r", [01] of [12] layers, since \d s$", "\n".join(shown), re.M), done.stdout
    assert "steps 2" in done.stdout
    assert pair.executions[0] > len(shown)
    assert pair.plan()["image"] in pair.engines[0].images


def test_each_rank_pulls_with_a_login_whose_password_shows_nowhere(pair: Pair) -> None:
    secret = pair.folder / "token"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    for engine in pair.engines:
        engine.put(registry={PIN: image("a", digests=[PIN])}, accounts={"registry.example": ["robot", PASSWORD]})
    account = {"registry_user": "robot", "registry_password_file": str(secret)}
    done = pair.run("-vvv", "--diff", image_transfer="pull", executor="mp", **account)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert all(e.did("pull") and not e.did("save") for e in pair.engines)
    assert not any(PASSWORD in word for e in pair.engines for call in e.calls for word in call)


def test_a_password_that_others_can_read_ends_the_run_before_any_pull(pair: Pair) -> None:
    secret = pair.folder / "token"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    done = pair.run(registry_user="robot", registry_password_file=str(secret))
    assert done.returncode != 0
    assert "mode 0644, so others can read it" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert not pair.engines[0].did("pull")


def test_a_rank_that_may_not_fetch_is_refused_with_its_name(pair: Pair) -> None:
    pair.engines[0].put(images={PIN: image("a", digests=[PIN])})
    done = pair.run(image_transfer="none", executor="mp")
    assert done.returncode != 0
    assert "spark-1: sparkpair/engine:" in done.stdout
    assert "image_transfer none forbids to fetch it" in done.stdout


# --- overlays before the image is there -------------------------------------------------------------------------------


def test_check_mode_with_a_width_says_what_it_could_not_check_and_passes(pair: Pair) -> None:
    plan = pair.plan(verify_tokens=3)
    plan["overlays"] = [{"name": o["name"], "digest": overlay_digest(FOLDERS / o["name"])} for o in plan["overlays"]]
    given = {
        "spark_overlay_plan": plan,
        "spark_overlay_root": str(pair.folder / "root"),
        "spark_release_plan": plan,
        "spark_release_rank": "{{ spark_rank }}",
        "spark_release_root": str(pair.folder / "root"),
        "spark_release_overlays": "{{ spark_overlay_output.mounts }}",
    }
    tasks = [{"ansible.builtin.include_role": {"name": name}} for name in ("spark_overlay", "spark_release")]
    done = pair.run("--check", "--diff", tasks=tasks, more=given)
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("spark-0", "spark-1"):
        assert f"ok: [{host}]" in done.stdout
    assert done.stdout.count("overlays gdn_runtime_width, verify_width were not checked: image sparkpair/engine:") == 2
    assert not (pair.folder / "root").exists()
    real = pair.run(tasks=tasks, more=given)
    assert real.returncode != 0
    assert "cannot be read" in real.stdout


def test_pins_without_any_image_name_both_and_what_brings_them(pair: Pair) -> None:
    given = {"spark_overlay_plan": pair.plan(verify_tokens=3), "spark_overlay_state": "surveyed"}
    done = pair.run(tasks=[{"ansible.builtin.include_role": {"name": "spark_overlay"}}], more=given)
    assert done.returncode != 0
    assert f"nor is {PIN}, which it comes from, so nothing can be read; playbooks/weights.yml" in done.stdout


# --- before a start ---------------------------------------------------------------------------------------------------

FOREIGN = {
    "Id": "c" * 64,
    "Name": "/open-webui",
    "Image": "x",
    "Config": {"Labels": {}, "Image": "x"},
    "State": {"Running": True, "Status": "running", "ExitCode": 0, "StartedAt": ""},
    "HostConfig": {"Runtime": "nvidia"},
}


def engine(pair: Pair, state: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the engine's role, as far as a host without Compose goes."""
    tasks = [{"ansible.builtin.include_role": {"name": "spark_engine"}}]
    given = {"spark_engine_plan": pair.plan(), "spark_engine_rank": "{{ spark_rank }}", "spark_engine_state": state}
    return pair.run(tasks=tasks, more={**given, **more})


COMPOSE = "TASK [spark_engine : Start the worker's engine]"


def test_a_foreign_container_with_the_gpu_ends_the_start_before_compose(pair: Pair) -> None:
    pair.engines[1].put(containers={"all": [FOREIGN]})
    done = engine(pair, "started")
    assert "containers with a GPU: open-webui" in done.stdout
    assert COMPOSE not in done.stdout


def test_an_nvidia_smi_that_does_not_answer_is_said_and_ends_nothing(pair: Pair) -> None:
    done = engine(pair, "started")
    assert COMPOSE in done.stdout, done.stdout + done.stderr
    assert "nvidia-smi does not answer" in done.stdout + done.stderr


@pytest.mark.parametrize("drop", [True, False])
def test_the_cache_of_every_rank_is_dropped_before_the_memory_is_judged(pair: Pair, drop: bool) -> None:
    done = engine(pair, "settled", spark_engine_drop_caches=drop, spark_engine_settle_free_gib=0.001)
    assert done.returncode == 0, done.stdout + done.stderr
    for one in pair.engines:
        calls = one.folder / "system"
        lines = calls.read_text().splitlines() if calls.exists() else []
        assert lines == (["sync ", "sysctl -q -w vm.drop_caches=3"] if drop else [])
