"""Verify widths one after the other on the real engine, a drifted image, and the way back to stock.

The tests of this file build on each other in the order in which they stand: each deploy takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.labtest import Run, engine, tree, weights_ledger

ROOT = "/opt/venv/lib/python3.11/site-packages"
TARGET = "vllm/v1/worker/gpu/spec_decode/utils.py"
DRIFTED = "sparkpair-lab/engine:drifted"


def fingerprint(spark: Any) -> dict[str, Any]:
    """Everything of a rank that a deploy decides: no times, no ids that Docker makes up, no secrets of one start."""
    found = engine(spark)
    with spark.sudo():
        current = spark.file("/opt/sparkpair/current").linked_to.rsplit("/", 1)[-1]
        files = spark.check_output(
            f"cd /opt/sparkpair/releases/{current} && find . -path ./secrets -prune -o -type f -printf '%p %m %u ' "
            "-exec sha256sum {} + | sort"
        )
        rest = spark.check_output("ls -A /opt/sparkpair; ls -A /opt/sparkpair/releases/ | grep -c '^\\.' || true")
    labels = {k: v for k, v in found["Config"]["Labels"].items() if not k.startswith("com.docker.compose")}
    return {
        "release": current,
        "files": files,
        "rest": rest,
        "image": found["Image"],
        "arguments": found["Config"]["Cmd"],
        "environment": sorted(found["Config"]["Env"]),
        "mounts": sorted((m["Source"], m["Destination"], m["RW"]) for m in found["Mounts"]),
        "labels": labels,
    }


@pytest.fixture(scope="module")
def stock(sparks: list[Any]) -> list[dict[str, Any]]:
    """The pair as the stock deploy of this scenario left it."""
    return [fingerprint(spark) for spark in sparks]


def test_stock_is_recorded_before_any_width(stock: list[dict[str, Any]]) -> None:
    """One release on all ranks, without a word of a width."""
    assert len({s["release"] for s in stock}) == 1
    assert "num_speculative_tokens_per_batch_size" not in json.dumps([s["arguments"] for s in stock])


@pytest.mark.parametrize("width", [3, 7, 1])
def test_each_width_is_measured_and_proved(
    stock: list[dict[str, Any]], sparks: list[Any], verb: Callable[..., Run], width: int
) -> None:
    """The measured width is the planned one, and both ranks import the pinned bytes; weights are not even read."""
    ledgers = [weights_ledger(spark) for spark in sparks]
    assert all("hashes.json" in ledger and "/hub/models--" in ledger for ledger in ledgers)
    run = verb("deploy", "-e", f"verify_tokens={width}")
    assert run.code == 0, run.screen
    assert [weights_ledger(spark) for spark in sparks] == ledgers
    assert "copying weights" not in run.screen
    assert run.result["draft_tokens_per_step"] == pytest.approx(float(width))
    assert f"verify_tokens={width} is not the recommended setting" in run.screen
    gates = {g["name"]: g for g in run.result["gates"]}
    assert gates["json"]["seen"] == "the array 1..40"
    assert 'get_weather({"city":"Warsaw"})' in gates["tool"]["seen"]
    assert gates["mixed"]["ok"]
    for spark in sparks:
        with spark.sudo():
            listed = json.loads(spark.check_output("cat /opt/sparkpair/current/overlays.json"))
            assert {o["name"] for o in listed} == {"verify_width", "gdn_runtime_width"}
            for overlay in listed:
                seen = spark.check_output(f"docker exec sparkpair-engine sha256sum {overlay['target']}").split()[0]
                assert seen == overlay["sha256_after"]
                found = spark.file(f"/opt/sparkpair/current/{overlay['source']}")
                assert (found.user, found.group, found.mode) == ("root", "root", 0o644)
    assert stock[0]["release"] != run.result["release"]


def test_mtp_drafts_with_the_targets_own_layer_and_without_any_overlay(
    stock: list[dict[str, Any]], sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """Right after a width: nothing of it is left, and there is no draft model."""
    run = verb("deploy", "-e", "spec_method=mtp")
    assert run.code == 0, run.screen
    assert run.result["draft_tokens_per_step"] == pytest.approx(2.0)
    gates = {g["name"]: g for g in run.result["gates"]}
    assert gates["stock"]["seen"] == "none on any rank"
    assert gates["acceptance"]["ok"]
    found = [fingerprint(spark) for spark in sparks]
    arguments = found[0]["arguments"]
    assert '{"method":"mtp","num_speculative_tokens":2}' in arguments
    assert "tiny-dflash" not in json.dumps(arguments)
    for mine, before in zip(found, stock, strict=True):
        assert mine["release"] == run.result["release"] != before["release"]
        assert (mine["image"], mine["environment"]) == (before["image"], before["environment"])
        # The sources of some lie in the release's own folder.
        assert {m[1:] for m in mine["mounts"]} == {m[1:] for m in before["mounts"]}


def test_image_with_one_byte_changed_is_refused_while_the_pair_serves(
    sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """A derived image with one more byte in the target file: both ranks refuse it, and nothing is stopped."""
    for spark in sparks:
        with spark.sudo():
            image = engine(spark)["Config"]["Image"]
            # The fixed time makes both ranks' layers equal; ranks whose images differ are refused for that already.
            spark.check_output(
                f"docker rm -f drift >/dev/null 2>&1; docker run --name drift --network none {image} "
                f"sh -c 'echo \"# drift\" >> {ROOT}/{TARGET} && touch -d @1000000000 {ROOT}/{TARGET}' "
                f"&& docker commit drift {DRIFTED} >/dev/null && docker rm drift"
            )
    before = [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks]
    run = verb("deploy", "-e", "verify_tokens=3", "-e", f"image={DRIFTED}")
    assert run.code != 0
    assert run.result["outcome"] == "refused"
    with sparks[0].sudo():
        observed = sparks[0].check_output(f"docker run --rm --network none {DRIFTED} sha256sum {ROOT}/{TARGET}")
    assert observed.split()[0] in run.screen
    for part in (TARGET, DRIFTED, "playbooks/pin.yml"):
        assert part in run.screen, part
    assert [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks] == before
    assert verb("status").code == 0


def test_rollback_restores_stock_byte_for_byte_in_spite_of_bad_tuning(
    stock: list[dict[str, Any]], sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The pair cannot be told from one that never had an overlay."""
    run = verb("rollback", "-e", "verify_tokens=abc", DFLASH_TOKENS="seven")
    assert run.code == 0, run.screen
    assert run.result["outcome"] == "ok"
    assert run.result["draft_tokens_per_step"] == pytest.approx(7.0)
    assert [fingerprint(spark) for spark in sparks] == stock


def test_rollback_to_a_release_that_was_never_accepted_is_refused(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """The message lists what there is, and the pair serves on."""
    before = [engine(s)["State"]["StartedAt"] for s in sparks]
    run = verb("rollback", "-e", "release=0123456789ab")
    assert run.code != 0
    assert run.result["outcome"] == "refused"
    assert "was not accepted on every rank" in run.screen
    assert [engine(s)["State"]["StartedAt"] for s in sparks] == before
