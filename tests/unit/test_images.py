"""The engine image on one rank: known by content, pulled without a trace of the login, built with the pinned Ray."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sparkpair import image_build, images
from sparkpair.image_module import prepare
from sparkpair.images import ImageError, Login, Wanted
from sparkpair.inputs import ray_files, ray_recipes
from sparkpair.noting import unnoted
from sparkpair.runner import TIMED_OUT, Completed, follow
from sparkpair.settings import Settings

from tests.fakeengine import FakeEngine, digest, image

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "images"
PIN = "sha256:" + "9" * 64
SOURCE = f"registry.example/engine@{PIN}"
WANTED = Wanted("sparkpair/engine:0123456789ab", SOURCE, inputs="0123456789ab" + "0" * 52, architecture="aarch64")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine that can reach the image."""
    made = FakeEngine(tmp_path / "engine")
    monkeypatch.setenv("PATH", f"{made.program().parent}:{os.environ['PATH']}")
    made.put(registry={SOURCE: image("a", "b", digests=[SOURCE])})
    return made


def go(engine: FakeEngine, wanted: Wanted = WANTED, *, check: bool = False, **more: Any) -> dict[str, Any]:
    """The module's state ``prepared``."""
    given = {"reference": wanted.reference, "source": wanted.source, "inputs": wanted.inputs, "ray": wanted.ray}
    given |= {"architecture": wanted.architecture, "pull": True, "user": "", "password": "", "timeout": 60.0}
    given |= {"files": ray_files("2.60.0"), "wheels": ""}
    return prepare({**given, **more}, engine, unnoted, check=check)


# --- content ----------------------------------------------------------------------------------------------------------


def recorded(name: str) -> dict[str, Any]:
    """What ``docker image inspect`` printed."""
    return dict(json.loads((FIXTURES / f"{name}.json").read_text())[0])


def test_a_loaded_image_is_the_pulled_one_although_it_has_no_digest() -> None:
    pulled, loaded = (images.content(recorded(n), "x") for n in ("pulled", "loaded"))
    assert pulled["digests"] and not loaded["digests"]
    assert images.same_image(pulled, loaded)


def test_the_other_image_store_of_docker_gives_another_id_and_the_same_content() -> None:
    graph, containerd = (images.content(recorded(n), "x") for n in ("pulled", "containerd"))
    assert graph["id"] != containerd["id"]
    assert images.same_image(graph, containerd)


def test_equal_ids_do_not_make_other_layers_the_same_image() -> None:
    pulled = images.content(recorded("pulled"), "x")
    other = recorded("loaded")
    other["RootFS"]["Layers"][-1] = "sha256:" + "0" * 64
    assert not images.same_image(pulled, images.content(other | {"Id": pulled["id"]}, "x"))


def test_an_engine_that_does_not_answer_is_not_an_absent_image(engine: FakeEngine) -> None:
    assert images.inspect(engine, SOURCE) == {}
    engine.put(broken={"image": "Cannot connect to the Docker daemon"})
    with pytest.raises(ImageError, match="Cannot connect"):
        images.inspect(engine, SOURCE)


@pytest.mark.parametrize(
    ("reference", "registry"),
    [
        ("ghcr.io/a/b@sha256:1", "ghcr.io"),
        ("10.0.0.1:5000/a:1", "10.0.0.1:5000"),
        ("localhost/a", "localhost"),
        ("vllm/vllm-openai:v1", "docker.io"),
        ("engine:1", "docker.io"),
    ],
)
def test_the_registry_of_a_reference_is_read_as_docker_does(reference: str, registry: str) -> None:
    assert images.registry_of(reference) == registry


def test_layers_count_from_the_lowest_up(engine: FakeEngine) -> None:
    wanted = [digest(n) for n in ("a", "b", "c")]
    assert images.layers_held(engine, wanted) == 0
    engine.put(images={"x": image("b", "c"), "y": image("a", "b", "other")})
    assert images.layers_held(engine, wanted) == 2


@pytest.mark.parametrize(("code", "removed"), [(TIMED_OUT, True), (1, False), (0, False)])
def test_a_probe_that_does_not_end_leaves_no_container(code: int, removed: bool) -> None:
    seen: list[list[str]] = []

    def runner(argv: Sequence[str], **_: Any) -> Completed:
        seen.append(list(argv))
        return Completed(code if argv[1] == "run" else 0, "", "")

    images.inside(runner, SOURCE, "vllm", "serve", "--help", timeout=1)
    start = seen[0]
    assert start[start.index("--pull") + 1] == "never"
    name = start[start.index("--name") + 1]
    assert seen[1:] == ([["docker", "rm", "--force", name]] if removed else [])


# --- prepared ---------------------------------------------------------------------------------------------------------


def test_a_pinned_image_is_pulled_and_named_once(engine: FakeEngine) -> None:
    first = go(engine)
    assert first["changed"]
    assert first["steps"] == [f"pull {SOURCE}", f"name {SOURCE} {WANTED.reference}"]
    assert first["image"]["ready"]
    before = len(engine.calls)
    again = go(engine)
    assert (again["changed"], again["steps"]) == (False, [])
    assert {call[0] for call in engine.calls[before:]} == {"image"}


