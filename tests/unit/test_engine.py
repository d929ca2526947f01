"""The engine container of one rank: found, stopped and followed through answers as ``docker`` gives them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sparkpair import containers, engine, phases
from sparkpair.containers import DockerError
from sparkpair.engine import EngineError, Watch
from sparkpair.phases import PHASES, Progress, follow
from sparkpair.runner import Completed, run

RELEASE = "0123456789ab"
OTHER = "ba9876543210"


def inspected(
    number: int, name: str = "sparkpair-engine", release: str | None = RELEASE, **state: Any
) -> dict[str, Any]:
    """What ``docker inspect`` says about one container, cut to the keys that matter and a few that do not."""
    labels = {} if release is None else {"sparkpair.release": release, "sparkpair.rank": "0"}
    return {
        "Id": f"{number:064x}",
        "Created": "2026-03-01T10:00:00.000000001Z",
        "Name": f"/{name}",
        "Image": "sha256:" + "c" * 64,
        "RestartCount": state.pop("RestartCount", 0),
        "State": {
            "Status": "running",
            "Running": True,
            "OOMKilled": False,
            "ExitCode": 0,
            "StartedAt": "2026-03-01T10:00:00.5Z",
            **state,
        },
        "Config": {
            "Image": "example.invalid/vllm:1",
            "Env": ["A=b=c", "EMPTY=", "PATH=/usr/bin"],
            "Cmd": ["/model", "--port", "8888"],
            "Entrypoint": ["python3", "/opt/sparkpair/entrypoint.py"],
            "Labels": labels,
        },
        "Mounts": [
            {"Type": "bind", "Source": "/b", "Destination": "/z", "RW": False},
            {"Type": "bind", "Source": "/a", "Destination": "/a", "RW": True},
        ],
    }


@dataclass
class Docker:
    """A Runner that answers like the Docker CLI over a set of containers; ``refuse`` gives failing commands."""

    present: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    refuse: dict[str, Completed] = field(default_factory=dict)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)

    @classmethod
    def holding(cls, *documents: dict[str, Any]) -> Docker:
        return cls(present={d["Id"]: d for d in documents})

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
        assert argv[0] == "docker"
        assert stdin is None
        verb, rest = argv[1], list(argv[2:])
        self.calls.append(list(argv[1:]))
        self.timeouts.append(timeout)
        if verb in self.before:
            self.before.pop(verb)()
        if verb in self.refuse:
            return self.refuse[verb]
        return getattr(self, f"_{verb}")(rest)

    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]

    def _ps(self, rest: list[str]) -> Completed:
        assert rest[:3] == ["-aq", "--no-trunc", "--filter"]
        key, _, wanted = rest[3].partition("=")
        if key == "label":
            ids = [i for i, d in self.present.items() if wanted in d["Config"]["Labels"]]
        else:
            assert rest[3] == "name=^/?sparkpair-engine$"
            ids = [i for i, d in self.present.items() if d["Name"] == "/sparkpair-engine"]
        return Completed(0, "".join(f"{i}\n" for i in ids), "")

    def _inspect(self, rest: list[str]) -> Completed:
        assert rest[:2] == ["--type", "container"]
        found = [self.present[i] for i in rest[2:] if i in self.present]
        gone = [i for i in rest[2:] if i not in self.present]
        return Completed(
            bool(gone), json.dumps(found) + "\n", "".join(f"Error: No such container: {i}\n" for i in gone)
        )

    def _gone(self, name: str) -> Completed:
        return Completed(1, "", f"Error response from daemon: No such container: {name}\n")

    def _stop(self, rest: list[str]) -> Completed:
        if rest[-1] not in self.present:
            return self._gone(rest[-1])
        self.present[rest[-1]]["State"] |= {"Status": "exited", "Running": False, "ExitCode": 143}
        return Completed(0, rest[-1] + "\n", "")

    def _rm(self, rest: list[str]) -> Completed:
        return Completed(0, rest[-1], "") if self.present.pop(rest[-1], None) else self._gone(rest[-1])

    def _logs(self, rest: list[str]) -> Completed:
        if rest[-1] not in self.present:
            return self._gone(rest[-1])
        options = dict(zip(rest[1:-1:2], rest[2:-1:2], strict=True))
        tail, since = int(options.get("--tail", 10**6)), options.get("--since", "")
        kept = [[line for line in lines if line.split(" ")[0] >= since][-tail:] for lines in (self.logs, self.errors)]
        return Completed(0, *("".join(f"{line}\n" for line in lines) for lines in kept))


def stamp(second: float) -> str:
    return f"2026-03-01T10:00:{second:012.9f}Z"


# --- finding ---------------------------------------------------------------------------------------------------------


def test_containers_are_found_by_label_and_by_name_each_once() -> None:
    docker = Docker.holding(
        inspected(1, "sparkpair-engine"),
        inspected(2, "leftover", OTHER, Status="exited", Running=False, ExitCode=137, OOMKilled=True, RestartCount=2),
    )
    found = containers.find(docker)
    assert [c.name for c in found] == ["leftover", "sparkpair-engine"]
    left, live = found
    assert (left.running, left.exit_code, left.oom_killed, left.restart_count) == (False, 137, True, 2)
    assert left.labels["sparkpair.release"] == OTHER
    assert (live.running, live.exit_code, live.oom_killed, live.restart_count) == (True, 0, False, 0)
    assert live.environment == {"A": "b=c", "EMPTY": "", "PATH": "/usr/bin"}
    assert live.arguments == ["/model", "--port", "8888"]
    assert live.mounts == [
        {"source": "/a", "target": "/a", "read_only": False},
        {"source": "/b", "target": "/z", "read_only": True},
    ]
    assert json.loads(json.dumps(live.as_dict()))["id"] == f"{1:064x}"


def test_a_foreign_container_under_our_name_is_found_and_any_other_is_not() -> None:
    docker = Docker.holding(inspected(1, "sparkpair-engine", None), inspected(2, "somebody-elses", None))
    assert [c.id for c in containers.find(docker)] == [f"{1:064x}"]


def test_docker_without_containers_of_ours_is_not_inspected() -> None:
    docker = Docker.holding(inspected(2, "somebody-elses", None))
    assert containers.find(docker) == []
    assert docker.verbs() == ["ps", "ps"]


def test_a_container_without_command_environment_and_labels_can_be_read() -> None:
    bare = inspected(1)
    bare["Config"] |= {"Cmd": None, "Entrypoint": None, "Env": None, "Labels": None}
    bare["State"] |= {"Health": {"Status": "starting"}}
    del bare["Mounts"]
    read = containers._from_inspect(bare)
    assert (read.arguments, read.entrypoint, read.environment, read.labels, read.mounts) == ([], [], {}, {}, [])
    assert read.health == "starting"


def test_a_container_removed_between_listing_and_inspecting_is_left_out() -> None:
    docker = Docker.holding(inspected(1), inspected(2, "leftover", OTHER))
    docker.before["inspect"] = lambda: docker.present.pop(f"{1:064x}") and None
    assert [c.name for c in containers.find(docker)] == ["leftover"]
    docker = Docker.holding(inspected(1))
    docker.before["inspect"] = docker.present.clear
    assert containers.find(docker) == []


@pytest.mark.parametrize("verb", ["ps", "inspect"])
def test_a_docker_that_does_not_answer_is_an_error_and_not_an_empty_host(verb: str) -> None:
    docker = Docker.holding(inspected(1))
    docker.refuse[verb] = Completed(1, "", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n")
    with pytest.raises(DockerError, match=f"docker {verb}: Cannot connect"):
        containers.find(docker)


@pytest.mark.parametrize(
    "said",
    [
        "docker: No such file or directory",
        "dial unix /var/run/docker.sock: connect: no such file or directory",
        "no such host",
    ],
)
def test_a_docker_that_went_between_two_questions_was_taken_for_an_empty_host(said: str) -> None:
    docker = Docker.holding(inspected(1))
    docker.refuse["inspect"] = Completed(127, "", said)
    with pytest.raises(DockerError, match="docker inspect"):
        containers.find(docker)


# --- stopping --------------------------------------------------------------------------------------------------------


def test_stop_is_graceful_then_removes_then_verifies() -> None:
    docker = Docker.holding(inspected(1), inspected(2, "leftover", OTHER))
    stopped = engine.stop(docker, 45)
    assert docker.present == {}
    assert stopped.changed
    assert stopped.removed == [
        {"name": "leftover", "release": OTHER},
        {"name": "sparkpair-engine", "release": RELEASE},
    ]
    assert docker.verbs() == ["ps", "ps", "inspect", "stop", "rm", "stop", "rm", "ps", "ps"]
    assert docker.calls[3] == ["stop", "-t", "45", f"{2:064x}"]
    assert docker.calls[4] == ["rm", "-f", f"{2:064x}"]
    # The command must outlive the grace that it grants.
    assert docker.timeouts[3] > 45


def test_stop_of_an_empty_host_changes_nothing() -> None:
    docker = Docker()
    assert not engine.stop(docker, 60).changed
    assert set(docker.verbs()) == {"ps"}


def test_a_dry_stop_reports_and_stops_nothing() -> None:
    docker = Docker.holding(inspected(1))
    stopped = engine.stop(docker, 60, dry=True)
    assert stopped.changed
    assert [r["name"] for r in stopped.removed] == ["sparkpair-engine"]
    assert set(docker.verbs()) == {"ps", "inspect"}
    assert docker.present[f"{1:064x}"]["State"]["Running"]


def test_a_container_that_survives_removal_is_an_error() -> None:
    docker = Docker.holding(inspected(1))
    docker.refuse["rm"] = Completed(0, "", "")
    with pytest.raises(EngineError, match="still there after docker rm: sparkpair-engine"):
        engine.stop(docker, 60)


@pytest.mark.parametrize("verb", ["stop", "rm"])
def test_a_stop_that_docker_refuses_is_an_error_that_names_the_container(verb: str) -> None:
    docker = Docker.holding(inspected(1))
    docker.refuse[verb] = Completed(1, "", f"Error response from daemon: cannot {verb}: permission denied\n")
    with pytest.raises(EngineError, match=f"docker {verb} sparkpair-engine: .*permission denied"):
        engine.stop(docker, 60)


@pytest.mark.parametrize("verb", ["stop", "rm"])
def test_a_container_that_vanishes_while_it_is_stopped_is_fine(verb: str) -> None:
    docker = Docker.holding(inspected(1))
    docker.before[verb] = docker.present.clear
    assert engine.stop(docker, 60).changed
    assert docker.present == {}


def test_a_removal_already_in_progress_is_waited_out_by_the_verification() -> None:
    docker = Docker.holding(inspected(1))
    docker.before["rm"] = docker.present.clear
    message = "Error response from daemon: removal of container x is already in progress\n"
    docker.refuse["rm"] = Completed(1, "", message)
    assert engine.stop(docker, 60).changed
    assert docker.present == {}


def test_stop_without_docker_is_an_engine_error() -> None:
    docker = Docker(refuse={"ps": Completed(127, "", "docker: No such file or directory")})
    with pytest.raises(EngineError, match="No such file or directory"):
        engine.stop(docker, 60)


# --- log lines -------------------------------------------------------------------------------------------------------


def test_both_streams_come_in_the_order_of_their_timestamps() -> None:
    docker = Docker.holding(inspected(1))
    docker.logs = [f"{stamp(1)} out 1", f"{stamp(3)} out 3"]
    docker.errors = [f"{stamp(2)} err 2", f"{stamp(10)} err 10"]
    read = containers.logs(docker, f"{1:064x}")
    assert [line.split(" ", 1)[1] for line in read] == ["out 1", "err 2", "out 3", "err 10"]
    assert containers.logs(docker, f"{1:064x}", since=stamp(3)) == read[2:]
    assert containers.logs(docker, f"{1:064x}", tail=1) == read[3:]


def test_lines_of_the_same_moment_keep_their_order() -> None:
    docker = Docker.holding(inspected(1))
    docker.logs = [f"{stamp(1)} b first", f"{stamp(1)} a second"]
    assert containers.logs(docker, f"{1:064x}") == docker.logs


def test_logs_of_a_container_that_is_gone_are_empty_and_a_daemon_message_is_no_line() -> None:
    assert containers.logs(Docker(), "gone") == []
    docker = Docker.holding(inspected(1))
    docker.refuse["logs"] = Completed(1, "", "2026 is no time\n")
    assert containers.logs(docker, f"{1:064x}") == []


@pytest.mark.parametrize("end", ["\r", "\n"], ids=["carriage return", "as text mode reads it"])
def test_a_progress_bar_within_one_line_does_not_blind_the_following_looks(end: str) -> None:
    """Its later drawings carry no timestamp, and one that begins with four digits looked like a time of its own."""
    docker = Docker.holding(inspected(1))
    bar = end.join([f"{stamp(1)} ", "2048/4096 tensors", "9999/9999 Loading safetensors checkpoint shards: 100%"])
    docker.logs = [bar]
    read = containers.logs(docker, f"{1:064x}")
    assert {line.split(" ", 1)[0] for line in read} == {stamp(1)}
    assert read[-1].endswith("shards: 100%")
    seen = look(docker, phase="joining Ray")
    assert (seen.phase, seen.cursor) == ("loading weights", stamp(1))
    docker.logs.append(f"{stamp(2)} [sparkpair] joined as a worker")
    assert look(docker, cursor=seen.cursor, phase=seen.phase).state == "ready"


# --- phases ----------------------------------------------------------------------------------------------------------

START = [
    ("joining Ray", "[sparkpair] ray head on 10.0.0.1:6379"),
    ("joining Ray", "Local node IP: 10.0.0.1"),
    ("joining Ray", "[sparkpair] waiting for ranks: 1 of 2 alive in Ray (10.0.0.1)"),
    ("starting engine", "[sparkpair] exec vllm serve"),
    (
        "starting engine",
        "\x1b[1;36m(EngineCore_DP0 pid=412)\x1b[0;0m INFO 03-01 10:01:22 [core.py:84]"
        " Initializing a V1 LLM engine (v1)",
    ),
    (
        "starting engine",
        "2026-03-01 10:01:30,001\tINFO worker.py:1694 -- Connecting to existing Ray cluster at address",
    ),
    (
        "loading weights",
        "\x1b[36m(RayWorkerWrapper pid=2201, ip=10.0.0.2)\x1b[0m INFO [gpu_model_runner.py:2602]"
        " Starting to load model x",
    ),
    ("loading weights", "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:40<00:40, 20.01s/it]"),
    ("loading weights", "INFO [default_loader.py:268] Loading weights took 81.20 seconds"),
    ("profiling memory", "INFO [gpu_model_runner.py:2653] Model loading took 58.9 GiB and 84.112 seconds"),
    ("profiling memory", "INFO [gpu_worker.py:298] Available KV cache memory: 21.4 GiB"),
    ("profiling memory", "INFO [kv_cache_utils.py:1087] GPU KV cache size: 1,201,152 tokens"),
    ("capturing graphs", "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  14%|#4  | 1/7 [00:01<00:06]"),
    ("capturing graphs", "INFO [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took 0.52 GiB"),
    ("serving", "INFO:     Application startup complete."),
    ("serving", 'INFO:     127.0.0.1:43210 - "GET /health HTTP/1.1" 200 OK'),
]


def test_a_start_passes_through_the_phases_in_order_whatever_colours_and_timestamps_say() -> None:
    known, passed = None, []
    for number, (phase, text) in enumerate(START):
        known = follow([f"{stamp(number)} {text}"], known)
        assert known.phase == phase, text
        passed.append(known.phase)
        assert "\x1b" not in known.detail
        assert "2026-03-01T" not in known.detail
    assert list(dict.fromkeys(passed)) == list(PHASES[1:])
    assert known is not None
    assert known.fatal is None
    assert follow([f"{stamp(n)} {text}" for n, (_, text) in enumerate(START)]) == known


def test_a_phase_never_goes_back() -> None:
    for index, phase in enumerate(PHASES):
        after = follow([text for _, text in START[:-2]], Progress(phase, "kept", None))
        assert PHASES.index(after.phase) == max(index, PHASES.index("capturing graphs"))
    assert follow(["[sparkpair] ray worker joins"], Progress("loading weights", "kept", None)) == Progress(
        "loading weights", "kept", None
    )


def test_nothing_said_is_the_first_phase() -> None:
    assert follow([]) == Progress("creating", "", None)
    assert follow(["", "2026-03-01T10:00:00Z "]) == Progress("creating", "", None)


def test_a_worker_serves_when_it_joined() -> None:
    assert follow(["[sparkpair] ray worker 10.0.0.2 joins 10.0.0.1:6379"]).phase == "joining Ray"
    assert follow(["[sparkpair] joined as a worker"]).phase == "serving"


FATAL = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "INFO CUDA memory: 2.00 GiB allocated, out of 119.70 GiB",
    ),
    ("RuntimeError: CUDA out of memory", "CUDA graphs use less memory"),
    (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "the Ray memory monitor is disabled (RAY_memory_monitor_refresh_ms=0)",
    ),
    (
        "spark-0:412:900 [0] ibvwrap.c:230 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        "spark-0:412:900 [0] NCCL INFO ibv_modify_qp done",
    ),
    ("NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "NCCL INFO ibv_reg_mr ok"),
    ("torch.distributed.DistBackendError: NCCL error: ncclSystemError: System call failed", "NCCL INFO ncclSuccess"),
    ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "NCCL INFO Init COMPLETE"),
    (
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "INFO Engine core initialization took 80 s",
    ),
    ("ERROR [core.py:700] EngineCore failed to start.", "INFO EngineCore started"),
    ("ERROR [multiproc_executor.py:597] WorkerProc failed to start.", "INFO WorkerProc started"),
    ("vllm serve: error: unrecognized arguments: --no-such-flag", "INFO non-default args: {'port': 8888}"),
    ("[sparkpair] fatal: ray start --head ended with 1", "[sparkpair] waiting for ranks: 2 of 2 alive in Ray"),
]


@pytest.mark.parametrize(("line", "control"), FATAL, ids=[f[0][:24] for f in FATAL])
def test_a_fatal_line_is_kept_and_its_harmless_neighbour_is_not(line: str, control: str) -> None:
    coloured = f"{stamp(3)} \x1b[1;36m(EngineCore pid=4)\x1b[0;0m {line}"
    known = follow([control, coloured, "[sparkpair] fatal: a later one"])
    assert known.fatal is not None
    assert line[:60] in known.fatal
    assert "\x1b" not in known.fatal
    assert follow([control]).fatal is None
    assert follow([control], known).fatal == known.fatal


# --- watching --------------------------------------------------------------------------------------------------------


class Time:
    """A clock that only sleeping moves; ``then`` runs when a moment is reached."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.then: list[tuple[float, Callable[[], object]]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds
        while self.then and self.now >= self.then[0][0]:
            self.then.pop(0)[1]()


