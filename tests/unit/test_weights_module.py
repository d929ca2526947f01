"""The module's body on two folders that stand for two ranks: sources, obstacles, and what is refused."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sparkpair import weights_module
from sparkpair.weights import WeightsError
from sparkpair.weights_module import run

from tests.fixtures.hf_cache import MODEL, OTHER_REVISION, REVISION, contents, fill, model, target, tree
from tests.standin.hub import Hub
from tests.standin.weightsdocker import IMAGE

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "roles/spark_weights/files/hub.py").read_text()
FILES = target()
NAME = f"sparkpair-weights-{REVISION[:12]}"
SHARD = "model-00001-of-00004.safetensors"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away or mounts, which only root can")


class Rank:
    """One rank below a folder; ``call`` is what one call of the module returns."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.home = folder / f"hf-{number}"
        self.snapshot = self.home / "hub" / MODEL.folder / "snapshots" / REVISION

    def call(self, state: str = "checked", *, dry: bool = False, **params: Any) -> dict[str, Any]:
        """Call the module's body."""
        defaults = {
            "state": state,
            "root": str(self.folder / f"root-{self.number}"),
            "hf_home": str(self.home),
            "models": [MODEL.__dict__],
            "head": self.number == 0,
            "manifests": [],
            "verify_only": False,
            "source": "cache",
            "exclude": [],
            "hub_away": False,
            "awaited": "",
            "rehash": False,
            "threads": 2,
            "streams": 2,
            "hold": 10.0,
            "image": IMAGE,
            "script": SCRIPT,
            "environment": {},
            "token": None,
            "address": "127.0.0.1",
            "own": f"127.0.0.{self.number + 1}",
            "port": 0,
            "peers": ["127.0.0.1", "127.0.0.2"],
            "secret": "s",
            "idle": 30.0,
            "lifetime": 60.0,
        }
        return run(defaults | params, dry=dry)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """Rank 0, with a stand-in for Docker on its PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "docker").mkdir()
    docker = programs / "docker"
    docker.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/standin/weightsdocker.py "$@"\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/plugins/module_utils")
    monkeypatch.setenv("STANDIN_DOCKER", str(tmp_path / "docker"))
    return Rank(tmp_path, 0)


@pytest.fixture
def worker(tmp_path: Path) -> Rank:
    return Rank(tmp_path, 1)


def test_a_second_look_hashes_and_changes_nothing(head: Rank) -> None:
    fill(head.home, FILES, ref=OTHER_REVISION)
    first = head.call()
    assert (first["changed"], first["weights"][0]["complete"]) == (True, True)
    assert first["hashed_bytes"] == sum(map(len, FILES.values()))
    before = [tree(head.folder / name) for name in ("hf-0", "root-0")]
    second = head.call()
    assert (second["changed"], second["hashed_bytes"], second["weights"]) == (False, 0, first["weights"])
    assert [tree(head.folder / name) for name in ("hf-0", "root-0")] == before
    assert head.call(rehash=True)["hashed_bytes"] == first["hashed_bytes"]


def test_check_mode_before_the_image_is_there_says_so_and_the_real_run_is_refused(head: Rank) -> None:
    hub = {"source": "hub", "image": "lab/still-to-come:1"}
    seen = head.call(dry=True, **hub)
    assert seen["notes"] == [
        f"{MODEL.repository} was not checked: lab/still-to-come:1 is not on the head; the hub is asked through the "
        "library in it, so bring the image first"
    ]
    assert [w["complete"] for w in seen["weights"]] == [False]
    with pytest.raises(WeightsError, match="bring the image first"):
        head.call(**hub)


def test_check_mode_reads_and_writes_no_content(head: Rank) -> None:
    fill(head.home, FILES, ref=OTHER_REVISION)
    before = tree(head.folder)
    seen = head.call(dry=True)
    assert (seen["weights"][0]["unknown_bytes"], seen["hashed_bytes"]) == (sum(map(len, FILES.values())), 0)
    assert tree(head.folder) == before
    head.call()
    (head.snapshot.parents[1] / "refs/main").write_text(OTHER_REVISION)
    before = tree(head.folder)
    assert head.call(dry=True)["changed"] is True
    assert tree(head.folder) == before


def test_a_stale_ref_is_repaired_only_when_the_snapshot_is_complete(head: Rank) -> None:
    fill(head.home, FILES, ref=REVISION)
    head.call()
    ref = head.snapshot.parents[1] / "refs/main"
    ref.write_text(OTHER_REVISION)
    shard = head.snapshot / SHARD
    content = shard.resolve().read_bytes()
    os.truncate(shard.resolve(), 1)
    assert head.call()["weights"][0]["complete"] is False
    assert ref.read_text() == OTHER_REVISION
    shard.resolve().write_bytes(content)
    assert head.call()["weights"][0]["complete"] is True
    assert ref.read_text() == REVISION


def test_a_worker_without_a_manifest_says_so_and_one_with_the_heads_compares(head: Rank, worker: Rank) -> None:
    fill(head.home, FILES)
    fill(worker.home, FILES, plain=True)
    blind = worker.call()["weights"][0]
    assert (blind["manifest"], blind["files"], blind["complete"]) == ("", 0, False)
    seen = worker.call(manifests=head.call()["manifests"])["weights"][0]
    assert (seen["complete"], seen["manifest"]) == (True, head.call()["weights"][0]["manifest"])
    assert worker.call()["weights"][0]["complete"] is True


def test_a_copy_between_two_ranks_by_the_module_alone(head: Rank, worker: Rank) -> None:
    fill(head.home, FILES)
    manifests = head.call()["manifests"]
    port = head.call("served")["port"]
    done = worker.call("copied", manifests=manifests, port=port)
    assert (done["weights"][0]["complete"], done["hashed_bytes"]) == (True, 0)
    assert contents(worker.snapshot) == FILES
    assert worker.call("ended", port=port)["changed"] is True
    end = time.monotonic() + 20
    while worker.call("ended", port=port)["changed"]:
        assert time.monotonic() < end, "the server does not end"


def test_a_rank_that_only_verifies_writes_nothing_into_its_cache(head: Rank, worker: Rank) -> None:
    """It repaired refs/main in a folder that may be another rank's."""
    fill(head.home, FILES)
    fill(worker.home, FILES, ref=OTHER_REVISION)
    manifests, before = head.call()["manifests"], tree(worker.home)
    seen = worker.call(manifests=manifests, verify_only=True)
    assert (seen["weights"][0]["complete"], seen["notes"], seen["obstacles"]) == (True, [], [])
    assert worker.call(verify_only=True, dry=True)["changed"] is False
    assert worker.call(verify_only=True)["changed"] is False
    assert tree(worker.home) == before
    # Control: a rank that is brought its weights has its ref repaired.
    assert worker.call()["changed"] is True
    assert tree(worker.home) != before


