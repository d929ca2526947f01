"""The worker of the lab after its empty cache was filled: same content, repairs, refusals, and the hub's own library.

The tests of this file build on each other in the order in which they stand.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.labtest import Run
from tests.standin.hub import Hub

HUB = "/home/spark/.cache/huggingface/hub"
TARGET = f"{HUB}/models--sparkpair-lab--tiny-target"
OTHER = "models--sparkpair-lab--tiny-mtp"
"""Of no plan of this scenario, so nothing brings it to the worker."""
GATEWAY = "10.213.77.1"
"""The machine that carries the lab, as the Sparks see it."""


def content(spark: Any) -> str:
    """Hash of every file of every planned model, by path, links followed."""
    found = f"find models--* -path {OTHER} -prune -o '(' -type f -o -type l ')' -print"
    with spark.sudo():
        return spark.check_output(f"cd {HUB} && {found} | sort | xargs sha256sum")


def shard(spark: Any) -> str:
    """Path of the target's only shard."""
    with spark.sudo():
        return spark.check_output(f"ls {TARGET}/snapshots/*/model.safetensors")


@pytest.fixture(scope="module")
def wanted(sparks: list[Any]) -> str:
    """Content of the head's cache."""
    return content(sparks[0])


def test_the_empty_cache_holds_what_the_head_holds(sparks: list[Any], wanted: str) -> None:
    """Same files, same bytes, owned by the owner of the cache, and nothing that is on its way."""
    assert content(sparks[1]) == wanted
    assert "model.safetensors" in wanted
    with sparks[1].sudo():
        assert sparks[1].check_output(f"find {HUB} ! -user spark") == ""
        assert sparks[1].check_output(f"find {HUB} -name .sparkpair") == ""


def test_a_second_run_transfers_and_hashes_nothing_in_two_executions(verb: Callable[..., Run]) -> None:
    """One SSH execution per host for the image that downloads, one for the weights; nothing changed."""
    run = verb("weights")
    assert (run.code, run.result["outcome"], run.result["changed"]) == (0, "ok", False), run.screen
    assert run.executions == {"spark-0": 2, "spark-1": 2}, run.screen
    assert "hashing weights" not in run.screen
    assert "copying weights" not in run.screen
    assert run.screen.count("complete, ") == 4


def test_a_truncated_shard_is_told_in_check_mode_and_repaired(
    sparks: list[Any], wanted: str, verb: Callable[..., Run]
) -> None:
    """Check mode names file and bytes and leaves it; the next run brings that file and no other."""
    path = shard(sparks[1])
    with sparks[1].sudo():
        sparks[1].check_output(f"truncate --size=-1 {path}")
    broken = content(sparks[1])
    check = verb("weights", "--check")
    assert check.code == 0, check.screen
    assert "would be brought, 1 of " in check.screen
    assert "model.safetensors holds " in check.screen
    assert content(sparks[1]) == broken
    refused = verb("weights", "-e", "spark_weights_transfer=none")
    assert refused.code != 0
    assert refused.result["outcome"] == "refused"
    assert content(sparks[1]) == broken
    run = verb("weights")
    assert run.code == 0, run.screen
    assert "spark-1: copying weights, done: " in run.screen
    assert content(sparks[1]) == wanted


def test_a_changed_byte_is_found_though_size_and_mtime_are_kept(
    sparks: list[Any], wanted: str, verb: Callable[..., Run]
) -> None:
    """The time of the change gives it away."""
    path = shard(sparks[1])
    with sparks[1].sudo():
        sparks[1].check_output(
            f"touch -r {path} /tmp/before && printf X | dd of={path} bs=1 seek=9999 conv=notrunc status=none "
            f"&& touch -r /tmp/before {path}"
        )
    assert content(sparks[1]) != wanted
    run = verb("weights")
    assert run.code == 0, run.screen
    assert content(sparks[1]) == wanted


