"""The role in real ansible-playbook runs: two ranks that are two folders of this machine, joined by real sockets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sparkpair.weights import PARTIAL

from tests.fixtures.hf_cache import OTHER_REVISION, REVISION, contents, fill, model, target, tree
from tests.planning import plan as make_plan
from tests.standin.hub import Hub
from tests.standin.weightsdocker import IMAGE

ROOT = Path(__file__).resolve().parents[2]
TARGET = model("owner/target")
DRAFT = model("owner/draft", OTHER_REVISION, "dflash_model")
TARGET_FILES, DRAFT_FILES = target(shards=6, size=100_000), target(shards=1, size=2000)
TOKEN = "hf_a_token_of_the_test"


@dataclass
class Run:
    """A finished play: exit code, screen, and results by task and host."""

    code: int
    screen: str
    tasks: list[tuple[str, dict[str, dict[str, Any]]]]

    def of(self, name: str, host: str) -> dict[str, Any]:
        """Last result of a task on a host; {} when it did not run there."""
        found = [hosts[host] for task, hosts in self.tasks if task.endswith(name) and host in hosts]
        return {} if not found or found[-1].get("skipped") else found[-1]

    @property
    def asked(self) -> dict[str, int]:
        """How many tasks brought a look at the weights of each host."""
        return {h: sum("weights" in t.get(h, {}) for _, t in self.tasks) for h in ("spark-0", "spark-1")}


class Pair:
    """Two ranks below a folder; rank 0 has an address of its own, and so has rank 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = self.planned()
        self.hosts: dict[str, Any] = {
            rank["host"]: {"spark_rank": number, "spark_weights_root": str(folder / f"root-{number}")}
            for number, rank in enumerate(self.plan["ranks"])
        }
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        docker = bin_folder / "docker"
        docker.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/standin/weightsdocker.py "$@"\n')
        docker.chmod(0o755)
        (folder / "ansible.cfg").write_text(
            f"[defaults]\naction_plugins = {ROOT}/plugins/action\nlibrary = {ROOT}/plugins/modules\n"
            f"module_utils = {ROOT}/plugins/module_utils\nroles_path = {ROOT}/roles\n"
            f"stdout_callback = ansible.posix.json\ninterpreter_python = {sys.executable}\n"
            f"local_tmp = {folder}/local\nremote_tmp = {folder}/remote\n"
        )

    def planned(self, **settings: Any) -> dict[str, Any]:
        """A plan of both models, with the folders as the ranks' caches."""
        given: dict[str, Any] = {"model": "owner/target", "model_revision": REVISION, "image": IMAGE, "ray_version": ""}
        plan = make_plan(**given | {"dflash_model": "owner/draft", "dflash_revision": OTHER_REVISION} | settings)
        for number, rank in enumerate(plan["ranks"]):
            rank["address"] = f"127.0.0.{number + 1}"
            next(m for m in rank["mounts"] if "huggingface" in m["target"])["source"] = str(self.home(number))
        return plan

    def home(self, number: int) -> Path:
        """Cache of a rank."""
        return self.folder / f"hf-{number}"

    def snapshot(self, number: int) -> Path:
        """Snapshot of the target on a rank."""
        return self.home(number) / "hub" / TARGET.folder / "snapshots" / REVISION

    def fill(self, number: int, files: dict[str, bytes]) -> None:
        """Put both models into the cache of a rank."""
        fill(self.home(number), files, TARGET, ref="0" * 40)
        fill(self.home(number), DRAFT_FILES, DRAFT)

    def run(self, *arguments: str, **variables: Any) -> Run:
        """Run the role on both ranks."""
        role = {
            "role": "spark_weights",
            "vars": {"spark_weights_plan": self.plan, "spark_weights_rank": "{{ spark_rank }}"},
        }
        return self.play({"roles": [role]}, *arguments, **variables)

    def play(self, content: dict[str, Any], *arguments: str, **variables: Any) -> Run:
        """Run a play on both ranks."""
        book = [{"hosts": "all", "gather_facts": False, "any_errors_fatal": True, **content}]
        (self.folder / "play.json").write_text(json.dumps(book))
        common = {"ansible_connection": "local", "ansible_become": False, "spark_weights_source": "cache"}
        inventory = {"all": {"hosts": self.hosts, "vars": common | variables}}
        (self.folder / "hosts.json").write_text(json.dumps(inventory))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "HF_"))}
        mine = {
            "ANSIBLE_CONFIG": "ansible.cfg",
            "STANDIN_DOCKER": str(self.folder / "docker"),
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT}/plugins/module_utils",
        }
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", "hosts.json", "play.json", *arguments],
            cwd=self.folder,
            env=clean | mine,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        assert "{" in lines, done.stdout + done.stderr
        parsed = json.loads("\n".join(lines[lines.index("{") :]))
        tasks = [(t["task"]["name"], t["hosts"]) for t in parsed["plays"][0]["tasks"]]
        return Run(done.returncode, done.stdout + done.stderr, tasks)

    def right(self, number: int) -> bool:
        """Whether a rank holds both models, and nothing that is on its way."""
        draft = self.home(number) / "hub" / DRAFT.folder / "snapshots" / OTHER_REVISION
        left = list(self.home(number).rglob(PARTIAL))
        ref = (self.home(number) / "hub" / TARGET.folder / "refs" / "main").read_text()
        return (contents(self.snapshot(number)), contents(draft), left, ref) == (
            TARGET_FILES,
            DRAFT_FILES,
            [],
            REVISION,
        )


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    (tmp_path / "docker").mkdir()
    return Pair(tmp_path)


