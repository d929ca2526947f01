"""Images between a registry, the head and another rank: real engines, real TLS, real interruptions, a whole deploy.

The tests build on each other in the order in which they stand.
"""

from __future__ import annotations

import ensurepip
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labtest import CHECKOUT, INVENTORY, Run, engine, weights_ledger

sys.path.insert(0, str(CHECKOUT / "molecule" / "image"))

import registry

HOST = f"{registry.ADDRESS}:{registry.PORT}"
WORK = "/var/tmp/lab-image"  # noqa: S108 - on a Spark
NAME = r"sparkpair/engine:[0-9a-f]{12}"
PLAY = "../molecule/image/converge"
STREAM_PORT = 29530
RULE = "-m comment --comment scenario-image"
ENGINE = "/opt/venv/lib/python3.11/site-packages"


def root(spark: Any, command: str) -> str:
    """Output of a shell command that root runs on a Spark."""
    with spark.sudo():
        return str(spark.check_output(command))


def layers(spark: Any, reference: str) -> list[str]:
    """Layers of an image, [] when it is not there."""
    with spark.sudo():
        done = spark.run(f"docker image inspect --format '{{{{json .RootFS.Layers}}}}' {reference}")
    return json.loads(done.stdout) if done.rc == 0 else []


@pytest.fixture
def have(verb: Callable[..., Run]) -> Callable[..., Run]:
    """Run the role with settings, without executor ray, as the tiny image has no Python."""

    def go(*arguments: str, **settings: Any) -> Run:
        values = {
            "registry_user": registry.USER,
            "registry_password_file": str(registry.FOLDER / "token"),
            "executor": "mp",
            **settings,
        }
        return verb(PLAY, *arguments, "-e", json.dumps(values))

    return go


@pytest.fixture(scope="module")
def pinned(sparks: list[Any]) -> dict[str, Any]:
    """Two contents pushed under one tag, one after the other; the tag now leads to the second. No rank keeps them."""
    head, token = sparks[0], (registry.FOLDER / "token").read_text().strip()
    root(head, f"mkdir -p {WORK} && head -c 300000000 /dev/urandom > {WORK}/big")
    found: dict[str, Any] = {}
    for content in ("first", "second"):
        root(
            head,
            f"cd {WORK} && echo {content} > a && printf 'FROM scratch\\nCOPY a /a\\nCOPY big /big\\n' > Dockerfile && "
            f"docker build -q -t {HOST}/tiny:1 . && "
            f"echo {token} | docker --config {WORK}/login login -u {registry.USER} --password-stdin {HOST} && "
            f"docker --config {WORK}/login push -q {HOST}/tiny:1",
        )
        digest = root(head, f"docker image inspect --format '{{{{index .RepoDigests 0}}}}' {HOST}/tiny:1").strip()
        found[content] = {"reference": digest, "layers": layers(head, f"{HOST}/tiny:1")}
    root(head, f"docker rmi -f {HOST}/tiny:1 {found['first']['reference']} {found['second']['reference']} || true")
    root(head, "docker image prune -f")
    assert found["first"]["reference"] != found["second"]["reference"]
    assert layers(head, found["first"]["reference"]) == []
    return found


@pytest.fixture
def cut_off(sparks: list[Any]) -> Iterator[None]:
    """The worker has no way to the registry."""
    rule = f"OUTPUT -d {registry.ADDRESS} -p tcp --dport {registry.PORT} {RULE} -j REJECT"
    root(sparks[1], f"iptables -I {rule}")
    yield
    root(sparks[1], f"iptables -D {rule}")


def named(run: Run) -> str:
    """The name that the run gave the image."""
    found = re.search(NAME, run.screen)
    assert found, run.screen
    return found.group()


def test_check_mode_says_what_would_be_pulled(
    have: Callable[..., Run], pinned: dict[str, Any], sparks: list[Any]
) -> None:
    """Nothing is there afterwards."""
    image = pinned["first"]["reference"]
    run = have("--check", image=image)
    assert run.code == 0, run.screen
    assert f"spark-0: pull {image}" in run.screen
    assert [layers(s, image) for s in sparks] == [[], []]