def test_an_incomplete_head_serves_nothing(head: Rank) -> None:
    fill(head.home, FILES)
    head.call()
    os.truncate((head.snapshot / SHARD).resolve(), 1)
    with pytest.raises(WeightsError, match="owner/target is not complete on the head"):
        head.call("served")


def test_an_address_that_is_not_the_heads_is_named(head: Rank) -> None:
    fill(head.home, FILES)
    head.call()
    with pytest.raises(WeightsError, match=r"cannot listen on 192\.0\.2\.1 port 0: Cannot assign"):
        head.call("served", address="192.0.2.1")


def test_a_wrong_file_of_the_head_is_an_error_when_nothing_may_be_downloaded(head: Rank) -> None:
    fill(head.home, FILES)
    head.call()
    (head.snapshot / SHARD).resolve().write_bytes(b"Z" * 5000)
    assert head.call()["weights"][0]["lacking"][0].startswith(f"{SHARD} has sha256")
    with pytest.raises(WeightsError, match=f"{SHARD} has sha256 .*nothing is downloaded with source cache"):
        head.call("downloaded")


def test_a_truncated_file_of_the_head_is_downloaded_anew(head: Rank) -> None:
    """The hub's library takes a file that is there for right, whatever it holds."""
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        assert head.call(**given)["weights"][0]["lacking_files"] == len(FILES)
        assert head.call("downloaded", **given)["weights"][0]["complete"] is True
        hub.seen.clear()
        assert head.call(**given)["weights"][0]["complete"] is True
        assert hub.seen == []
        os.truncate((head.snapshot / SHARD).resolve(), 5)
        assert head.call(**given)["weights"][0]["lacking"] == [f"{SHARD} holds 5 of 5000 bytes"]
        assert head.call("downloaded", **given)["weights"][0]["complete"] is True
        assert hub.downloads() == [SHARD]
    assert contents(head.snapshot) == FILES