def look(docker: Docker, time: Time | None = None, **given: Any) -> Watch:
    clock = time or Time()
    wanted: dict[str, Any] = {"health_url": None, "cursor": "", "phase": "", "hold": 0.0, **given}
    return engine.watch(docker, RELEASE, clock=clock.clock, sleep=clock.sleep, **wanted)


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    answers: dict[str, bool] = {}
    monkeypatch.setattr(engine, "healthy", lambda url: answers[url])
    return answers


@pytest.mark.parametrize(
    ("back", "patience", "stopped"), [(1020.0, 45.0, True), (1020.0, 0.0, False), (1e9, 45.0, False)]
)
def test_a_docker_that_was_away_for_seconds_left_half_a_pair(back: float, patience: float, stopped: bool) -> None:
    """A package upgrade replaces its command or restarts its daemon in the moment of the last stop."""
    docker, time = Docker.holding(inspected(1)), Time()
    docker.refuse["ps"] = Completed(127, "", "docker: No such file or directory")
    time.then = [(back, docker.refuse.clear)]

    def stop() -> engine.Stopped:
        return engine.stop(docker, 5, patience=patience, clock=time.clock, sleep=time.sleep)

    if not stopped:
        with pytest.raises(EngineError, match="No such file"):
            stop()
        assert sum(time.slept) <= patience + engine.RETRY
        return
    assert stop().removed == [{"name": "sparkpair-engine", "release": RELEASE}]
    assert docker.present == {}