def test_a_wrong_password_is_refused_and_not_shown(
    have: Callable[..., Run], pinned: dict[str, Any], tmp_path: Path
) -> None:
    """The registry says no, and the message says what to correct."""
    wrong = tmp_path / "token"
    wrong.write_text("not-the-password\n")
    wrong.chmod(0o600)
    run = have("-vvv", image=pinned["first"]["reference"], registry_password_file=str(wrong))
    assert run.code != 0
    assert f"the login of {registry.USER} to {HOST} was refused" in run.screen
    assert "not-the-password" not in run.screen


@pytest.mark.usefixtures("cut_off")
def test_a_rank_without_a_way_to_the_registry_cannot_pull(have: Callable[..., Run], pinned: dict[str, Any]) -> None:
    """It is named, with what Docker said."""
    run = have(image=pinned["first"]["reference"], image_transfer="pull")
    assert run.code != 0
    assert re.search(r"fatal: \[spark-1\].*docker (login|pull)|spark-1.*was refused", run.screen, re.S), run.screen


@pytest.mark.usefixtures("cut_off")
def test_it_receives_the_pinned_content_from_the_head_although_the_tag_moved(
    have: Callable[..., Run], pinned: dict[str, Any], sparks: list[Any]
) -> None:
    """Both ranks hold the first content under one name, and a second run moves nothing."""
    image = pinned["first"]["reference"]
    run = have(image=image)
    assert run.code == 0, run.screen
    name = named(run)
    assert [layers(s, name) for s in sparks] == [pinned["first"]["layers"]] * 2
    again = have(image=image)
    assert again.code == 0, again.screen
    assert again.executions == {"spark-0": 1, "spark-1": 1}
    assert again.screen.count("changed=0") == 2
    for spark in sparks:
        assert "auths" not in root(spark, "cat /root/.docker/config.json 2>/dev/null || true")


def test_an_interrupted_transfer_leaves_no_name_and_runs_again(
    have: Callable[..., Run], pinned: dict[str, Any], sparks: list[Any]
) -> None:
    """The connection dies while the image is on its way."""
    image, worker = pinned["second"]["reference"], sparks[1]
    rule = f"INPUT -p tcp --sport {STREAM_PORT} {RULE} -j REJECT --reject-with tcp-reset"
    results: list[Run] = []
    thread = threading.Thread(target=lambda: results.append(have(image=image)))
    thread.start()
    cut = False
    while thread.is_alive() and not cut:
        with worker.sudo():
            cut = worker.run("pgrep -fx 'docker load -q'").rc == 0
        time.sleep(0.05)
    root(worker, f"iptables -I {rule}")
    thread.join()
    root(worker, f"iptables -D {rule}")
    assert cut
    assert results[0].code != 0
    assert "was not received" in results[0].screen
    assert "was not sent everywhere" in results[0].screen
    name = named(results[0])
    assert layers(sparks[0], name) == pinned["second"]["layers"]
    assert layers(worker, name) == []
    run = have(image=image)
    assert run.code == 0, run.screen
    assert layers(worker, name) == pinned["second"]["layers"]


@pytest.fixture
def other_engine(sparks: list[Any], request: pytest.FixtureRequest) -> Iterator[str]:
    """A second engine on the worker, with the configuration and the room for images that the test asks for."""
    worker, folder = sparks[1], "/run/lab-other"
    config, size = request.param
    socket = f"unix://{folder}/docker.sock"
    root(
        worker,
        f"mkdir -p {folder}/root && mount -t tmpfs -o size={size} lab-other {folder}/root && "
        f"echo {shlex.quote(json.dumps(config))} > {folder}/daemon.json && "
        f"(setsid dockerd --config-file {folder}/daemon.json --data-root {folder}/root --exec-root {folder}/exec "
        f"--pidfile {folder}/pid -H {socket} --bridge none --iptables=false --containerd-namespace lab-other "
        f"--containerd-plugins-namespace lab-other-plugins >{folder}/log 2>&1 &) ; "
        f"for i in $(seq 100); do docker -H {socket} info >/dev/null 2>&1 && break; sleep 0.2; done; "
        f"docker -H {socket} info >/dev/null",
    )
    yield socket
    root(
        worker,
        f"docker -H {socket} images -q | sort -u | xargs -r docker -H {socket} rmi -f; "
        f"kill $(cat {folder}/pid); while [ -e {folder}/pid ]; do sleep 0.2; done; "
        f"umount {folder}/root; rm -rf {folder}",
    )