def test_swapped_links_of_the_head_are_made_anew_and_nothing_is_downloaded(head: Rank) -> None:
    """The library takes a link that is there for right, so the run ended with: no progress."""
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        assert head.call("downloaded", **given)["weights"][0]["complete"] is True
        one, two = head.snapshot / SHARD, head.snapshot / SHARD.replace("00001-", "00002-")
        aside = one.rename(head.snapshot / "aside")
        two.rename(one)
        aside.rename(two)
        assert head.call(**given)["weights"][0]["unlinked"] == 2
        hub.seen.clear()
        assert head.call("downloaded", **given)["weights"][0]["complete"] is True
        assert hub.downloads() == []
    assert contents(head.snapshot) == FILES


def test_a_finished_download_that_nobody_awaited_is_cleared_away(head: Rank) -> None:
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        hub.delay = 0.5
        first = head.call("downloaded", **given, hold=0.0, token="t")
        assert first["working"] is True
        while not (head.folder / "docker" / NAME / "code").exists():
            time.sleep(0.05)
        token = head.folder / f"root-0/weights/{NAME}.token"
        assert token.read_text() == "t"
        assert head.call(**given)["weights"][0]["complete"] is True
    assert not token.exists()
    assert [p for p in (head.folder / "docker").iterdir() if p.is_dir()] == []


def test_changed_patterns_make_the_manifest_anew(head: Rank) -> None:
    """They had no effect once a manifest was stored."""
    files = FILES | {"docs/a.md": b"a" * 2000, "src/b.py": b"b" * 2000}
    with Hub("owner/target", REVISION, files) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        narrow = given | {"exclude": ["docs/**", "src/**"]}
        head.call(**narrow)
        assert head.call("downloaded", **narrow)["weights"][0]["files"] == len(FILES)
        wide = given | {"exclude": ["src/**"]}
        assert head.call(**wide)["weights"][0]["lacking"] == ["docs/a.md is missing"]
        assert head.call("downloaded", **wide)["weights"][0]["complete"] is True
        assert contents(head.snapshot) == FILES | {"docs/a.md": files["docs/a.md"]}
        # Control: the same patterns, in whatever order, ask nobody.
        both = given | {"exclude": ["src/**", "docs/**"]}
        assert head.call(**both)["weights"][0]["files"] == len(FILES)
        hub.seen.clear()
        again = head.call(**narrow)
        assert (again["changed"], again["hashed_bytes"], hub.seen) == (False, 0, [])


@pytest.mark.parametrize("source", ["cache", "hub"])
def test_patterns_that_change_while_the_hub_is_away_leave_no_pin(head: Rank, source: str) -> None:
    """Files that are there come in; a known one that is wrong now stays wrong."""
    files = FILES | {"docs/a.md": b"a" * 2000}
    fill(head.home, files, plain=True)
    head.call(exclude=["docs/**"])
    (head.snapshot / SHARD).write_bytes(b"Z" * 5000)
    seen = head.call(source=source, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})["weights"][0]
    assert (seen["files"], seen["source"]) == (len(files), "cache")
    assert [w.partition(" ")[0] for w in seen["lacking"]] == [SHARD]


def container(head: Rank, name: str = NAME, *, code: str = "", log: str = "") -> Path:
    """Leave a container of a download on the head: one that works, or one that ended with ``code``."""
    folder = head.folder / "docker" / name
    folder.mkdir()
    (folder / "log").write_text(log)
    if code:
        (folder / "code").write_text(code)
    return folder


def containers(head: Rank) -> list[str]:
    """Names of the containers on the head."""
    return sorted(p.name for p in (head.folder / "docker").iterdir() if p.is_dir())