def test_a_head_is_ready_when_its_health_answers_and_not_because_the_log_says_so(health: dict[str, bool]) -> None:
    docker = Docker.holding(inspected(1))
    docker.logs = [f"{stamp(1)} INFO:     Application startup complete."]
    health["http://h"] = False
    assert look(docker, health_url="http://h").state == "starting"
    health["http://h"] = True
    seen = look(docker, health_url="http://h")
    assert (seen.state, seen.phase, seen.reason) == ("ready", "serving", "")
    assert seen.lines == ["INFO:     Application startup complete."]


def test_a_paused_engine_neither_runs_nor_has_ended(health: dict[str, bool]) -> None:
    """Docker says of it that it runs, so a pair with a paused worker was accepted."""
    docker = Docker.holding(inspected(1, Status="paused"))
    assert [c.running for c in containers.find(docker)] == [False]
    docker.logs = [f"{stamp(1)} INFO:     Application startup complete."]
    assert look(docker).state == "starting"
    docker.present[f"{1:064x}"]["State"]["Status"] = "running"
    assert [c.running for c in containers.find(docker)] == [True]
    assert look(docker).state == "ready"


def test_a_head_that_becomes_healthy_while_held_answers_at_once(health: dict[str, bool]) -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    health["http://h"] = False
    time.then = [(1002.0, lambda: health.update({"http://h": True}))]
    assert look(docker, time, health_url="http://h", phase="creating", hold=30).state == "ready"
    assert time.now == 1002.0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"ExitCode": 137, "OOMKilled": True}, "sparkpair-engine was killed for lack of memory"),
        ({"ExitCode": 137}, "sparkpair-engine ended with exit code 137"),
        ({"ExitCode": 0}, "sparkpair-engine ended with exit code 0"),
    ],
)
def test_an_engine_that_ended_is_reported_at_once_with_its_last_lines(state: dict[str, Any], reason: str) -> None:
    docker, time = Docker.holding(inspected(1, Status="exited", Running=False, **state)), Time()
    docker.logs = [f"{stamp(n)} \x1b[31mline {n}\x1b[0m" for n in range(40)]
    seen = look(docker, time, hold=60, phase="creating")
    assert (seen.state, seen.reason) == ("exited", reason)
    assert seen.lines == [f"line {n}" for n in range(15, 40)]
    assert time.slept == []