@pytest.mark.parametrize("other_engine", [({"storage-driver": "overlay2"}, "100m")], indirect=True)
def test_a_full_disk_is_named_and_leaves_nothing(
    have: Callable[..., Run], pinned: dict[str, Any], sparks: list[Any], other_engine: str
) -> None:
    """The rank says why, and no image of that name is in its engine."""
    run = have(image=pinned["first"]["reference"], other_rank="spark-1", other_engine=other_engine)
    assert run.code != 0
    assert "no space left on device" in run.screen
    assert root(sparks[1], f"docker -H {other_engine} images -q").split() == []


CONTAINERD = {"features": {"containerd-snapshotter": True}, "storage-driver": "native"}


@pytest.mark.parametrize("other_engine", [(CONTAINERD, "1g")], indirect=True)
def test_a_rank_with_the_other_image_store_has_another_id_and_the_same_content(
    have: Callable[..., Run], pinned: dict[str, Any], sparks: list[Any], other_engine: str
) -> None:
    """Received once, and told to be the head's at the second run."""
    settings = {"image": pinned["first"]["reference"], "other_rank": "spark-1", "other_engine": other_engine}
    run = have(**settings)
    assert run.code == 0, run.screen
    name = named(run)
    asked = "docker {} image inspect --format {{{{.Id}}}} " + name
    assert root(sparks[0], asked.format("")) != root(sparks[1], asked.format(f"-H {other_engine}"))
    again = have(**settings)
    assert again.code == 0, again.screen
    assert again.executions == {"spark-0": 1, "spark-1": 1}


@pytest.fixture(scope="module")
def without_ray(sparks: list[Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lab's engine image without Ray but with pip, on the head only; and wheels in a folder of the head."""
    wheels = tmp_path_factory.mktemp("wheels")
    lock = CHECKOUT / "roles" / "spark_image" / "files" / "ray-2.60.0.txt"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"),
            *("--python-version", "3.11", "--require-hashes", "-r", str(lock), "-d", str(wheels)),
        ],
        check=True,
    )
    pip = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    (wheels / pip.name).write_bytes(pip.read_bytes())
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("ansible")), "-i", str(INVENTORY), "spark-0", "-b"),
            *("-m", "ansible.builtin.copy", "-a", f"src={wheels}/ dest={WORK}/wheels/ mode=0644 directory_mode=0755"),
        ],
        check=True,
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
    )
    head = sparks[0]
    root(
        head,
        f"mkdir -p {WORK}/base && cd {WORK}/base && mv {WORK}/wheels/{pip.name} . && "
        f"printf 'FROM sparkpair-lab/engine:0.32.0\\nCOPY {pip.name} /tmp/\\nRUN python3 -m zipfile -e /tmp/{pip.name} "
        f"{ENGINE} && rm -rf {ENGINE}/ray {ENGINE}/ray-*.dist-info {ENGINE}/msgpack*\\n' > Dockerfile && "
        "docker build -q --force-rm --network none -t lab-image/without-ray:1 .",
    )
    return "lab-image/without-ray:1"


def test_before_the_first_deploy_a_width_is_tried_on_what_the_image_comes_from(
    verb: Callable[..., Run], without_ray: str, sparks: list[Any]
) -> None:
    """The derived image is nowhere yet: the head looks at its base, the worker has not even that and says so."""
    settings = {"image": without_ray, "executor": "ray", "ray_version": "2.60.0", "ray_wheels": f"{WORK}/wheels"}
    given = ["-e", json.dumps({**settings, "verify_tokens": 3})]
    check = verb("deploy", "--check", *given)
    assert check.code == 0, check.screen
    told = re.findall(rf"overlays \S+(?:, \S+)* were not checked: image {NAME} is not on this rank", check.screen)
    assert len(told) == 1, check.screen
    assert layers(sparks[1], without_ray) == []
    pins = verb("pin", *given)
    assert pins.code == 0, pins.screen
    assert "pinned" in pins.screen