def test_nothing_of_a_copy_is_left_on_the_head(sparks: list[Any]) -> None:
    """The server has ended: no process of the head listens but those of before."""
    with sparks[0].sudo():
        assert "python" not in sparks[0].check_output("ss -Hltnp src 10.213.77.10")


def test_a_cache_that_root_began_is_named_before_anything_is_copied(
    sparks: list[Any], wanted: str, verb: Callable[..., Run]
) -> None:
    """The message has folder, owner and remedy."""
    path = shard(sparks[1])
    with sparks[1].sudo():
        sparks[1].check_output(f"truncate --size=-1 {path} && chown root: {TARGET}/snapshots")
    run = verb("weights")
    assert run.code != 0
    assert f"spark-1: {TARGET}/snapshots belongs to root, but the cache" in run.screen
    assert "chown -R spark:" in run.screen
    with sparks[1].sudo():
        sparks[1].check_output(f"chown spark: {TARGET}/snapshots")
    assert verb("weights").code == 0
    assert content(sparks[1]) == wanted


def test_a_ref_that_names_another_commit_is_repaired(sparks: list[Any], wanted: str, verb: Callable[..., Run]) -> None:
    """Without a byte of weights."""
    with sparks[1].sudo():
        sparks[1].check_output(f"printf %040d 0 > {TARGET}/refs/main")
    assert content(sparks[1]) != wanted
    run = verb("weights")
    assert run.code == 0, run.screen
    assert "copying weights" not in run.screen
    assert content(sparks[1]) == wanted


def test_another_snapshot_beside_the_pinned_one_is_nobodys_business(
    sparks: list[Any], wanted: str, verb: Callable[..., Run]
) -> None:
    """It is neither compared nor removed."""
    other = f"{TARGET}/snapshots/{'d' * 40}"
    with sparks[1].sudo():
        sparks[1].check_output(f"install -d -o spark -g spark {other} && echo '{{' > {other}/config.json")
    run = verb("weights")
    assert (run.code, run.result["changed"]) == (0, False), run.screen
    with sparks[1].sudo():
        sparks[1].check_output(f"test -f {other}/config.json && rm -r {other}")
    assert content(sparks[1]) == wanted


def test_a_branch_as_revision_is_refused_without_a_connection(verb: Callable[..., Run]) -> None:
    """The plan refuses it by name."""
    run = verb("weights", "-e", "model_revision=main")
    assert run.code != 0
    assert "model_revision = 'main' (from -e)" in run.screen
    assert run.executions == {"spark-0": 0, "spark-1": 0}


def test_the_engine_images_own_library_downloads_from_a_stand_in_hub(
    sparks: list[Any], wanted: str, verb: Callable[..., Run]
) -> None:
    """A model that no Spark has: downloaded on the head in a container, copied to the worker, then removed again."""
    revision = "c" * 40
    files = {"config.json": b"{}", "model.safetensors": b"weights of nothing " * 100_000, "docs/x.md": b"not wanted"}
    with Hub("sparkpair-lab/from-hub", revision, files, address=GATEWAY) as hub:
        arguments = ["-e", "spec_method=none", "-e", "model=sparkpair-lab/from-hub", "-e", f"model_revision={revision}"]
        arguments += ["-e", "spark_weights_source=hub"]
        arguments += ["-e", json.dumps({"spark_weights_environment": {"HF_ENDPOINT": hub.url}})]
        check = verb("weights", "--check", *arguments)
        assert check.code == 0, check.screen
        assert "would be brought, 2 of 2 files" in check.screen
        assert hub.downloads() == []
        run = verb("weights", *arguments)
        assert run.code == 0, run.screen
        assert sorted(hub.downloads()) == ["config.json", "model.safetensors"]
        asked = len(hub.seen)
        again = verb("weights", *arguments)
        assert (again.code, again.result["changed"]) == (0, False), again.screen
        assert len(hub.seen) == asked
    folder = f"{HUB}/models--sparkpair-lab--from-hub"
    for spark in sparks:
        with spark.sudo():
            assert spark.check_output(f"wc -c < {folder}/snapshots/{revision}/model.safetensors") == "1900000"
            assert spark.check_output(f"cat {folder}/refs/main") == revision
            assert spark.check_output(f"find {folder} ! -user spark") == ""
            assert spark.check_output("docker ps -aq --filter name=sparkpair-weights") == ""
            # The library's own marks in hub/ go with the model.
            spark.check_output(f"rm -rf {folder} {HUB}/.locks {HUB}/CACHEDIR.TAG")
    assert [content(spark) for spark in sparks] == [wanted, wanted]