def test_check_mode_says_what_would_be_pulled_and_changes_nothing(engine: FakeEngine) -> None:
    said = go(engine, check=True)
    assert (said["changed"], said["steps"]) == (True, [f"pull {SOURCE}"])
    assert engine.images == {}
    assert not engine.did("pull")


def test_a_name_of_ours_on_another_image_is_not_taken_for_the_wanted_one(engine: FakeEngine) -> None:
    engine.put(images={WANTED.reference: image("stale")})
    assert go(engine)["steps"] == [f"pull {SOURCE}", f"name {SOURCE} {WANTED.reference}"]
    assert engine.images[WANTED.reference]["RootFS"]["Layers"] == [digest("a"), digest("b")]


def test_a_tag_that_moved_in_the_registry_changes_nothing_here(engine: FakeEngine) -> None:
    wanted = Wanted("registry.example/engine:1", "registry.example/engine:1", architecture="aarch64")
    engine.put(registry={wanted.source: image("new")}, images={wanted.source: image("old")})
    assert go(engine, wanted)["steps"] == []
    assert not engine.did("pull")


def test_without_permission_to_fetch_an_absent_image_is_an_error(engine: FakeEngine) -> None:
    with pytest.raises(ImageError, match="image_transfer none"):
        go(engine, pull=False)
    engine.put(images={SOURCE: image("a", digests=[SOURCE])})
    assert go(engine, pull=False)["steps"] == [f"name {SOURCE} {WANTED.reference}"]


def test_an_image_for_another_processor_is_refused_before_it_gets_the_name(engine: FakeEngine) -> None:
    engine.put(registry={SOURCE: image("a", digests=[SOURCE], Architecture="amd64")})
    with pytest.raises(ImageError, match="built for amd64, wanted arm64"):
        go(engine)
    assert WANTED.reference not in engine.images


def test_a_full_disk_says_what_to_do(engine: FakeEngine) -> None:
    engine.put(broken={"pull": "failed to register layer: write /x: no space left on device"})
    with pytest.raises(ImageError, match="no space left on device; free space where Docker keeps its images"):
        go(engine)
    engine.put(broken={"pull": "manifest unknown"})
    with pytest.raises(ImageError) as other:
        go(engine)
    assert "free space" not in str(other.value)


PULLED = """\
registry.example/engine@sha256:9999: Pulling from engine
0c5a: Already exists
1d22: Pulling fs layer
2e33: Pulling fs layer
2e33: Waiting
1d22: Verifying Checksum
1d22: Download complete
2e33: Download complete
1d22: Pull complete
2e33: Pull complete
Digest: sha256:9999
Status: Downloaded newer image for registry.example/engine@sha256:9999
"""


def test_a_pull_tells_how_many_layers_are_here(engine: FakeEngine) -> None:
    told: list[tuple[Any, ...]] = []

    def docker(argv: Sequence[str], each: Callable[[str], None], *, timeout: float) -> Completed:
        assert (list(argv), timeout) == (["docker", "pull", SOURCE], 60)
        for line in PULLED.splitlines():
            each(line)
        return Completed(0, PULLED, "")

    images.pull(engine, SOURCE, None, 60, note=lambda *note: told.append(note), follower=docker)
    doing = f"pull {SOURCE}"
    assert told[0] == (doing,)
    assert [note[1:] for note in told[1:]] == [
        (done, of, "layers") for done, of in ((1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 3), (3, 3))
    ]
    assert {note[0] for note in told} == {doing}


def test_a_pull_that_does_not_end_is_an_error(engine: FakeEngine) -> None:
    def hangs(_argv: Sequence[str], each: Callable[[str], None], *, timeout: float) -> Completed:
        return follow(["sh", "-c", "echo 1d22: Pulling fs layer; exec sleep 60"], each, timeout=timeout)

    with pytest.raises(ImageError, match="no answer within 0 s"):
        images.pull(engine, SOURCE, None, 0.3, follower=hangs)


# --- login ------------------------------------------------------------------------------------------------------------