def test_an_image_without_ray_gets_it_on_the_head_and_the_rank_the_same_bits(
    have: Callable[..., Run], without_ray: str, sparks: list[Any]
) -> None:
    """Built without a network, and sent without the layers that the rank holds."""
    settings = {"image": without_ray, "executor": "ray", "ray_version": "2.60.0", "ray_wheels": f"{WORK}/wheels"}
    run = have("-v", **settings)
    assert run.code == 0, run.screen
    name = named(run)
    assert layers(sparks[0], name) == layers(sparks[1], name) != []
    program = "import ray, msgpack; print(ray.__version__)"
    for spark in sparks:
        asked = f"docker run --rm --network none --entrypoint python3 {name} -c '{program}'"
        assert root(spark, asked).split()[-1] == "2.60.0"
    left_out = [int(n) for n in re.findall(r'"left_out": (\d+)', run.screen)]
    assert max(left_out) > 0, run.screen
    again = have(**settings)
    assert again.code == 0, again.screen
    assert again.executions == {"spark-0": 1, "spark-1": 1}


@pytest.fixture(scope="module")
def engine_in_registry(sparks: list[Any]) -> str:
    """The lab's engine with one layer more, in the registry only; its name with digest."""
    head, token, name = sparks[0], (registry.FOLDER / "token").read_text().strip(), f"{HOST}/engine:1"
    root(
        head,
        f"mkdir -p {WORK}/engine && cd {WORK}/engine && head -c 1000000 /dev/urandom > mark && "
        f"printf 'FROM sparkpair-lab/engine:0.32.0\\nCOPY mark /mark\\n' > Dockerfile && "
        f"docker build -q -t {name} . && "
        f"echo {token} | docker --config {WORK}/login login -u {registry.USER} --password-stdin {HOST} && "
        f"docker --config {WORK}/login push -q {name}",
    )
    digest = root(head, f"docker image inspect --format '{{{{index .RepoDigests 0}}}}' {name}").strip()
    root(head, f"docker rmi {name} {digest} || true; docker image prune -f")
    assert [layers(spark, digest) for spark in sparks] == [[], []]
    return digest


@pytest.fixture
def bare_worker(sparks: list[Any]) -> Iterator[None]:
    """The worker has no weights, no rank knows a manifest, and nothing serves."""
    hub, aside = "/home/spark/.cache/huggingface/hub", "/home/spark/.cache/huggingface/aside"
    root(sparks[1], f"mv {hub} {aside}")
    for spark in sparks:
        root(spark, "rm -rf /opt/sparkpair/weights")
    yield
    root(sparks[1], f"rm -rf {hub} && mv {aside} {hub}")
    for spark in sparks:
        root(spark, "rm -rf /opt/sparkpair/weights")


def moved(spark: Any, since: str) -> list[str]:
    """Docker's events about images since then that bring or send layers."""
    shown = root(
        spark, f"docker events --since {since} --until $(date +%s) --filter type=image --format '{{{{.Action}}}}'"
    )
    return [action for action in shown.split() if action in {"pull", "push", "load", "save", "import"}]


@pytest.mark.usefixtures("bare_worker", "cut_off")
def test_one_deploy_brings_image_and_weights_to_a_rank_without_a_way_to_the_registry(
    verb: Callable[..., Run], engine_in_registry: str, sparks: list[Any]
) -> None:
    """The pair serves with the real engine; a whole second deploy after a stop transfers nothing and hashes nothing."""
    values = {
        "image": engine_in_registry,
        "registry_user": registry.USER,
        "registry_password_file": str(registry.FOLDER / "token"),
    }
    given = ["-e", json.dumps(values)]
    assert verb("stop").code == 0
    before = [root(spark, "date +%s").strip() for spark in sparks]
    first = verb("deploy", *given)
    assert (first.code, first.result["outcome"]) == (0, "ok"), first.screen
    assert [moved(spark, since) for spark, since in zip(sparks, before, strict=True)] == [["pull", "save"], ["load"]]
    name = named(first)
    assert layers(sparks[0], name) == layers(sparks[1], name) != []
    assert [engine(spark)["Config"]["Image"] for spark in sparks] == [name, name]
    ledger = [weights_ledger(spark) for spark in sparks]
    assert all("model.safetensors" in kept for kept in ledger)
    assert verb("stop").code == 0
    time.sleep(1)
    before = [root(spark, "date +%s").strip() for spark in sparks]
    again = verb("deploy", *given)
    assert (again.code, again.result["outcome"]) == (0, "ok"), again.screen
    assert [moved(spark, since) for spark, since in zip(sparks, before, strict=True)] == [[], []]
    assert [weights_ledger(spark) for spark in sparks] == ledger
    assert verb("stop").code == 0