BIG = f"{HUB}/models--sparkpair-lab--big"
BIG_REVISION = "e" * 40
COPY_PORT = 29531


@pytest.fixture(scope="module")
def big(sparks: list[Any]) -> Iterator[list[str]]:
    """Arguments for a model of 600 MB that lies on the head only."""
    snapshot = f"{BIG}/snapshots/{BIG_REVISION}"
    sparks[0].check_output(
        f"mkdir -p {snapshot} && echo '{{}}' > {snapshot}/config.json && "
        f"head -c 600000000 /dev/urandom > {snapshot}/model.safetensors"
    )
    settings = {
        "spec_method": "none",
        "model": "sparkpair-lab/big",
        "model_revision": BIG_REVISION,
        "spark_weights_port": COPY_PORT,
    }
    yield ["-e", json.dumps(settings)]
    for spark in sparks:
        with spark.sudo():
            spark.check_output(f"rm -rf {BIG} /opt/sparkpair/weights/models--sparkpair-lab--big")


def test_a_rank_without_room_is_named_before_anything_is_copied(
    big: list[str], sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The worker's cache is a small file system; the message has both sizes."""
    small = "/run/lab-small"
    home = f"{{{{ '{small}' if spark_rank == 1 else '{HUB.removesuffix('/hub')}' }}}}"
    with sparks[1].sudo():
        sparks[1].check_output(
            f"mkdir -p {small} && mount -t tmpfs -o size=100m lab-small {small} && chown spark: {small}"
        )
    try:
        run = verb("weights", *big, "-e", json.dumps({"spark_hf_home": home}))
        assert run.code != 0
        assert "of weights are to come" in run.screen
        with sparks[1].sudo():
            assert sparks[1].check_output(f"find {small} -type f") == ""
    finally:
        with sparks[1].sudo():
            sparks[1].check_output(f"umount {small} && rmdir {small}")


def test_a_copy_that_breaks_is_continued_where_it_stopped(
    big: list[str], sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The connection dies on the way; what arrived stays, and nothing stands in the snapshot before it is whole."""
    worker = sparks[1]
    rule = f"OUTPUT -p tcp --dport {COPY_PORT} -m comment --comment scenario-weights -j REJECT --reject-with tcp-reset"
    results: list[Run] = []
    thread = threading.Thread(target=lambda: results.append(verb("weights", *big)))
    thread.start()
    cut = False
    while thread.is_alive() and not cut:
        with worker.sudo():
            cut = worker.run(f"find {BIG}/.sparkpair -size +1M | grep -q .").rc == 0
        time.sleep(0.05)
    with worker.sudo():
        worker.check_output(f"iptables -I {rule}")
    thread.join()
    with worker.sudo():
        worker.check_output(f"iptables -D {rule}")
        part = int(worker.check_output(f"find {BIG}/.sparkpair -type f -printf '%s\\n' | sort -n | tail -n 1"))
        assert worker.run(f"test -e {BIG}/snapshots/{BIG_REVISION}/model.safetensors").rc != 0
    assert cut
    assert results[0].code != 0
    assert "does not arrive" in results[0].screen
    assert 0 < part <= 600_000_000
    run = verb("weights", *big)
    assert run.code == 0, run.screen
    sums = [s.check_output(f"sha256sum {BIG}/snapshots/{BIG_REVISION}/*") for s in sparks]
    assert sums[0] == sums[1]
    assert not worker.file(f"{BIG}/.sparkpair").exists
