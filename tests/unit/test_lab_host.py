"""The lab's care for the machine: which engine it may end, what it may delete, how it waits. No Docker."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).resolve().parents[2] / "molecule" / "lab"
BOOT = "a-boot"
NO_SETTINGS = Path("/nonexistent/daemon.json")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The lab's modules, with a folder below the test's own as the lab's home."""
    monkeypatch.syspath_prepend(str(LAB))
    monkeypatch.setenv("SPARK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return importlib.import_module


def _engine_of(lab: Any, *, pid: int, argv: str, parent: int = 1, started: int = 100) -> Any:
    return lab("sparklab.engine").Process(pid, parent, started, tuple(argv.split()))


DEFAULT_ENGINE = (
    "dockerd",
    "containerd --config /var/run/docker/containerd/containerd.toml",
    "/usr/bin/containerd-shim-runc-v2 -namespace moby -address /var/run/docker/containerd/containerd.sock",
)
OTHER_ENGINE = (
    "dockerd -H unix:///srv/o/s.sock --exec-root /srv/o/exec --data-root /srv/o/data",
    "containerd --config /srv/o/exec/containerd/containerd.toml",
    "/usr/bin/containerd-shim-runc-v2 -namespace moby -address /srv/o/exec/containerd/containerd.sock",
    "/usr/bin/containerd",
    "python3 -c dockerd",
)


def test_only_the_default_sockets_engine_is_ended(lab: Any) -> None:
    found = [_engine_of(lab, pid=i, argv=a) for i, a in enumerate((*DEFAULT_ENGINE, *OTHER_ENGINE), 10)]
    ending, others = lab("sparklab.engine").remains(found, {}, BOOT, NO_SETTINGS)
    assert [p.pid for p in ending] == [10, 11, 12]
    assert others == []


def test_helpers_of_a_dead_default_engine_are_ended_and_foreign_ones_stay(lab: Any) -> None:
    found = [_engine_of(lab, pid=i, argv=a) for i, a in enumerate((*DEFAULT_ENGINE[1:], *OTHER_ENGINE), 10)]
    assert [p.pid for p in lab("sparklab.engine").remains(found, {}, BOOT, NO_SETTINGS)[0]] == [10, 11]


def test_engine_elsewhere_in_the_default_run_folder_is_named_not_ended(lab: Any) -> None:
    found = [_engine_of(lab, pid=7, argv="dockerd --host=unix:///srv/o/s.sock")]
    ending, others = lab("sparklab.engine").remains(found, {}, BOOT, NO_SETTINGS)
    assert ending == [] and [p.pid for p in others] == [7]


@pytest.mark.parametrize(
    ("record", "ended"),
    [
        ({"pid": 7, "started": 100, "boot": BOOT}, True),
        ({"pid": 7, "started": 99, "boot": BOOT}, False),
        ({"pid": 7, "started": 100, "boot": "before"}, False),
        ({}, False),
    ],
)
def test_recorded_engine_is_ended_only_when_it_is_the_same_process(
    lab: Any, record: dict[str, object], ended: bool
) -> None:
    found = [_engine_of(lab, pid=7, argv="dockerd -H unix:///srv/o/s.sock --exec-root /srv/o")]
    assert bool(lab("sparklab.engine").remains(found, record, BOOT, NO_SETTINGS)[0]) is ended


def test_proxies_go_with_their_engine_only(lab: Any) -> None:
    found = [
        _engine_of(lab, pid=1, argv="dockerd"),
        _engine_of(lab, pid=2, argv="/usr/bin/docker-proxy -proto tcp", parent=1),
        _engine_of(lab, pid=3, argv="/usr/bin/docker-proxy -proto tcp", parent=99),
    ]
    assert [p.pid for p in lab("sparklab.engine").remains(found, {}, BOOT, NO_SETTINGS)[0]] == [1, 2]


@pytest.mark.parametrize(
    ("argv", "settings", "wanted"),
    [
        ("dockerd", "{}", True),
        ("dockerd", '{"hosts": ["unix:///srv/o.sock"]}', False),
        ("dockerd", '{"hosts": ["tcp://1.2.3.4:1", "unix:///var/run/docker.sock"]}', True),
        ("dockerd -H fd://", "{}", True),
        ("dockerd -Hunix:///srv/o.sock", "{}", False),
        ("dockerd --host=unix:///run/docker.sock", "{}", True),
    ],
)
def test_default_socket_is_read_from_options_then_settings(
    lab: Any, tmp_path: Path, argv: str, settings: str, wanted: bool
) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(settings)
    assert lab("sparklab.engine").serves_default(_engine_of(lab, pid=1, argv=argv), file) is wanted


def test_this_process_is_seen_with_its_start(lab: Any) -> None:
    mine = next(p for p in lab("sparklab.engine").processes() if p.pid == os.getpid())
    assert mine.parent == os.getppid() and mine.started > 0


@pytest.mark.parametrize(
    ("address", "answers", "refused"),
    [
        ("unix:///srv/o/s.sock", False, "does not answer"),
        ("unix:///srv/o/s.sock", True, None),
        ("tcp://10.0.0.9:2375", True, "of this machine only"),
        ("ssh://someone@far", True, "of this machine only"),
    ],
)
def test_engine_named_elsewhere_is_never_started_or_cleared(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, address: str, answers: bool, refused: str | None
) -> None:
    engine = lab("sparklab.engine")
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setattr(engine, "ensure_packages", lambda: None)
    monkeypatch.setattr(engine, "_answers", lambda: answers)
    for name in ("_clear_remains", "_start_daemon"):
        monkeypatch.setattr(engine, name, lambda _home: pytest.fail("touched an engine"))
    if refused is None:
        engine.ensure_engine(tmp_path)
    else:
        with pytest.raises(lab("sparklab.host").LabError, match=refused):
            engine.ensure_engine(tmp_path)


def test_command_that_hangs_is_named(lab: Any) -> None:
    host = lab("sparklab.host")
    with pytest.raises(host.LabError, match=r"`sleep 30` did not end within 0 s"):
        host.ok(["sleep", "30"], timeout=0.2)
    with pytest.raises(host.LabError, match=r"`sleep 30` did not end"):
        host.out(["sleep", "30"], check=False, timeout=0.2)
    assert host.out(["echo", "in time"]) == "in time\n" and host.ok(["true"]) and not host.ok(["false"])


def test_pipe_passes_everything_and_reports_either_end(lab: Any) -> None:
    host = lab("sparklab.host")
    assert host.pipe("count", ["head", "-c", "3000000", "/dev/zero"], ["wc", "-c"]) == "3000000"
    with pytest.raises(host.LabError, match=r"count: `sh -c echo oh >&2; exit 3` ended with 3: oh"):
        host.pipe("count", ["sh", "-c", "echo oh >&2; exit 3"], ["wc", "-c"])
    with pytest.raises(host.LabError, match=r"count: `sh -c .*` ended with 4: full"):
        host.pipe("count", ["cat", "/dev/zero"], ["sh", "-c", "echo full; exit 4"])


def test_heartbeat_counts_and_stops(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host = lab("sparklab.host")
    with host.heartbeat("load", every=0.05) as count:
        count(2_500_000_000)
        time.sleep(0.2)
    said = capsys.readouterr().out
    assert "load: 0 s, 2,500 MB" in said
    time.sleep(0.15)
    assert capsys.readouterr().out == ""


def test_missing_keyring_alone_is_noticed(lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = lab("sparklab.host")
    assert host.NEEDS[str(host.KEYRING)] == "debian-archive-keyring"
    keyring, absent = tmp_path / "keyring.gpg", tmp_path / "absent.gpg"
    keyring.touch()
    monkeypatch.setattr(host, "NEEDS", {"sh": "dash", str(keyring): "keys", str(absent): "more-keys", "no-such": "p"})
    assert host.missing_packages() == {str(absent): "more-keys", "no-such": "p"}


def test_purge_leaves_a_folder_that_up_did_not_make(lab: Any, tmp_path: Path) -> None:
    layout = lab("sparklab.layout")
    home = tmp_path / "home"
    home.mkdir()
    (home / "ssh").mkdir()
    with pytest.raises(ValueError, match="has no file"):
        layout.discard()
    assert (home / "ssh").is_dir()


def test_up_claims_an_empty_or_older_home_and_refuses_a_foreign_one(lab: Any, tmp_path: Path) -> None:
    layout = lab("sparklab.layout")
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").mkdir()
    layout.claim()
    (home / "thesis.txt").write_text("years of work")
    layout.discard()
    assert [entry.name for entry in home.iterdir()] == ["thesis.txt"]
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        layout.claim()


def test_purge_of_a_whole_home_removes_it(lab: Any, tmp_path: Path) -> None:
    layout = lab("sparklab.layout")
    (layout.claim() / "ranks").write_text("2\n")
    layout.discard()
    assert not (tmp_path / "home").exists()
    layout.discard()


def test_second_run_says_for_whom_it_waits(lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\nfrom sparklab.turn import turn\n"
    script += "with turn(Path(sys.argv[2]), 'lab.py up'):\n print('held', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script, str(LAB), str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", text=True) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "held\n"
        threading.Timer(0.5, other.stdin.close).start()
        with lab("sparklab.turn").turn(tmp_path, "lab.py down"):
            said = capsys.readouterr().out
            assert f"waiting for `lab.py up` of /, process {other.pid}, since" in said
    with lab("sparklab.turn").turn(tmp_path, "lab.py down"):
        assert "waiting" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("listed", "environment", "wanted"),
    [
        ("global.index-url='https://a'\n", {}, {"PIP_INDEX_URL": "https://a"}),
        ("install.find-links='/w'\n", {}, {"PIP_FIND_LINKS": "/w"}),
        ("install.index-url='https://i'\nglobal.index-url='https://g'\n", {}, {"PIP_INDEX_URL": "https://i"}),
        ("install.index-url='https://i'\n", {"PIP_INDEX_URL": "https://e"}, {"PIP_INDEX_URL": "https://e"}),
        ("global.extra-index-url='\\nhttps://a\\nhttps://b'\n", {}, {"PIP_EXTRA_INDEX_URL": "https://a https://b"}),
        ("install.user='true'\ndownload.index-url='https://d'\n", {"PIP_TARGET": "/t", "HOME": "/h"}, {}),
    ],
)
def test_pip_settings_keep_pips_own_order(
    lab: Any, listed: str, environment: dict[str, str], wanted: dict[str, str]
) -> None:
    assert lab("sparklab.images").pip_environment(listed, environment) == wanted


def test_pip_is_asked_through_this_interpreter(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, seen = lab("sparklab.images"), []
    monkeypatch.setattr(images, "out", lambda argv, **_: seen.append(argv) or "")
    images.pip_settings()
    assert seen[0][0] == sys.executable


def test_no_container_needs_the_default_bridge(lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images, pair, seen = lab("sparklab.images"), lab("sparklab.pair"), []
    monkeypatch.setattr(images, "out", lambda argv, **_: seen.append(list(argv)) or "")
    monkeypatch.setattr(images, "follow", lambda _step, argv, **_: seen.append(list(argv)))
    images._extend("step", "base", "image", "true")
    with pytest.raises(FileNotFoundError):
        images.make_models(tmp_path)
    monkeypatch.setattr(
        pair.subprocess, "run", lambda argv, **_: seen.append(argv) or subprocess.CompletedProcess(argv, 0)
    )
    pair.third_party(["true"])
    seen.append(pair._create_argv(0))
    starts = [argv for argv in seen if argv[:2] in (["docker", "run"], ["docker", "create"])]
    assert len(starts) == 4
    assert all(argv[argv.index("--network") + 1] in {"none", "host", pair.layout.NETWORK} for argv in starts)


def test_settings_of_a_spark_name_every_possible_rank(lab: Any) -> None:
    pair = lab("sparklab.pair")
    named = {word for word in pair._create_argv(1) if word.startswith("spark-") and ":" in word}
    layout = pair.layout
    assert named == {f"{layout.name(r)}:{layout.address(r)}" for r in range(layout.MAX_RANKS) if r != 1}


@pytest.mark.parametrize("cleared", [True, False])
def test_spark_made_anew_loses_its_old_engine_containers(
    lab: Any, monkeypatch: pytest.MonkeyPatch, *, cleared: bool
) -> None:
    pair, seen = lab("sparklab.pair"), []

    def inside(_rank: int, *argv: str) -> str:
        seen.append(argv)
        return "abc\ndef\n" if argv[:2] == ("docker", "ps") else ""

    monkeypatch.setattr(pair, "ok", lambda _argv: cleared)
    monkeypatch.setattr(pair, "inside", inside)
    pair._clear_engine(0)
    removed = [argv for argv in seen if argv[:2] == ("docker", "rm")]
    assert removed == ([] if cleared else [("docker", "rm", "-f", "-v", "abc", "def")])
    assert all("rmi" not in argv for argv in seen)


def test_label_of_old_engine_containers_is_the_roles_own(lab: Any) -> None:
    assert lab("sparklab.pair").RELEASE_LABEL == importlib.import_module("sparkpair.containers").LABEL_RELEASE
