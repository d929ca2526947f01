"""One rank's state in one call: what is on disk, what runs, what Ray counts, and what could not be read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sparkpair import state
from sparkpair.runner import Completed
from sparkpair.store import File, Store

ID = "0123456789ab"
OTHER = "ba9876543210"
NAMES = ("sparkpair-engine", "leftover")
PLAN = {"port": 8888, "ranks": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]}
READ = {"release": ID, **PLAN, "endpoint": "http://10.0.0.1:8888"}


class Docker:
    """Answers ps, inspect and exec for containers given as name to running; keeps what was fed to exec."""

    def __init__(self, containers: dict[str, bool], ray: Completed | None = None) -> None:
        self.containers = containers
        self.ray = ray
        self.execs: list[tuple[list[str], str | None]] = []

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        assert timeout >= 60
        if argv[1] == "exec":
            assert self.ray is not None
            self.execs.append((list(argv), stdin))
            return self.ray
        if argv[1] == "ps":
            return Completed(0, "\n".join(self.containers), "")
        if argv[1:3] == ["image", "inspect"]:
            return Completed(0, json.dumps([{"Id": argv[3], "RootFS": {"Layers": ["sha256:aa"]}}]), "")
        assert argv[1] == "inspect"
        return Completed(0, json.dumps([self._document(name, up) for name, up in self.containers.items()]), "")

    def _document(self, name: str, running: bool) -> dict[str, Any]:
        return {
            "Id": f"id-{name}",
            "Name": f"/{name}",
            "Image": "sha256:0",
            "State": {"Status": "running" if running else "exited", "Running": running, "ExitCode": 0, "StartedAt": ""},
            "Config": {"Image": "i", "Labels": {"sparkpair.release": ID}},
        }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    for release in (ID, OTHER):
        store.stage(release, [File("plan.json", json.dumps({"release": release, **PLAN}).encode(), 0o644)])
    store.switch(ID)
    return tmp_path


def test_an_empty_host_has_a_state_too(tmp_path: Path) -> None:
    before = time.time()
    found = state.read(tmp_path / "nothing", Docker({}))
    assert before <= found.pop("time") <= time.time()
    assert set(found.pop("memory")) == {"MemTotal", "MemFree", "MemAvailable"}
    wanted = {
        "hostname": socket.gethostname(),
        "current": None,
        "releases": [],
        "leftovers": [],
        "overlays": [],
        "release": None,
        "plan": None,
        "docker": None,
        "containers": [],
    }
    assert {key: found[key] for key in wanted} == wanted
    assert list(tmp_path.iterdir()) == []


def test_the_current_release_is_verified_and_its_plan_read(root: Path) -> None:
    found = state.read(root, Docker({"sparkpair-engine": True}))
    assert found["current"] == ID
    assert found["releases"] == [ID, OTHER]
    assert found["release"] == {"id": ID, "exists": True, "damage": []}
    assert found["plan"] == READ
    assert [c["name"] for c in found["containers"]] == ["sparkpair-engine"]
    assert json.loads(json.dumps(found)) == found
    (root / "releases" / ID / "stray").touch()
    assert state.read(root, Docker({}))["release"]["damage"] == ["stray: not part of the release"]


def test_an_asked_release_is_verified_while_the_plan_stays_that_of_the_current_one(root: Path) -> None:
    (root / "releases" / OTHER / "plan.json").unlink()
    found = state.read(root, Docker({}), release=OTHER)
    assert found["release"] == {"id": OTHER, "exists": True, "damage": ["plan.json: missing"]}
    assert found["plan"] == READ
    missing = state.read(root, Docker({}), release="000000000000")
    assert missing["release"] == {"id": "000000000000", "exists": False, "damage": []}


def test_a_dangling_current_is_no_crash_and_says_so(root: Path) -> None:
    (root / "current").unlink()
    (root / "current").symlink_to("releases/000000000000")
    found = state.read(root, Docker({}))
    assert (found["current"], found["plan"]) == ("000000000000", None)
    assert found["release"] == {"id": "000000000000", "exists": False, "damage": []}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}", b"[]", b"null", b'{"ranks": [], "port": 1}'])
def test_an_unreadable_plan_is_none_and_damage(root: Path, content: bytes) -> None:
    (root / "releases" / ID / "plan.json").write_bytes(content)
    found = state.read(root, Docker({}))
    assert found["plan"] is None
    assert found["release"]["damage"] == ["plan.json: content differs from the release's listing"]


def test_a_plan_that_was_edited_is_damage_and_not_read(root: Path) -> None:
    """It is JSON with ranks and a port, and without what is asked next."""
    edited = {k: v for k, v in PLAN.items() if k != "served_model_name"}
    (root / "releases" / ID / "plan.json").write_text(json.dumps(edited))
    found = state.read(root, Docker({}), records=True)
    assert (found["plan"], found["plans"][ID]) == (None, None)
    assert found["plans"][OTHER]["release"] == OTHER
    assert found["checks"][ID] == found["release"]["damage"] != []


def test_leftovers_are_part_of_the_state(root: Path) -> None:
    (root / "releases" / f".staging-{ID}").mkdir()
    assert state.read(root, Docker({}))["leftovers"] == [f".staging-{ID}"]


def test_a_silent_docker_leaves_what_is_on_disk_and_a_reason(root: Path) -> None:
    def silent(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        return Completed(124, "", "docker: no answer within 60 s")

    found = state.read(root, silent, ray=True)
    assert found["docker"] == "docker ps: docker: no answer within 60 s"
    assert (found["current"], found["containers"]) == (ID, [])
    assert "ray" not in found


@pytest.mark.parametrize("asked", [True, False])
def test_compose_that_went_after_preflight_stopped_a_pair_for_a_start_that_could_not_be(
    root: Path, asked: bool
) -> None:
    docker = Docker({"sparkpair-engine": True})

    def without(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        gone = argv[1] == "compose"
        return Completed(1, "", "no such plugin") if gone else docker(argv, stdin=stdin, timeout=timeout)

    found = state.read(root, without, compose=asked)
    assert found["docker"] == ("docker compose: no such plugin" if asked else None)
    assert [c["name"] for c in found["containers"]] == ([] if asked else ["sparkpair-engine"])


@pytest.mark.parametrize(("limit", "waited"), [(90.0, True), (99.0, False)])
def test_a_hot_rank_is_waited_for_only_when_asked_and_the_wait_is_told(
    tmp_path: Path, limit: float, waited: bool
) -> None:
    def runner(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        if argv[0] == "nvidia-smi":
            return Completed(0, "0, 95\n", "")
        return Docker({})(argv, stdin=stdin, timeout=timeout)

    assert (state.read(tmp_path, runner, cool=(limit, 0.2))["cooled"] > 0) == waited
    assert "cooled" not in state.read(tmp_path, runner)


# --- Ray -------------------------------------------------------------------------------------------------------------


def test_ray_is_asked_inside_the_engine_only_on_request(root: Path) -> None:
    said = 'a warning of Ray\nRAY_NODES ["10.0.0.1", "10.0.0.2"]\n'
    docker = Docker(dict.fromkeys(NAMES, True), Completed(0, said, "noise"))
    assert "ray" not in state.read(root, docker)
    assert docker.execs == []
    assert state.read(root, docker, ray=True)["ray"] == {"alive": ["10.0.0.1", "10.0.0.2"], "error": None}
    argv, stdin = docker.execs[0]
    assert argv == ["docker", "exec", "-i", "id-sparkpair-engine", "python3", "-"]
    assert stdin == state.RAY_NODES
    compile(state.RAY_NODES, "ray", "exec")


@pytest.mark.parametrize(
    "containers", [{}, {"sparkpair-engine": False}, {"leftover": True}], ids=["none", "stopped", "another name"]
)
def test_without_a_running_engine_ray_is_not_asked(root: Path, containers: dict[str, bool]) -> None:
    docker = Docker(containers)
    assert state.read(root, docker, ray=True)["ray"] == {"alive": [], "error": "no engine container runs"}
    assert docker.execs == []


def test_a_ray_that_does_not_answer_is_an_error_with_its_last_line(root: Path) -> None:
    failing = Completed(1, "", "Traceback (most recent call last):\nConnectionError: no running Ray instance\n")
    found = state.read(root, Docker({"sparkpair-engine": True}, failing), ray=True)
    assert found["ray"] == {"alive": [], "error": "ConnectionError: no running Ray instance"}