@pytest.mark.parametrize("works", [True, False])
def test_a_shard_that_arrives_after_the_look_is_not_removed(
    head: Rank, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """Every poll unlinked what the look had missed, while the container worked on."""
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        if works:
            container(head)
        download = weights_module.Rank._download

        def late(self: Any, state: Any) -> None:
            fill(head.home, {SHARD: FILES[SHARD]})
            download(self, state)

        monkeypatch.setattr(weights_module.Rank, "_download", late)
        seen = head.call("downloaded", **given, hold=0.0 if works else 60.0)
        assert (head.snapshot / SHARD).read_bytes() == FILES[SHARD]
        # Control: without a container everything else is downloaded, and this shard is not.
        assert seen["working"] is works
        assert sorted(hub.downloads()) == ([] if works else sorted(set(FILES) - {SHARD}))


def test_room_that_a_running_download_has_taken_is_not_asked_for_again(
    head: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        monkeypatch.setattr(weights_module, "free_bytes", lambda _: 100)
        folder = container(head)
        assert head.call(**given)["obstacles"] == []
        seen = head.call("downloaded", **given, hold=0.0)
        assert (seen["working"], seen["downloading"]) == (True, REVISION)
        # It may end between two polls of the run that waits for it.
        (folder / "code").write_text("0")
        assert head.call("downloaded", **given, hold=0.0, awaited=REVISION)["working"] is False
        # Control: without a container, what is lacking has no room.
        assert "of weights are to come" in head.call(**given)["obstacles"][0]
        with pytest.raises(WeightsError, match="has 0 MiB free"):
            head.call("downloaded", **given, hold=0.0)


def test_a_download_that_failed_for_an_earlier_run_is_begun_anew(head: Rank) -> None:
    """Its old message ended the new run, which had downloaded nothing."""
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        container(head, code="1", log="SPARKPAIR_ERROR OSError: no space left\n")
        seen = head.call("downloaded", **given, hold=60.0)
        assert seen["weights"][0]["complete"] is True
        assert seen["notes"] == [
            f"the hub does not give owner/target at {REVISION}: OSError: no space left; so it ended for an earlier "
            "run, and is begun anew"
        ]
        assert containers(head) == []


def test_a_download_that_failed_for_this_run_ends_it(head: Rank) -> None:
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        head.call(**given)
        container(head, code="1", log="SPARKPAIR_ERROR OSError: no space left\n")
        with pytest.raises(WeightsError, match=r"OSError: no space left$"):
            head.call("downloaded", **given, awaited=REVISION)
        assert (hub.downloads(), containers(head)) == ([], [])


def test_a_complete_target_leaves_the_drafts_download_alone(head: Rank) -> None:
    """Each poll removed the only token file; then a finished container of the draft stayed for ever."""
    draft = model("owner/draft", OTHER_REVISION, "dflash_model")
    both = {"models": [MODEL.__dict__, draft.__dict__]}
    fill(head.home, FILES)
    snapshot = fill(head.home, FILES, draft)
    head.call(**both)
    (snapshot / SHARD).rename(snapshot / "aside")
    name = f"sparkpair-weights-{OTHER_REVISION[:12]}"
    folder = container(head, name)
    token = head.folder / f"root-0/weights/{name}.token"
    token.write_text("t")
    assert [w["complete"] for w in head.call(**both)["weights"]] == [True, False]
    assert (token.read_text(), containers(head)) == ("t", [name])
    (folder / "code").write_text("0")
    (snapshot / "aside").rename(snapshot / SHARD)
    assert [w["complete"] for w in head.call(**both)["weights"]] == [True, True]
    assert (token.exists(), containers(head)) == (False, [])
    # A container whose token file is gone is found by its name.
    container(head, name, code="0")
    head.call(**both)
    assert containers(head) == []


def test_a_hub_that_does_not_answer_leaves_the_heads_own_files_with_a_note(head: Rank) -> None:
    away = {"source": "hub", "environment": {"HF_ENDPOINT": "http://127.0.0.1:9"}}
    with pytest.raises(WeightsError, match="the hub does not give"):
        head.call(**away)
    fill(head.home, FILES)
    seen = head.call(**away)
    assert (seen["weights"][0]["complete"], seen["weights"][0]["source"]) == (True, "cache")
    assert seen["hub_failed"] is True
    assert [n for n in seen["notes"] if "the head's own files are taken as right" in n]
    shutil.rmtree(head.folder / "root-0")
    (head.snapshot / SHARD).unlink()
    with pytest.raises(WeightsError, match=f"the hub does not give .*; and .* lacks {SHARD}"):
        head.call(**away)


def test_wrong_weights_that_were_taken_as_right_are_found_once_the_hub_answers(head: Rank) -> None:
    """The head's own files were the manifest for ever: a shard of Z bytes was complete, with no request and no note."""
    away = {"source": "hub", "environment": {"HF_ENDPOINT": "http://127.0.0.1:9"}}
    fill(head.home, FILES | {SHARD: b"Z" * 5000}, plain=True)
    for _ in range(2):
        seen = head.call(**away)
        assert (seen["weights"][0]["complete"], seen["weights"][0]["source"]) == (True, "cache")
        assert [n for n in seen["notes"] if "taken as right, and the next run asks again" in n]
    assert head.call(**away, hub_away=True)["notes"] == []
    with Hub("owner/target", REVISION, FILES) as hub:
        given = {"source": "hub", "environment": {"HF_ENDPOINT": hub.url}}
        found = head.call(**given)
        assert (found["weights"][0]["source"], found["notes"]) == ("hub", [])
        assert found["weights"][0]["lacking"][0].startswith(f"{SHARD} has sha256")
        assert head.call("downloaded", **given)["weights"][0]["complete"] is True
        assert hub.downloads() == [SHARD]
        hub.seen.clear()
        # Control: the hub's manifest is kept, whatever the source is, and nobody is asked or read again.
        for again in (head.call(**given), head.call(source="cache"), head.call(**away)):
            assert (again["changed"], again["hashed_bytes"], again["notes"]) == (False, 0, [])
            assert again["weights"][0]["source"] == "hub"
        assert hub.seen == []
    assert contents(head.snapshot) == FILES


def test_a_head_that_serves_its_own_files_does_not_ask_the_hub_again(head: Rank, worker: Rank) -> None:
    """Its state ``served`` has no source of its own."""
    fill(head.home, FILES)
    manifests = head.call()["manifests"]
    calls = head.folder / "docker/calls"
    calls.write_text("")
    port = head.call("served", source="hub")["port"]
    assert [line for line in calls.read_text().splitlines() if "run" in line] == []
    assert worker.call("copied", manifests=manifests, port=port)["weights"][0]["complete"] is True
    worker.call("ended", port=port)


@pytest.mark.parametrize("below", ["disk", "disk/hub"])
def test_a_cache_on_a_disk_is_imported(head: Rank, below: str) -> None:
    fill(head.folder / "disk", FILES)
    source = str(head.folder / below)
    assert head.call(source=source)["weights"][0]["lacking_files"] == len(FILES)
    done = head.call("downloaded", source=source)
    assert (done["weights"][0]["complete"], done["received_bytes"]) == (True, sum(map(len, FILES.values())))
    assert contents(head.snapshot) == FILES


def test_a_folder_without_the_pinned_snapshot_is_refused(head: Rank) -> None:
    (head.folder / "disk").mkdir()
    with pytest.raises(WeightsError, match=f"disk/{MODEL.folder}/snapshots/{REVISION} lacks every file"):
        head.call(source=str(head.folder / "disk"))


def test_a_branch_is_refused(head: Rank) -> None:
    with pytest.raises(WeightsError, match="'main' is not a commit"):
        head.call(models=[MODEL.__dict__ | {"revision": "main"}])


def test_a_second_run_that_brings_weights_is_refused(head: Rank, worker: Rank) -> None:
    fill(head.home, FILES)
    manifests = head.call()["manifests"]
    lock = worker.folder / "root-1/weights/lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="another run is bringing weights"):
            worker.call("copied", manifests=manifests, port=9)
    with pytest.raises(WeightsError, match="does not arrive"):
        worker.call("copied", manifests=manifests, port=9)


@root_only
def test_no_room_is_found_before_anything_arrives(head: Rank, worker: Rank) -> None:
    fill(head.home, target(size=100_000))
    manifests = head.call()["manifests"]
    worker.home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", worker.home], check=False).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        told = worker.call(manifests=manifests)["obstacles"]
        assert len(told) == 1
        assert "has 0 MiB free (204800 bytes), but 0 MiB of weights are to come (400" in told[0]
        with pytest.raises(WeightsError, match="of weights are to come"):
            worker.call("copied", manifests=manifests, port=9)
        assert list(worker.home.iterdir()) == []
    finally:
        subprocess.run(["umount", worker.home], check=True)
    assert worker.call(manifests=manifests)["obstacles"] == []


@root_only
def test_a_cache_that_root_began_is_an_obstacle_and_what_arrives_belongs_to_its_owner(head: Rank, worker: Rank) -> None:
    fill(head.home, FILES)
    manifests = head.call()["manifests"]
    (worker.home / "hub").mkdir(parents=True)
    os.chown(worker.home, 12345, 12345)
    told = worker.call(manifests=manifests)["obstacles"]
    assert told == [
        f"{worker.home}/hub belongs to root, but the cache {worker.home} to 12345: chown -R 12345: {worker.home}/hub"
    ]
    os.chown(worker.home / "hub", 12345, 12345)
    port = head.call("served")["port"]
    assert worker.call("copied", manifests=manifests, port=port)["weights"][0]["complete"] is True
    worker.call("ended", port=port)
    assert {p.lstat().st_uid for p in worker.home.rglob("*")} == {12345}


@root_only
def test_a_complete_cache_of_root_is_noted_and_no_obstacle(head: Rank) -> None:
    fill(head.home, FILES)
    (head.folder / "home").mkdir()
    assert head.call()["notes"] == []
    os.chown(head.folder, 12345, 12345)
    seen = head.call()
    assert (seen["obstacles"], seen["weights"][0]["complete"]) == ([], True)
    assert seen["notes"] == [
        f"{head.home} belongs to root, inside a folder of 12345, who cannot add to it: chown -R 12345: {head.home}"
    ]