def test_a_rank_with_an_empty_cache_is_filled_and_a_second_run_does_nothing(pair: Pair) -> None:
    pair.fill(0, TARGET_FILES)
    first = pair.run()
    assert first.code == 0, first.screen
    assert pair.right(0)
    assert pair.right(1)
    assert "spark-1: copying weights, done: 1 MiB in" in first.screen
    assert first.of("Copy what this rank lacks", "spark-1")["changed"] is True
    assert first.of("End the head's server", "spark-0") != {}

    folders = [pair.folder / name for name in ("hf-0", "hf-1", "root-0", "root-1")]
    before = [tree(folder) for folder in folders]
    second = pair.run()
    assert second.code == 0, second.screen
    for host in ("spark-0", "spark-1"):
        checked = second.of("Check the weights of this rank", host)
        assert (checked["changed"], checked["hashed_bytes"]) == (False, 0)
    assert second.asked == {"spark-0": 1, "spark-1": 1}
    assert "complete, 9 files" in second.screen
    assert [tree(folder) for folder in folders] == before

    shard = pair.snapshot(1) / "model-00003-of-00006.safetensors"
    os.truncate(shard.resolve(), 99_999)
    check = pair.run("--check")
    assert check.code == 0, check.screen
    assert "model-00003-of-00006.safetensors holds 99999 of 100000 bytes" in check.screen
    assert "would be brought" in check.screen
    assert shard.stat().st_size == 99_999
    repaired = pair.run()
    assert repaired.code == 0, repaired.screen
    assert pair.right(1)


def test_another_release_of_the_same_weights_hashes_and_transfers_nothing(pair: Pair) -> None:
    """As a deploy after a stop, or with changed settings: its release is new to the ranks, the weights are not."""
    pair.fill(0, TARGET_FILES)
    assert pair.run().code == 0
    folders = [pair.folder / name for name in ("hf-0", "hf-1", "root-0", "root-1")]
    before, release = [tree(folder) for folder in folders], pair.plan["release"]
    pair.plan = pair.planned(max_num_seqs=2, verify_tokens=3, port=9999)
    assert pair.plan["release"] != release
    run = pair.run()
    assert run.code == 0, run.screen
    for host in ("spark-0", "spark-1"):
        checked = run.of("Check the weights of this rank", host)
        counted = [checked[key] for key in ("changed", "hashed_bytes", "received_bytes")]
        assert counted == [False, 0, 0]
    assert run.asked == {"spark-0": 1, "spark-1": 1}
    assert [tree(folder) for folder in folders] == before
    # Control: the counters count. A shard whose time has changed is read again, and not transferred.
    os.utime((pair.snapshot(1) / "model-00003-of-00006.safetensors").resolve())
    again = pair.run().of("Check the weights of this rank", "spark-1")
    assert (again["hashed_bytes"], again["received_bytes"]) == (100_000, 0)
    pair.plan = pair.planned(spec_method="none", model="owner/draft", model_revision=OTHER_REVISION)
    assert pair.run().asked == {"spark-0": 1, "spark-1": 1}


def test_what_the_hub_has_is_downloaded_once_and_copied(pair: Pair) -> None:
    pair.home(0).mkdir()
    # One stand-in knows one repository; a plan without a draft needs no other.
    pair.plan["spec_method"] = "none"
    with Hub("owner/target", REVISION, TARGET_FILES, token=TOKEN) as hub:
        given = {
            "spark_weights_source": "hub",
            "spark_weights_environment": {"HF_ENDPOINT": hub.url},
            "spark_weights_token": TOKEN,
        }
        check = pair.run("--check", **given)
        assert check.code == 0, check.screen
        assert "9 of 9 files" in check.screen
        assert hub.downloads() == []
        assert [p.name for p in pair.folder.iterdir() if p.name.startswith(("root-", "hf-1"))] == []
        assert list(pair.home(0).iterdir()) == []

        run = pair.run("-vvv", **given)
        assert run.code == 0, run.screen
        assert TOKEN not in run.screen
        assert sorted(hub.downloads()) == sorted(TARGET_FILES)
    assert [contents(pair.snapshot(n)) for n in (0, 1)] == [TARGET_FILES, TARGET_FILES]
    manifest = json.loads((pair.folder / "root-1/weights" / TARGET.folder / f"{REVISION}.json").read_text())
    assert (manifest["source"], len(manifest["entries"])) == ("hub", 9)
    assert [p for p in (pair.folder / "docker").iterdir() if p.is_dir()] == []


