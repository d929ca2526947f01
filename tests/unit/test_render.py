"""The files of a release: what Compose, the container and the entrypoint read back out of them."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
import yaml
from sparkpair.plan import RANK_ENVIRONMENT
from sparkpair.render import ROLE, RenderError, compose_text, dotenv_text, render

from tests.planning import plan

ROOT = "/opt/sparkpair"
OVERLAYS = [
    {"source": "overlays/verify_width/vllm/v1/b.py", "target": "/usr/lib/vllm/v1/b.py"},
    {"source": "overlays/verify_width/vllm/v1/a.py", "target": "/usr/lib/vllm/v1/a.py"},
]
HOSTILE = [
    "$HOME",
    "$$HOME ${HOME:-x} $",
    """it's "quoted" `id` \\ \\n""",
    '{"a": [1, {"b": "c d"}], "$x": null}',
    "größe 漢字 🙂",
    "{{ lookup('pipe', 'id') }}",
    "{% raw %}{# x #}",
    "# no comment",
    "- no: list",
    " spaces kept  ",
    "tab\there",
    "*a &b !c |d >e %f @g",
    "yes",
    "1e3",
]


def files(made: Mapping[str, Any], rank: int = 0, **more: Any) -> dict[str, str]:
    """Rendered text by path."""
    return {f.path: f.content.decode() for f in render(made, rank, root=ROOT, **more)}


def interpolated(value: Any) -> Any:
    """What Compose makes of a parsed file: ``$$`` is a dollar sign, and any other ``$`` would be a variable."""
    if isinstance(value, str):
        assert "$" not in value.replace("$$", ""), f"Compose would expand {value!r}"
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [interpolated(item) for item in value]
    if isinstance(value, dict):
        return {key: interpolated(item) for key, item in value.items()}
    return value


def engine(text: Mapping[str, str]) -> dict[str, Any]:
    """The service as Compose reads it."""
    read: dict[str, Any] = interpolated(yaml.safe_load(text["compose.yaml"])["services"]["engine"])
    return read


