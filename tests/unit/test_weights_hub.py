"""The real huggingface_hub against a stand-in hub, in processes where a Spark has containers of the engine image."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sparkpair.runner import Completed
from sparkpair.weights import Cache, Hashes, Manifest, Model, WeightsError, survey
from sparkpair.weights_cache import hash_all
from sparkpair.weights_hub import Hub

from tests.fixtures.hf_cache import MODEL, OTHER_REVISION, REVISION, contents, model, target
from tests.standin import hub as standin
from tests.standin.weightsdocker import IMAGE, WeightsDocker

SCRIPT = (Path(__file__).resolve().parents[2] / "roles/spark_weights/files/hub.py").read_text()
FILES = target()
EXTRA = {"docs/long.md": b"x" * 3000}
TOKEN = "hf_a_token_of_the_test"


@pytest.fixture
def served() -> Iterator[standin.Hub]:
    with standin.Hub(MODEL.repository, REVISION, FILES | EXTRA) as hub:
        yield hub


@pytest.fixture
def docker(tmp_path: Path) -> WeightsDocker:
    return WeightsDocker(tmp_path / "docker")


@pytest.fixture
def hub(served: standin.Hub, docker: WeightsDocker, tmp_path: Path) -> Hub:
    return Hub(IMAGE, SCRIPT, tmp_path / "root" / "weights", {"HF_ENDPOINT": served.url}, run=docker)


def whole(cache: Cache, manifest: Manifest, hashes: Hashes) -> bool:
    """Whether the cache holds the manifest's files."""
    hash_all(survey(cache, MODEL, manifest, hashes).unknown, hashes, threads=2, seconds=60)
    return survey(cache, MODEL, manifest, hashes).complete


def finish(hub: Hub, cache: Cache, of: Model = MODEL) -> None:
    """Download until it has ended."""
    end = time.monotonic() + 60
    while not hub.download(cache, of, ["docs/**"], 2.0):
        assert time.monotonic() < end


def test_the_list_has_sha256_of_large_files_and_git_hashes_of_small_ones(hub: Hub, docker: WeightsDocker) -> None:
    manifest = hub.list(MODEL, ["docs/**"])
    assert {e.path for e in manifest.entries} == set(FILES)
    for entry in manifest.entries:
        content = FILES[entry.path]
        large = len(content) >= standin.LARGE
        assert (entry.size, entry.git) == (len(content), standin.git_id(content))
        assert entry.sha256 == (standin.sha256(content) if large else "")
    assert docker.containers() == []


def test_a_download_brings_what_the_list_says_and_leaves_no_container(
    hub: Hub, docker: WeightsDocker, tmp_path: Path
) -> None:
    manifest, cache = hub.list(MODEL, ["docs/**"]), Cache.at(str(tmp_path / "hf"))
    finish(hub, cache)
    assert contents(cache.snapshot(MODEL)) == FILES
    assert whole(cache, manifest, Hashes(tmp_path / "root"))
    assert docker.containers() == []
    assert not hub.left(MODEL)


def test_a_download_that_was_cut_off_brings_only_the_rest(
    hub: Hub, served: standin.Hub, docker: WeightsDocker, tmp_path: Path
) -> None:
    cache = Cache.at(str(tmp_path / "hf"))
    finish(hub, cache)
    gone = cache.snapshot(MODEL) / "model-00002-of-00004.safetensors"
    gone.resolve().unlink()
    gone.unlink()
    served.seen.clear()
    finish(hub, cache)
    assert served.downloads() == [gone.name]
    assert contents(cache.snapshot(MODEL)) == FILES


def test_a_revision_that_the_hub_does_not_know_is_named(hub: Hub, docker: WeightsDocker, tmp_path: Path) -> None:
    other = model(revision=OTHER_REVISION)
    with pytest.raises(WeightsError, match=f"does not give owner/target at {OTHER_REVISION}: RevisionNotFoundError"):
        hub.list(other, [])
    with pytest.raises(WeightsError, match="RevisionNotFoundError"):
        finish(hub, Cache.at(str(tmp_path / "hf")), other)
    assert docker.containers() == []


def test_a_hub_that_does_not_answer_is_named(docker: WeightsDocker, tmp_path: Path) -> None:
    hub = Hub(IMAGE, SCRIPT, tmp_path / "weights", {"HF_ENDPOINT": "http://127.0.0.1:9"}, run=docker)
    with pytest.raises(WeightsError, match=r"the hub does not give .*refused"):
        hub.list(MODEL, [])


def test_an_image_that_is_not_there_is_named_and_never_pulled(hub: Hub, docker: WeightsDocker, tmp_path: Path) -> None:
    absent = replace(hub, image="lab/engine:2")
    for call in (lambda: absent.list(MODEL, []), lambda: finish(absent, Cache.at(str(tmp_path / "hf")))):
        with pytest.raises(WeightsError, match="lab/engine:2 is not on the head"):
            call()
    assert all("--pull" in c and c[c.index("--pull") + 1] == "never" for c in docker.calls if c[0] == "run")