def test_a_fatal_line_ends_the_look_although_the_process_lingers() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    docker.logs = [f"{stamp(1)} vllm serve: error: unrecognized arguments: --x"]
    seen = look(docker, time, hold=60, phase="creating")
    assert (seen.state, seen.reason) == ("failed", "vllm serve: error: unrecognized arguments: --x")
    assert time.slept == []


def test_no_container_and_one_of_another_release_are_both_missing() -> None:
    for docker in (Docker(), Docker.holding(inspected(1, release=OTHER)), Docker.holding(inspected(1, release=None))):
        seen = look(docker, hold=60)
        assert (seen.state, seen.reason) == ("missing", f"no container of release {RELEASE} is on this rank")
    assert look(Docker.holding(inspected(1))).state == "starting"


def test_a_docker_that_stops_answering_is_silent_with_its_message() -> None:
    docker = Docker(refuse={"ps": Completed(124, "", "docker: no answer within 60 s")})
    seen = look(docker, cursor="c", phase="loading weights")
    assert (seen.state, seen.reason) == ("silent", "docker ps: docker: no answer within 60 s")
    assert (seen.cursor, seen.phase) == ("c", "loading weights")


def test_a_container_removed_while_it_is_watched_is_missing() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    time.then = [(1001.0, docker.present.clear)]
    assert look(docker, time, phase="creating", hold=60).state == "missing"