def share(pair: Pair) -> None:
    """Have both ranks mount one folder, as two mounts of one NFS export."""
    for rank in pair.plan["ranks"]:
        next(m for m in rank["mounts"] if "huggingface" in m["target"])["source"] = str(pair.home(0))


def test_a_shared_folder_is_only_verified_by_the_other_rank(pair: Pair) -> None:
    share(pair)
    pair.fill(0, TARGET_FILES)
    first = pair.run(spark_weights_transfer="none")
    assert first.code == 0, first.screen
    assert pair.right(0)
    lines = first.of("Judge the weights of the pair", "spark-0")["lines"]
    assert len([line for line in lines if "complete, " in line]) == 4
    assert first.of("Copy what this rank lacks", "spark-1") == {}
    read = [
        first.of("Check the weights of this rank", "spark-0"),
        first.of("Compare the other ranks with the head", "spark-1"),
    ]
    size = sum(len(content) for files in (TARGET_FILES, DRAFT_FILES) for content in files.values())
    assert [seen["hashed_bytes"] for seen in read] == [size, size]
    before = [tree(pair.folder / name) for name in ("hf-0", "root-0", "root-1")]
    second = pair.run(spark_weights_transfer="none")
    assert second.code == 0, second.screen
    assert second.asked == {"spark-0": 1, "spark-1": 1}
    for host in ("spark-0", "spark-1"):
        checked = second.of("Check the weights of this rank", host)
        assert (checked["changed"], checked["hashed_bytes"]) == (False, 0)
    assert [tree(pair.folder / name) for name in ("hf-0", "root-0", "root-1")] == before


def test_a_cache_that_is_only_verified_and_lacks_a_file_ends_the_run_untouched(pair: Pair) -> None:
    """Control of the shared folder: a rank with another folder, not whole and with another ref, is not repaired."""
    pair.fill(0, TARGET_FILES)
    pair.fill(1, {n: c for n, c in TARGET_FILES.items() if n != "model-00003-of-00006.safetensors"})
    before = tree(pair.home(1))
    run = pair.run(spark_weights_transfer="none")
    assert run.code != 0
    assert "spark-1: owner/target: model-00003-of-00006.safetensors is missing; with spark_weights_transfer none" in (
        run.screen
    )
    assert tree(pair.home(1)) == before


def test_check_mode_before_the_first_deploy_says_what_it_could_not_check_and_passes(pair: Pair) -> None:
    pair.home(0).mkdir()
    pair.plan["image"] = "sparkpair/engine:000000000000"
    check = pair.run("--check", spark_weights_source="hub")
    assert check.code == 0, check.screen
    for repository in ("owner/target", "owner/draft"):
        assert f"{repository} was not checked: sparkpair/engine:000000000000 is not on the head" in check.screen
    assert list(pair.home(0).iterdir()) == []
    assert pair.run(spark_weights_source="hub").code != 0


def test_a_copy_of_many_rounds_shows_bytes_rate_and_time_left(pair: Pair) -> None:
    pair.plan["spec_method"] = "none"
    pair.fill(0, target(shards=2, size=4_000_000))
    common = {"plan": pair.plan, "rank": "{{ spark_rank }}", "root": "{{ spark_weights_root }}"}

    def task(state: str, on: int, **args: Any) -> dict[str, Any]:
        return {"name": state, "spark_weights": common | {"state": state} | args, "when": f"spark_rank == {on}"}

    tasks = [
        task("checked", 0, source="cache", hold=0.001) | {"register": "made"},
        task("served", 0) | {"register": "serving"},
        task(
            "copied",
            1,
            hold=0.001,
            streams=1,
            manifests="{{ hostvars['spark-0'].made.manifests }}",
            port="{{ hostvars['spark-0'].serving.port }}",
        ),
        task("ended", 0, port="{{ serving.port }}"),
    ]
    run = pair.play({"tasks": tasks})
    assert run.code == 0, run.screen
    assert contents(pair.snapshot(1)) == contents(pair.snapshot(0))
    lines = [line for line in run.screen.splitlines() if line.startswith("  spark-1: copying weights")]
    assert len(lines) > 3
    assert re.search(r"copying weights, \d+ MiB of 8 MiB, \d+ MiB/s, \d+ s left", "\n".join(lines)), lines
    assert any(line.startswith("  spark-0: hashing weights, ") for line in run.screen.splitlines())
    assert run.of("ended", "spark-0")["changed"] is True