def test_a_token_is_in_a_private_file_and_in_no_command(docker: WeightsDocker, tmp_path: Path) -> None:
    modes = []

    class Watching(WeightsDocker):
        def __call__(self, argv, **options):  # type: ignore[no-untyped-def]
            modes.extend(
                stat.S_IMODE(Path(a.split(":")[0]).stat().st_mode) for a in argv if a.endswith("sparkpair-token:ro")
            )
            return super().__call__(argv, **options)

    cache = Cache.at(str(tmp_path / "hf"))
    with standin.Hub(MODEL.repository, REVISION, FILES, token=TOKEN) as served:
        environment = {"HF_ENDPOINT": served.url}
        watching = Watching(tmp_path / "docker")
        hub = Hub(IMAGE, SCRIPT, tmp_path / "root", environment, token=TOKEN, run=watching)
        assert len(hub.list(MODEL, []).entries) == len(FILES)
        finish(hub, cache)
        without = replace(hub, token="")
        with pytest.raises(WeightsError, match=r"a token is needed|401"):
            without.list(MODEL, [])
    assert modes == [0o600, 0o600]
    assert TOKEN not in json.dumps(docker.calls)
    everything = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "log"]
    assert [p for p in everything if TOKEN.encode() in p.read_bytes()] == []


def test_the_token_beside_the_cache_is_the_librarys_own_business(docker: WeightsDocker, tmp_path: Path) -> None:
    home = tmp_path / "hf"
    home.mkdir()
    (home / "token").write_text(TOKEN)
    with standin.Hub(MODEL.repository, REVISION, FILES, token=TOKEN) as served:
        finish(Hub(IMAGE, SCRIPT, tmp_path / "root", {"HF_ENDPOINT": served.url}, run=docker), Cache.at(str(home)))
    assert contents(Cache.at(str(home)).snapshot(MODEL)) == FILES


def test_a_running_download_is_watched_and_not_begun_twice(hub: Hub, docker: WeightsDocker, tmp_path: Path) -> None:
    name = f"sparkpair-weights-{REVISION[:12]}"
    (docker.folder / name).mkdir()
    assert hub.download(Cache.at(str(tmp_path / "hf")), MODEL, [], 0.5) is False
    assert [c[0] for c in docker.calls if c[0] == "run"] == []
    (docker.folder / name / "log").write_text("")
    (docker.folder / name / "code").write_text("0")
    assert hub.download(Cache.at(str(tmp_path / "hf")), MODEL, [], 0.5) is True
    assert docker.containers() == []


def test_docker_that_does_not_answer_is_not_taken_for_an_absent_container(
    hub: Hub, docker: WeightsDocker, tmp_path: Path
) -> None:
    """A working container was removed when one look at it took too long."""
    name = f"sparkpair-weights-{REVISION[:12]}"
    (docker.folder / name).mkdir()
    asked = []

    def silent(argv: Sequence[str], **options: Any) -> Completed:
        asked.append(argv[1])
        return (
            Completed(124, "", "docker: no answer within 60 s") if argv[1] == "container" else docker(argv, **options)
        )

    deaf = replace(hub, run=silent)
    with pytest.raises(WeightsError, match=f"Docker does not tell of the container {name}: docker: no answer within"):
        deaf.download(Cache.at(str(tmp_path / "hf")), MODEL, [], 0.5)
    assert (deaf.works(MODEL), deaf.left(MODEL)) == (False, False)
    assert set(asked) == {"container"}
    assert docker.containers() == [name]
    # Control: an answer counts.
    assert (hub.works(MODEL), hub.left(MODEL)) == (True, True)


def test_the_container_runs_as_the_owner_of_the_cache(hub: Hub, docker: WeightsDocker, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 54321)
    finish(hub, Cache.at(str(tmp_path / "hf")))
    call = next(c for c in docker.calls if "--detach" in c)
    info = tmp_path.stat()
    assert call[call.index("--user") + 1] == f"{info.st_uid}:{info.st_gid}"


def test_a_cache_name_of_the_operator_is_not_downloaded_into(hub: Hub, docker: WeightsDocker, tmp_path: Path) -> None:
    mine = replace(MODEL, folder="mine")
    with pytest.raises(WeightsError, match="leave the cache name of model empty"):
        hub.download(Cache.at(str(tmp_path / "hf")), mine, [], 1)
    assert docker.calls == []


def test_a_connection_that_breaks_does_not_end_the_download(hub: Hub, served: standin.Hub, tmp_path: Path) -> None:
    served.cut = name = "model-00001-of-00004.safetensors"
    cache = Cache.at(str(tmp_path / "hf"))
    finish(hub, cache)
    assert served.downloads().count(name) == 2
    assert contents(cache.snapshot(MODEL)) == FILES