def test_the_cursor_does_not_repeat_lines_and_loses_none() -> None:
    docker = Docker.holding(inspected(1))
    docker.logs = [f"{stamp(1)} one", f"{stamp(2)} two"]
    first = look(docker, phase="creating")
    assert (first.log_growth, first.cursor) == (2, stamp(2))
    again = look(docker, phase="creating", cursor=first.cursor)
    assert (again.log_growth, again.cursor) == (0, stamp(2))
    docker.errors = [f"{stamp(2.000000001)} three"]
    third = look(docker, phase="creating", cursor=again.cursor)
    assert (third.log_growth, third.cursor) == (1, stamp(2.000000001))
    assert third.lines == ["one", "two", "three"]


def test_the_cursor_moves_on_within_one_held_look_too() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    docker.logs = [f"{stamp(1)} one"]
    time.then = [(1001.0, lambda: docker.logs.append(f"{stamp(2)} two"))]
    seen = look(docker, time, phase="creating", hold=5)
    assert (seen.log_growth, seen.cursor) == (2, stamp(2))


def test_without_news_a_look_lasts_as_long_as_it_may_hold_and_no_longer() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    seen = look(docker, time, phase="creating", hold=7.5)
    assert seen.state == "starting"
    assert time.now == pytest.approx(1007.5)
    assert max(time.slept) <= 1.0