def variables(text: str) -> dict[str, str]:
    """Read lines of NAME='value' as Compose does: up to the first quote without a backslash before it."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)='((?:[^']|(?<=\\)')*)(?<!\\)'", line)
        assert match, f"not a single-quoted variable: {line!r}"
        assert match[1] not in found
        found[match[1]] = match[2]
    return found


def with_rank(made: Mapping[str, Any], number: int, **values: Any) -> dict[str, Any]:
    """A copy of a plan with other values in one rank."""
    changed = copy.deepcopy(dict(made))
    changed["ranks"][number] |= values
    return changed


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*HOSTILE, "", "\x7f\x85\u2028\ufeff\uffff", "\x00\x1b"])
def test_compose_text_reads_back_as_the_value(value: str) -> None:
    assert interpolated(yaml.safe_load(compose_text(value))) == value


@pytest.mark.parametrize("value", [v for v in HOSTILE if "'" not in v] + ["", "a\\b", "C:\\x y"])
def test_dotenv_text_reads_back_as_the_value(value: str) -> None:
    assert variables(f"X={dotenv_text(value)}") == {"X": value}


@pytest.mark.parametrize("value", ["it's", "two\nlines", "a\rb", "a\0b", "ends with \\", "\\"])
def test_a_value_that_an_env_file_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(RenderError, match="an environment value cannot"):
        dotenv_text(value)


def test_a_backslash_before_the_closing_quote_would_swallow_the_next_line() -> None:
    with pytest.raises(AssertionError):
        variables("X='a\\'")
    assert variables("X='a\\b'") == {"X": "a\\b"}


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_release_has_these_files_and_no_other() -> None:
    made = render(plan(), 0, root=ROOT)
    assert [f.path for f in made] == [".env", "compose.yaml", "entrypoint.py", "launch.json", "plan.json"]
    assert {f.mode for f in made} == {0o644}
    assert all(f.content.endswith(b"\n") for f in made)


def test_plain_settings_give_the_arguments_of_the_plan_one_by_one() -> None:
    made = plan(verify_tokens=3)
    read = engine(files(made))
    assert read["command"] == made["ranks"][0]["arguments"]
    assert variables(files(made)[".env"]) == made["ranks"][0]["environment"]
    assert read["image"] == made["image"]
    assert read["labels"] == {"sparkpair.release": made["release"], "sparkpair.rank": "0"}


def test_hostile_arguments_and_values_survive_byte_for_byte() -> None:
    values = [v for v in HOSTILE if "'" not in v]
    environment = {f"V{n}": v for n, v in enumerate(values)}
    text = files(with_rank(plan(), 0, arguments=HOSTILE, environment=environment))
    assert engine(text)["command"] == HOSTILE
    assert variables(text[".env"]) == environment


def test_operators_own_arguments_and_variables_survive() -> None:
    own = ["--hf-overrides", '{"a": "$b {{ c }} \'d\'"}', "--seed", "1"]
    made = plan(extra_args=own, extra_env={"MY_X": "${HOME} {{ y }} é #"})
    text = files(made)
    assert engine(text)["command"][-4:] == own
    assert variables(text[".env"])["MY_X"] == "${HOME} {{ y }} é #"


def test_a_value_that_cannot_be_written_refuses_the_release() -> None:
    with pytest.raises(RenderError, match="backslash"):
        files(with_rank(plan(), 0, environment={"MY_X": "C:\\"}))
    assert variables(files(plan(extra_env={"MY_X": "C:"}))[".env"])["MY_X"] == "C:"


def test_an_argument_that_is_no_text_is_written_as_text() -> None:
    assert engine(files(with_rank(plan(), 0, arguments=[8888, True])))["command"] == ["8888", "True"]


def test_a_rank_that_the_plan_does_not_have_is_refused() -> None:
    with pytest.raises(RenderError, match="no rank 2"):
        files(plan(), 2)
    assert files(plan(3), 2)


def test_a_template_that_gives_no_valid_file_is_refused() -> None:
    with pytest.raises(RenderError, match="not valid"):
        files({**plan(), "container": {**plan()["container"], "stop_grace": "60\n  - ]"}})


def test_same_input_gives_the_same_bytes_in_any_order() -> None:
    made = plan(verify_tokens=3)
    backwards = json.loads(json.dumps(made))
    backwards["ranks"][0]["environment"] = dict(reversed(made["ranks"][0]["environment"].items()))
    backwards = dict(reversed(backwards.items()))
    first = render(made, 0, root=ROOT, overlays=OVERLAYS)
    assert render(backwards, 0, root=f"{ROOT}/", overlays=OVERLAYS[::-1]) == first
    assert render(plan(), 0, root=ROOT, overlays=OVERLAYS) != first


def test_what_restarts_nothing_changes_no_file() -> None:
    one, two = plan(ready_timeout=900), plan(ready_timeout=901)
    assert one["settings"] != two["settings"]
    assert files(one) == files(two)
    assert files(one) != files(plan(port=8889))


def test_no_file_holds_a_date_or_a_name_of_the_controller() -> None:
    for name, text in files(plan(verify_tokens=3), overlays=OVERLAYS).items():
        assert not re.search(r"\b20\d\d-\d\d-\d\d|\b\d\d:\d\d:\d\d", text), name
        assert str(ROLE.parents[1]) not in text, name
        assert "spark-0" not in text, name


@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_no_file_holds_a_secret(executor: str) -> None:
    key = "sesame-open-0123456789"
    made = plan(api_key=key, executor=executor)
    text = "".join(t for rank in (0, 1) for t in files(made, rank).values())
    assert key not in text
    assert key not in json.dumps(made)
    assert json.loads(files(made)["plan.json"])["api_key_set"] is True
    assert json.loads(files(plan())["plan.json"])["api_key_set"] is False
    sources = {v["source"] for v in engine(files(made))["volumes"]}
    assert f"{ROOT}/releases/{made['release']}/secrets" in sources


# --- ranks -----------------------------------------------------------------------------------------------------------


def _flat(text: Mapping[str, str]) -> dict[str, Any]:
    service = engine(text)
    return {
        **{f"volume {v['target']}": {**v} for v in service.pop("volumes")},
        **{f"env {k}": v for k, v in variables(text[".env"]).items()},
        **{f"launch {k}": v for k, v in json.loads(text["launch.json"]).items()},
        **{f"label {k}": v for k, v in service.pop("labels").items()},
        **service,
        "plan": text["plan.json"],
        "entrypoint": text["entrypoint.py"],
    }


@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_ranks_differ_only_as_allowed(executor: str) -> None:
    made = plan(3, executor=executor, verify_tokens=3)
    head, *workers = (_flat(files(made, n, overlays=OVERLAYS)) for n in range(3))
    allowed = {f"env {name}" for name in RANK_ENVIRONMENT}
    allowed |= {"launch role", "launch address", "label sparkpair.rank", "command", "healthcheck"}
    allowed |= {"volume /root/.cache/huggingface"}
    for worker in workers:
        differing = {key for key in {*head, *worker} if head.get(key) != worker.get(key)}
        assert differing <= allowed
        assert {"launch role", "launch address", "label sparkpair.rank", "env VLLM_HOST_IP"} <= differing
        assert "healthcheck" not in worker
    hugging = {f["volume /root/.cache/huggingface"]["source"] for f in (head, *workers)}
    assert len(hugging) == 3


def test_a_ray_worker_has_an_empty_command_so_that_the_image_has_no_say() -> None:
    made = plan()
    assert engine(files(made, 1))["command"] == []
    assert engine(files(made, 0))["command"] != []
    assert json.loads(files(made, 1)["launch.json"]) == {
        "role": "worker",
        "executor": "ray",
        "address": "192.0.2.2",
        "head_address": "192.0.2.1",
        "ranks": ["192.0.2.1", "192.0.2.2"],
        "ray": made["ray"],
    }


def test_with_mp_every_rank_gets_its_own_command() -> None:
    head, worker = (engine(files(plan(executor="mp"), n))["command"] for n in (0, 1))
    assert "--headless" in worker
    assert "--headless" not in head
    at = head.index("--node-rank")
    assert (head[at + 1], worker[at + 1]) == ("0", "1")
    rest = [item for n, item in enumerate(worker) if item != "--headless" and n != at + 1]
    assert rest == [item for n, item in enumerate(head) if n != at + 1]
    assert json.loads(files(plan(executor="mp"))["launch.json"])["executor"] == "mp"


def test_the_head_is_probed_on_the_port_of_the_plan() -> None:
    check = engine(files(plan(port=9999)))["healthcheck"]
    assert check["test"] == ["CMD", "python3", f"{ROOT}/entrypoint.py", "--probe", "http://127.0.0.1:9999/health"]


# --- container -------------------------------------------------------------------------------------------------------


def test_a_rank_never_restarts_alone_and_its_logs_are_bounded() -> None:
    read = engine(files(plan(stop_grace=45)))
    assert read["restart"] == "no"
    assert read["stop_grace_period"] == "45s"
    assert read["logging"]["driver"] == "json-file"
    assert set(read["logging"]["options"]) == {"max-size", "max-file"}
    assert all(isinstance(v, str) for v in read["logging"]["options"].values())
    assert (read["network_mode"], read["ipc"], read["pull_policy"]) == ("host", "host", "never")


@pytest.mark.parametrize(
    ("values", "gpu", "infiniband"),
    [
        ({"gpus": "all", "rdma": True}, True, True),
        ({"gpus": "all", "rdma": False}, True, False),
        ({"gpus": "none", "rdma": True}, False, False),
        ({"gpus": "none", "rdma": False}, False, False),
    ],
)
def test_devices_and_limits_follow_gpus_and_rdma(values: dict[str, Any], gpu: bool, infiniband: bool) -> None:
    read = engine(files(plan(**values)))
    assert ("deploy" in read) is gpu
    assert ("devices" in read, "ulimits" in read, "cap_add" in read) == (infiniband,) * 3
    if gpu:
        assert read["deploy"]["resources"]["reservations"]["devices"] == [
            {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        ]
    if infiniband:
        assert read["devices"] == ["/dev/infiniband:/dev/infiniband"]
        assert read["ulimits"]["memlock"] == -1
        assert read["cap_add"] == ["IPC_LOCK"]


def test_overlays_are_mounted_read_only_and_only_when_given() -> None:
    made = plan(verify_tokens=3)
    base = f"{ROOT}/releases/{made['release']}"
    with_overlays = engine(files(made, overlays=OVERLAYS))["volumes"]
    without = engine(files(made))["volumes"]
    assert with_overlays[: len(without)] == without
    assert with_overlays[len(without) :] == [
        {
            "type": "bind",
            "source": f"{base}/overlays/verify_width/vllm/v1/{name}.py",
            "target": f"/usr/lib/vllm/v1/{name}.py",
            "read_only": True,
            "bind": {"create_host_path": False},
        }
        for name in ("a", "b")
    ]
    assert not [v for v in without if "overlays" in v["source"]]


def test_a_stock_release_has_no_trace_of_an_overlay() -> None:
    stock, narrow = ("".join(files(plan(verify_tokens=n)).values()) for n in (0, 3))
    assert "DFLASH_VERIFY_TOKENS" not in stock
    assert "SPARKPAIR_STRUCTURED_WIDTH" not in stock
    assert "verify_width" not in stock
    assert "DFLASH_VERIFY_TOKENS='3'" in narrow
    assert "SPARKPAIR_STRUCTURED_WIDTH='stock'" in narrow
    assert "verify_width" in narrow


def test_weights_and_release_are_read_only_caches_are_not_and_no_source_is_made_up() -> None:
    made = plan()
    volumes = {v["target"]: v for v in engine(files(made))["volumes"]}
    base = f"{ROOT}/releases/{made['release']}"
    assert volumes["/opt/sparkpair/entrypoint.py"]["source"] == f"{base}/entrypoint.py"
    assert volumes["/opt/sparkpair/launch.json"]["source"] == f"{base}/launch.json"
    assert volumes["/run/sparkpair"]["source"] == f"{base}/secrets"
    writable = {t for t, v in volumes.items() if not v["read_only"]}
    assert writable == {"/root/.cache/vllm", "/root/.triton/cache", "/root/.tilelang/cache"}
    for target, volume in volumes.items():
        assert volume["type"] == "bind"
        assert volume["bind"]["create_host_path"] is (target in writable), target


# --- entrypoint ------------------------------------------------------------------------------------------------------

LAUNCH = {
    "role": "worker",
    "executor": "ray",
    "address": "10.0.0.2",
    "head_address": "10.0.0.1",
    "ranks": ["10.0.0.1", "10.0.0.2"],
    "ray": {"port": 6379, "object_store_bytes": 1000, "num_gpus": 1, "join_timeout": 60},
}
HEAD = {**LAUNCH, "role": "head", "address": "10.0.0.1"}


class Replaced(BaseException):
    """The process became another one."""


class Container:
    """The entrypoint as it stands in an image, with the parts of the world that it touches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        spec = importlib.util.spec_from_file_location("sparkpair_entrypoint", ROLE / "files" / "entrypoint.py")
        assert spec is not None
        assert spec.loader is not None
        self.module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.now = 100.0
        self.slept: list[float] = []
        self.lives: list[float | None] = []
        self.children: list[Child] = []
        self.ran: list[list[str]] = []
        self.run_code = 0
        self.while_joined: Callable[[Child], None] = lambda _: None
        self.execs: list[tuple[str, list[str]]] = []
        self.handlers: dict[int, Callable[..., Any]] = {}
        self.environment: dict[str, str] = {}
        self.folder = folder
        world = SimpleNamespace
        monkeypatch.setattr(self.module, "HERE", folder)
        monkeypatch.setattr(self.module, "API_KEY", folder / "api_key")
        monkeypatch.setattr(self.module, "time", world(monotonic=lambda: self.now, sleep=self._sleep))
        monkeypatch.setattr(self.module, "os", world(execvp=self._exec, environ=self.environment))
        monkeypatch.setattr(
            self.module,
            "signal",
            world(SIGTERM=signal.SIGTERM, SIGINT=signal.SIGINT, signal=self.handlers.__setitem__),
        )
        monkeypatch.setattr(
            self.module,
            "subprocess",
            world(Popen=self._popen, run=self._run, TimeoutExpired=subprocess.TimeoutExpired),
        )

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        assert len(self.slept) < 5000, "the entrypoint does not end"
        self.slept.append(seconds)
        self.now += seconds

    def _exec(self, file: str, argv: list[str]) -> NoReturn:
        self.execs.append((file, argv))
        raise Replaced

    def _run(self, argv: list[str], *, check: bool) -> SimpleNamespace:
        assert not check
        self.ran.append(argv)
        return SimpleNamespace(returncode=self.run_code)

    def _popen(self, argv: list[str]) -> Child:
        life = self.lives.pop(0) if len(self.lives) > 1 else self.lives[0]
        self.children.append(Child(self, argv, None if life is None else self.now + life))
        return self.children[-1]

    def main(self, launch: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        (self.folder / "launch.json").write_text(json.dumps(launch))
        monkeypatch.setattr(sys, "argv", ["/opt/sparkpair/entrypoint.py", *arguments])
        self.module.main()


class Child:
    """A ``ray start --block`` that ends at a moment, or never."""

    def __init__(self, container: Container, argv: list[str], ends: float | None) -> None:
        self.container, self.argv, self.ends = container, argv, ends
        self.did: list[str] = []
        self.stubborn = False

    def poll(self) -> int | None:
        return 1 if self.ends is not None and self.container.now >= self.ends else None

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            self.container.while_joined(self)
            return 0
        self.did.append(f"wait {timeout}")
        if self.stubborn:
            raise subprocess.TimeoutExpired("ray", timeout)
        return 0

    def terminate(self) -> None:
        self.did.append("terminate")

    def kill(self) -> None:
        self.did.append("kill")


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Container:
    return Container(monkeypatch, tmp_path)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(answers=[], did=[])

    def nodes() -> list[dict[str, Any]]:
        alive = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
        dead = [{"NodeManagerAddress": a, "Alive": False} for a in LAUNCH["ranks"]]
        return [*dead, *({"NodeManagerAddress": a, "Alive": True} for a in alive)]

    made.init = lambda **given: made.did.append(("init", given["address"]))
    made.shutdown = lambda: made.did.append(("shutdown",))
    made.nodes = nodes
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capfd.readouterr()
    assert out == ""
    return err.splitlines()


def test_lines_carry_the_mark_and_dying_ends_with_1(container: Container, capfd: pytest.CaptureFixture[str]) -> None:
    container.module.say("hello")
    with pytest.raises(SystemExit) as ended:
        container.module.die("no luck")
    assert ended.value.code == 1
    assert lines(capfd) == ["[sparkpair] hello", "[sparkpair] fatal: no luck"]


def test_ray_start_is_bound_to_the_fabric_address_with_explicit_sizes(container: Container) -> None:
    assert container.module.ray_start(LAUNCH, "--address=10.0.0.1:6379", "--block") == [
        "ray",
        "start",
        "--address=10.0.0.1:6379",
        "--block",
        "--node-ip-address=10.0.0.2",
        "--num-gpus=1",
        "--object-store-memory=1000",
        "--disable-usage-stats",
    ]


def test_a_head_starts_ray_waits_for_every_rank_and_becomes_vllm(
    container: Container, ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ray.answers = [["10.0.0.1"], ["10.0.0.1"], ["10.0.0.1", "10.0.0.9"], ["10.0.0.1", "10.0.0.2", "10.0.0.9"]]
    with pytest.raises(Replaced):
        container.main(HEAD, monkeypatch, "/model", "--x", "$HOME {{ y }}")
    (argv,) = container.ran
    assert argv[:5] == ["ray", "start", "--head", "--port=6379", "--include-dashboard=false"]
    assert "--node-ip-address=10.0.0.1" in argv
    assert container.execs == [("vllm", ["vllm", "serve", "/model", "--x", "$HOME {{ y }}"])]
    assert ray.did == [("init", "auto"), ("shutdown",)]
    assert container.slept == [0.5] * 3
    assert lines(capfd) == [
        "[sparkpair] ray head on 10.0.0.1:6379",
        "[sparkpair] waiting for ranks: 1 of 2 alive in Ray (10.0.0.1)",
        "[sparkpair] waiting for ranks: 1 of 2 alive in Ray (10.0.0.1, 10.0.0.9)",
        "[sparkpair] waiting for ranks: 2 of 2 alive in Ray (10.0.0.1, 10.0.0.2, 10.0.0.9)",
        "[sparkpair] exec vllm serve",
    ]


def test_a_head_whose_ray_does_not_start_dies_and_serves_nothing(
    container: Container, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    container.run_code = 7
    with pytest.raises(SystemExit) as ended:
        container.main(HEAD, monkeypatch, "/model")
    assert ended.value.code == 1
    assert lines(capfd)[-1] == "[sparkpair] fatal: ray start --head ended with 7"
    assert container.execs == []


def test_a_head_names_the_ranks_that_never_joined(
    container: Container, ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ray.answers = [["10.0.0.1"]]
    with pytest.raises(SystemExit):
        container.main(HEAD, monkeypatch, "/model")
    assert lines(capfd)[-1] == "[sparkpair] fatal: ranks ['10.0.0.2'] did not join Ray within 60 s"
    assert container.now == pytest.approx(160.0, abs=1.0)
    assert container.execs == []


def test_a_worker_retries_until_the_head_is_there_and_stays(
    container: Container, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    container.lives = [0.0, 4.5, None]
    with pytest.raises(SystemExit) as ended:
        container.main(LAUNCH, monkeypatch)
    assert ended.value.code == 1
    assert [c.argv[2:4] for c in container.children] == [["--address=10.0.0.1:6379", "--block"]] * 3
    assert container.slept.count(container.module.RETRY_SECONDS) == 2
    joins = "[sparkpair] ray worker 10.0.0.2 joins 10.0.0.1:6379"
    assert lines(capfd) == [
        joins,
        joins,
        joins,
        "[sparkpair] joined as a worker",
        "[sparkpair] fatal: the Ray node left the cluster (ray start ended with 0)",
    ]
    assert container.execs == []


def test_a_worker_gives_up_when_the_join_timeout_passed(
    container: Container, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    container.lives = [1.0]
    with pytest.raises(SystemExit) as ended:
        container.main(LAUNCH, monkeypatch)
    assert ended.value.code == 1
    said = lines(capfd)
    assert said[-1] == "[sparkpair] fatal: could not join Ray at 10.0.0.1:6379 within 60 s"
    assert "[sparkpair] joined as a worker" not in said
    assert 60 <= container.now - 100 <= 66
    assert len(container.children) > 10


@pytest.mark.parametrize(
    ("stubborn", "did"), [(False, ["terminate", "wait 20"]), (True, ["terminate", "wait 20", "kill"])]
)
def test_a_worker_told_to_stop_ends_its_ray_node_first(container: Container, stubborn: bool, did: list[str]) -> None:
    container.lives = [None]

    def told(child: Child) -> None:
        child.stubborn = stubborn
        container.handlers[signal.SIGTERM](signal.SIGTERM, None)

    container.while_joined = told
    with pytest.raises(SystemExit) as ended:
        container.module.worker(LAUNCH)
    assert ended.value.code == 143
    assert container.children[0].did == did
    assert set(container.handlers) == {signal.SIGTERM, signal.SIGINT}


def test_a_worker_told_to_stop_between_two_tries_just_ends(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.lives = [0.0]

    def told(seconds: float) -> None:
        container.handlers[signal.SIGINT](signal.SIGINT, None)

    monkeypatch.setattr(container.module.time, "sleep", told)
    with pytest.raises(SystemExit) as ended:
        container.module.worker(LAUNCH)
    assert ended.value.code == 130
    assert container.children[0].did == []


@pytest.mark.parametrize("launch", [{**LAUNCH, "executor": "mp"}, {**HEAD, "executor": "mp"}], ids=["worker", "head"])
def test_with_mp_a_rank_becomes_vllm_without_ray(
    container: Container, monkeypatch: pytest.MonkeyPatch, launch: Mapping[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Replaced):
        container.main(launch, monkeypatch, "/model", "--headless", "")
    assert container.execs == [("vllm", ["vllm", "serve", "/model", "--headless", ""])]
    assert (container.ran, container.children) == ([], [])


@pytest.mark.parametrize(
    ("key", "environment"), [("sesame-open", {"VLLM_API_KEY": "sesame-open"}), ("", {}), (None, {})]
)
def test_the_api_key_goes_into_the_environment_and_never_into_argv_or_the_log(
    container: Container,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    key: str | None,
    environment: dict[str, str],
) -> None:
    if key is not None:
        (container.folder / "api_key").write_text(key)
    with pytest.raises(Replaced):
        container.main({**HEAD, "executor": "mp"}, monkeypatch, "/model")
    assert container.environment == environment
    assert container.execs == [("vllm", ["vllm", "serve", "/model"])]
    assert lines(capfd) == ["[sparkpair] exec vllm serve"]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (204, 1), (299, 1)])
def test_the_probe_is_healthy_with_200_only(
    container: Container, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    asked: list[tuple[str, float]] = []

    class Answer:
        def __enter__(self) -> SimpleNamespace:
            return SimpleNamespace(status=status)

        def __exit__(self, *_: object) -> None:
            pass

    def open_url(url: str, timeout: float) -> Answer:
        asked.append((url, timeout))
        return Answer()

    def build(handler: Any) -> SimpleNamespace:
        assert handler.proxies == {}
        return SimpleNamespace(open=open_url)

    monkeypatch.setattr(container.module.urllib.request, "build_opener", build)
    with pytest.raises(SystemExit) as ended:
        container.main(HEAD, monkeypatch, "--probe", "http://127.0.0.1:8888/health")
    assert ended.value.code == code
    assert asked == [("http://127.0.0.1:8888/health", 4)]
    assert container.execs == []


def test_the_entrypoint_runs_with_nothing_but_the_standard_library() -> None:
    """The image's Python must be able to read it before Ray or vLLM is known to work."""
    code = (ROLE / "files" / "entrypoint.py").read_text()
    top = {m.split(".")[0] for m in re.findall(r"^(?:from|import) ([\w.]+)", code, re.MULTILINE)}
    assert top <= set(sys.stdlib_module_names)
    done = subprocess.run(
        [sys.executable, "-I", str(ROLE / "files" / "entrypoint.py"), "--probe", "http://127.0.0.1:1/"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