def test_the_password_goes_to_standard_input_and_nothing_of_the_login_stays(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine.put(accounts={"registry.example": ["robot", "s3cret-token"]})
    assert go(engine, user="robot", password="s3cret-token")["changed"]
    assert not any("s3cret-token" in word for call in engine.calls for word in call)
    folders = {call[1] for call in engine.calls if call[0] == "--config"}
    assert len(folders) == 1
    assert not Path(folders.pop()).exists()
    assert not [
        p for p in tmp_path.rglob("*") if p.is_file() and b"s3cret" in p.read_bytes() and p.name != "accounts.json"
    ]


def test_a_wrong_password_is_told_without_it(engine: FakeEngine) -> None:
    engine.put(accounts={"registry.example": ["robot", "right"]})
    with pytest.raises(ImageError, match=r"login of robot to registry\.example was refused: .*unauthorized") as refused:
        go(engine, user="robot", password="s3cret-token")
    assert "s3cret" not in str(refused.value)


def test_the_login_lies_in_memory_so_that_a_killed_pull_leaves_it_on_no_disk(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "place", lambda: tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    engine.put(accounts={"registry.example": ["robot", "x"]})
    images.pull(engine, SOURCE, Login("robot", "x"), 60)
    assert {Path(c[1]).parent for c in engine.calls if c[0] == "--config"} == {tmp_path / "memory"}


def test_the_login_is_removed_when_the_pull_fails_too(engine: FakeEngine) -> None:
    engine.put(accounts={"registry.example": ["robot", "x"]}, registry={})
    with pytest.raises(ImageError, match="manifest unknown"):
        images.pull(engine, SOURCE, Login("robot", "x"), 60)
    assert not Path(next(c[1] for c in engine.calls if c[0] == "--config")).exists()


# --- Ray --------------------------------------------------------------------------------------------------------------

WITH_RAY = replace(WANTED, ray="2.60.0")


def test_an_image_without_ray_gets_the_pinned_one_once(engine: FakeEngine) -> None:
    first = go(engine, WITH_RAY)
    assert first["steps"][1] == f"build {WANTED.reference} with Ray 2.60.0 (the source has none)"
    assert first["image"]["here"]["inputs"] == WANTED.inputs
    before = len(engine.calls)
    assert go(engine, WITH_RAY)["steps"] == []
    assert {call[0] for call in engine.calls[before:]} == {"image"}
    assert not any(name.startswith("sparkpair/base") for name in engine.images)


@pytest.mark.parametrize(("ray", "step"), [("2.60.0", "name"), ("2.48.0", "build")])
def test_an_image_with_the_pinned_ray_is_only_named(engine: FakeEngine, ray: str, step: str) -> None:
    engine.put(registry={SOURCE: image("a", digests=[SOURCE], ray=ray)})
    assert [s.split()[0] for s in go(engine, WITH_RAY)["steps"]] == ["pull", step]


def test_check_mode_builds_nothing(engine: FakeEngine) -> None:
    engine.put(images={SOURCE: image("a", digests=[SOURCE])})
    assert go(engine, WITH_RAY, check=True)["steps"][0].startswith("build ")
    assert not engine.did("build")


def test_a_build_that_fails_shows_its_last_lines_and_leaves_no_name(engine: FakeEngine) -> None:
    engine.put(broken={"build": "Ray 2.60.0 needs protobuf>=3.20 (not installed)"})
    with pytest.raises(ImageError, match=r"could not be built from .*\n.*needs protobuf"):
        go(engine, WITH_RAY)
    assert set(engine.images) == {SOURCE}


def _wheel(folder: Path, name: str, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_wheels_of_the_head_are_taken_by_hash_and_the_build_gets_no_network(engine: FakeEngine, tmp_path: Path) -> None:
    right = _wheel(tmp_path / "wheels", "ray-1.0-py3-none-any.whl", b"ray")
    _wheel(tmp_path / "wheels", "left-1.0-py3-none-any.whl", b"left over")
    files = {**ray_files("2.60.0"), "requirements.txt": f"ray==1.0 --hash=sha256:{right}\n"}
    go(engine, replace(WITH_RAY, ray="1.0"), files=files, wheels=str(tmp_path / "wheels"))
    call = next(c for c in engine.calls if c[0] == "build")
    assert call[call.index("--network") + 1] == "none"
    assert "PIP_FROM=--no-index --find-links /sparkpair/wheels" in call
    context = json.loads((engine.folder / "context.json").read_text())
    assert sorted(context) == ["Dockerfile", "check.py", "requirements.txt", "wheels/ray-1.0-py3-none-any.whl"]


def test_a_wheel_of_another_hash_is_refused_before_the_build(engine: FakeEngine, tmp_path: Path) -> None:
    _wheel(tmp_path / "wheels", "ray-2.60.0-cp312-cp312-manylinux2014_aarch64.whl", b"something else")
    with pytest.raises(ImageError, match=r"allowed sha256 for ray==2\.60\.0, msgpack==1\.2\.4; it has ray-"):
        go(engine, WITH_RAY, wheels=str(tmp_path / "wheels"))
    assert not engine.did("build")


def test_a_build_that_does_not_end_is_an_error() -> None:
    def slow(argv: Sequence[str], given: Any, timeout: float) -> Completed:
        return Completed(124, "", f"not done within {timeout:.0f} s")

    def runner(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        return Completed(0, "", "")

    with pytest.raises(ImageError, match="not done within 5 s"):
        image_build.build(runner, WITH_RAY, ray_files("2.60.0"), "", 5, build_runner=slow)


def test_the_default_ray_has_hash_checked_wheels_for_a_spark() -> None:
    default = str(Settings.model_fields["ray_version"].default)
    assert default in ray_recipes()
    found = image_build.pins(ray_files(default)["requirements.txt"])
    assert set(found) >= {f"ray=={default}"}
    assert all(digests for digests in found.values())
    assert all(len(d) == 64 for digests in found.values() for d in digests)