def test_without_hold_a_look_does_not_sleep() -> None:
    time = Time()
    assert look(Docker.holding(inspected(1)), time, phase="creating", hold=0).state == "starting"
    assert time.slept == []


def test_a_new_phase_ends_the_look_early_and_a_known_one_does_not() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    time.then = [(1003.0, lambda: docker.logs.append(f"{stamp(1)} Starting to load model x"))]
    seen = look(docker, time, phase="creating", hold=60)
    assert (seen.phase, time.now) == ("loading weights", 1003.0)
    assert seen.detail == "Starting to load model x"
    time = Time()
    assert look(docker, time, phase="loading weights", cursor="", hold=4).phase == "loading weights"
    assert time.now == 1004.0


def test_an_unknown_phase_from_the_caller_counts_as_none() -> None:
    assert look(Docker.holding(inspected(1)), phase="no such phase").phase == "creating"


def test_a_worker_that_is_ready_holds_until_the_deadline_instead_of_answering_in_a_loop() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    docker.logs = [f"{stamp(1)} [sparkpair] joined as a worker"]
    first = look(docker, time, hold=60, phase="joining Ray")
    assert (first.state, time.now) == ("ready", 1000.0)
    second = look(docker, time, hold=6, phase=first.phase, cursor=first.cursor)
    assert (second.state, time.now) == ("ready", 1006.0)


def test_a_worker_that_is_ready_and_then_dies_ends_the_look() -> None:
    docker, time = Docker.holding(inspected(1)), Time()
    time.then = [(1002.0, lambda: docker._stop([f"{1:064x}"]))]
    seen = look(docker, time, hold=60, phase="serving")
    assert (seen.state, time.now) == ("exited", 1002.0)
    assert seen.as_dict()["reason"] == "sparkpair-engine ended with exit code 143"


# --- health ----------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    codes: ClassVar[dict[str, int]] = {"/health": 200, "/sick": 503, "/empty": 204}

    def do_GET(self) -> None:
        self.send_response(self.codes[self.path])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: made.serve_forever(poll_interval=0.01))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def test_only_200_is_healthy_and_a_proxy_is_not_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert engine.healthy(f"{server}/health")
    assert not engine.healthy(f"{server}/sick")
    assert not engine.healthy(f"{server}/empty")


def test_nobody_listening_is_unhealthy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert not engine.healthy(f"http://127.0.0.1:{taken.getsockname()[1]}/health", timeout=1)


@pytest.mark.parametrize("answer", [b"220 mail.example.invalid ESMTP\r\n", b""], ids=["another protocol", "hang up"])
def test_a_port_that_speaks_something_else_is_unhealthy_and_no_crash(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert not engine.healthy(f"http://127.0.0.1:{listening.getsockname()[1]}/health", timeout=2)
        thread.join()


@pytest.mark.parametrize("ask", [engine.healthy, engine.requests_in_engine])
def test_an_answer_that_trickles_is_given_up_at_the_timeout(ask: Callable[[str, float], bool | int | None]) -> None:
    """A socket's timeout counts from byte to byte, so the look would not end while each byte comes in time."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not ended.wait(0.1):
                    connection.sendall(b"x")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            begun = time.monotonic()
            assert not ask(f"http://127.0.0.1:{listening.getsockname()[1]}/health", 0.5)
            assert time.monotonic() - begun < 5
        finally:
            ended.set()
            thread.join()


# --- runner ----------------------------------------------------------------------------------------------------------


def test_the_runner_gives_code_and_both_streams_and_feeds_stdin() -> None:
    code = "import sys; print(sys.stdin.read()); print('e', file=sys.stderr); sys.exit(3)"
    done = run([sys.executable, "-c", code], stdin="hello $HOME")
    assert (done.rc, done.out, done.err, done.ok) == (3, "hello $HOME\n", "e\n", False)
    assert run(["true"]).ok


def test_the_runner_uses_no_shell() -> None:
    assert run(["echo", "$HOME; `id`"]).out == "$HOME; `id`\n"


def test_a_command_does_not_read_what_its_caller_was_given() -> None:
    code = "from sparkpair.runner import run; print(repr(run(['cat'], timeout=5).out))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="typed by the operator",
        env={**os.environ, "PYTHONPATH": str(Path(engine.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "''\n"


def test_a_missing_program_and_a_silent_one_are_results_and_no_exceptions() -> None:
    missing = run(["sparkpair-no-such-program"])
    assert (missing.rc, missing.why()) == (127, "sparkpair-no-such-program: No such file or directory")
    late = run(["sleep", "30"], timeout=0.1)
    assert (late.rc, late.why()) == (124, "sleep: no answer within 0 s")


def test_output_that_is_not_utf8_is_replaced() -> None:
    assert run(["printf", r"a\377b"]).out == "a�b"


@pytest.mark.parametrize(
    ("done", "why"),
    [
        (Completed(1, "out\n", "first\nlast\n\n"), "last"),
        (Completed(1, "said\nhere \n", ""), "here"),
        (Completed(7, "", " \n"), "exit code 7"),
        (Completed(125, "", "docker: No such image: x\nSee 'docker run --help'.\n"), "docker: No such image: x"),
        (Completed(125, "", "docker: no\n\nRun 'docker run --help' for more information\n"), "docker: no"),
    ],
)
def test_why_is_the_last_line_that_says_something(done: Completed, why: str) -> None:
    assert done.why() == why


def test_plain_keeps_a_line_that_carries_no_timestamp() -> None:
    assert phases.plain("2026-03-01 10:00:00,1 INFO x") == "2026-03-01 10:00:00,1 INFO x"
    assert phases.plain("2026-03-01T10:00:00.000000001Z \x1b[1;32mok\x1b[0m  ") == "ok"
