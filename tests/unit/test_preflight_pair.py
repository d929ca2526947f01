"""The pair's preflight: parity between ranks, clock skew that is certain, hosts that cannot be asked, one verdict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sparkpair.preflight import check
from sparkpair.preflight_host import Options, Thresholds
from sparkpair.preflight_pair import Outcome, finding_lines, join, same_image

from tests.fixtures.host_tree import kit

RANKS = {"spark-0": 0, "spark-1": 1}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a healthy pair, as the action registers them."""
    results = {}
    for spark in kit("one_cable"):
        host = spark.build(tmp_path_factory.mktemp("spark"))
        result = check(host, spark.plan, spark.rank, Options(probe_image=True))
        wall = result["time"]["wall"]
        clock = {"sent": wall - 0.5, "received": wall + result["time"]["elapsed"] + 0.5}
        results[f"spark-{spark.rank}"] = result | {"clock": clock, "reached": True}
    return results


@pytest.fixture
def results(healthy: dict[str, Any]) -> dict[str, Any]:
    """A copy that a test may break."""
    return copy.deepcopy(healthy)


def judge(results: dict[str, Any], **more: Any) -> Outcome:
    return join(results, ranks=RANKS, **more)


def test_a_healthy_pair_is_ready(results: dict[str, Any]) -> None:
    outcome = judge(results)
    assert outcome.findings == []
    assert outcome.verdict == "ready"
    assert [line.split()[:3] for line in outcome.table[1:]] == [["0", "spark-0", "ready"], ["1", "spark-1", "ready"]]


def fact(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A fault: one fact of rank 1 is another."""

    def plant(results: dict[str, Any]) -> None:
        results["spark-1"]["facts"][name] = value

    return plant


def other_image(results: dict[str, Any]) -> None:
    results["spark-1"]["facts"]["image"] |= {"digests": ["sha256:" + "f" * 64], "layers": "sha256:" + "e" * 64}


def skewed(seconds: float) -> Callable[[dict[str, Any]], None]:
    """A fault: the clock of rank 1 is ahead."""

    def plant(results: dict[str, Any]) -> None:
        results["spark-1"]["time"]["wall"] += seconds

    return plant


@pytest.mark.parametrize(
    ("plant", "name", "level", "observed"),
    [
        pytest.param(fact("kernel", "6.17.0-1021-nvidia"), "parity", "degraded", "kernel: rank 0 has", id="kernel"),
        pytest.param(fact("driver", "580.99"), "parity", "degraded", "rank 1 has 580.99", id="driver"),
        pytest.param(fact("docker", "29.0.1"), "parity", "degraded", "Docker: rank 0 has 28.3.3", id="docker"),
        pytest.param(fact("compose", "2.40.0"), "parity", "info", "Compose: rank 0", id="compose"),
        pytest.param(
            fact("storage_driver", "overlayfs (containerd)"), "parity", "degraded", "(containerd)", id="image_store"
        ),
        pytest.param(fact("ray", "2.58.0"), "parity", "blocked", "rank 1 has 2.58.0", id="ray"),
        pytest.param(fact("mtu", 1500), "parity", "blocked", "rank 0 has 9000, rank 1 has 1500", id="mtu"),
        pytest.param(other_image, "parity", "info", "image: rank 0 has sha256:9bb1557a", id="image"),
        pytest.param(skewed(5), "clock", "degraded", "differ by at least 4.0 s", id="clock_off"),
        pytest.param(skewed(-3600), "clock", "blocked", "differ by at least 3599.0 s", id="clock_off_by_an_hour"),
    ],
)
def test_one_difference_gives_its_one_finding(
    plant: Callable[[dict[str, Any]], None], name: str, level: str, observed: str, results: dict[str, Any]
) -> None:
    plant(results)
    outcome = judge(results)
    assert [(f["check"], f["level"], f["rank"]) for f in outcome.findings] == [(name, level, 1)]
    assert observed in outcome.findings[0]["observed"]
    assert outcome.verdict == ("ready" if level == "info" else level)


def test_a_host_without_login_is_named_beside_the_findings_of_the_others(results: dict[str, Any]) -> None:
    results["spark-0"]["findings"] = [
        {"check": "swap", "level": "degraded", "rank": 0, "observed": "o", "wanted": "w", "remedy": "r"}
    ]
    results["spark-1"] = {"reached": False, "msg": "Permission denied (publickey)"}
    outcome = judge(results)
    assert [(f["check"], f["level"], f["rank"]) for f in outcome.findings] == [
        ("reach", "blocked", 1),
        ("swap", "degraded", 0),
    ]
    assert "Permission denied (publickey)" in outcome.findings[0]["observed"]
    assert outcome.verdict == "blocked"


def test_a_host_without_any_result_blocks(results: dict[str, Any]) -> None:
    del results["spark-1"]
    assert [f["observed"] for f in judge(results).findings] == ["spark-1 was not checked: no result"]


def test_mtu_reset_on_one_rank_is_one_finding(tmp_path: Path, results: dict[str, Any]) -> None:
    spark = kit("one_cable")[1]
    spark.link.mtu = 1500
    results["spark-1"] |= check(spark.build(tmp_path), spark.plan, 1, Options(probe_image=True))
    assert [(f["check"], f["level"]) for f in judge(results).findings] == [("parity", "blocked")]


def test_a_wrong_kernel_of_one_rank_hides_no_difference_between_the_others(results: dict[str, Any]) -> None:
    results["spark-2"] = copy.deepcopy(results["spark-1"])
    results["spark-2"]["facts"]["kernel"] = "6.11.0"
    fact("kernel", "7.0.0-1019-nvidia")(results)
    own = {"check": "kernel", "level": "blocked", "rank": 1, "observed": "o", "wanted": "w", "remedy": "r"}
    results["spark-1"]["findings"] = [own]
    outcome = join(results, ranks=RANKS | {"spark-2": 2})
    assert [(f["check"], f["rank"]) for f in outcome.findings] == [("kernel", 1), ("parity", 2)]


@pytest.mark.parametrize("lacking", [False, True])
def test_room_to_send_the_image_is_wanted_only_where_a_rank_lacks_it(
    lacking: bool, results: dict[str, Any], tmp_path: Path
) -> None:
    spark = kit("one_cable")[0]
    spark.free = {"/": 20 * 1024**3}
    for prefix in ("model", "dflash"):
        spark.files[f"{spark.snapshot(prefix)}/x"] = "x"
    limits = Thresholds.read({"weights_bytes": 0, "draft_bytes": 0})
    own = check(spark.build(tmp_path), spark.plan, 0, Options(thresholds=limits), only=["disk", "image"])
    results["spark-0"] |= {"findings": own["findings"]}
    assert [f["level"] for f in own["findings"]] == ["degraded"]
    if lacking:
        results["spark-1"]["facts"]["image"] = None
    assert [f["check"] for f in judge(results).findings] == (["disk"] if lacking else [])


def test_checks_that_only_the_image_can_answer_are_named_when_it_was_not_asked(
    results: dict[str, Any], tmp_path: Path
) -> None:
    assert judge(results).unasked == []
    spark = kit("one_cable")[0]
    results["spark-0"] |= check(spark.build(tmp_path), spark.plan, 0, Options())
    outcome = judge(results)
    assert (outcome.verdict, outcome.unasked) == ("ready", ["ray", "engine_flags", "self_check"])
    assert outcome.lines[-2].startswith("not judged: ray, engine_flags, self_check; the image was not asked.")
    assert outcome.lines[-1] == "preflight: ready"


def test_a_slow_login_is_not_taken_for_clock_skew(results: dict[str, Any]) -> None:
    result = results["spark-1"]
    result["clock"]["received"] += 30
    result["time"]["wall"] += 29
    assert judge(results).findings == []


def test_clocks_without_stamps_are_not_compared(results: dict[str, Any]) -> None:
    skewed(3600)(results)
    del results["spark-1"]["clock"]
    assert judge(results).findings == []


def test_checks_between_ranks_can_be_switched_off(results: dict[str, Any]) -> None:
    fact("driver", "1")(results)
    skewed(100)(results)
    assert judge(results, skip=["parity", "clock"]).findings == []
    del results["spark-1"]
    assert judge(results, skip=["parity", "clock", "reach"]).findings == []


def test_clock_limits_are_settable(results: dict[str, Any]) -> None:
    skewed(5)(results)
    assert judge(results, thresholds=Thresholds.read({"clock_warn_seconds": 10})).findings == []


def test_another_image_blocks_once_images_were_put_in_place(results: dict[str, Any]) -> None:
    other_image(results)
    assert judge(results, staged=True).verdict == "blocked"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param({"digests": ["d"], "layers": "other"}, True, id="digest_equal"),
        pytest.param({"digests": [], "layers": "l"}, True, id="shipped_by_save_and_load"),
        pytest.param({"digests": [], "layers": "other"}, False, id="other_layers"),
        pytest.param({"digests": ["e"], "layers": ""}, False, id="layers_unknown"),
    ],
)
def test_images_are_compared_by_content_never_by_local_id(other: dict[str, Any], same: bool) -> None:
    assert same_image({"digests": ["d"], "layers": "l", "id": "x"}, other | {"id": "x"}) is same


def test_findings_read_worst_first_with_wanted_and_remedy(results: dict[str, Any]) -> None:
    fact("driver", "1")(results)
    fact("ray", "1")(results)
    outcome = judge(results)
    assert [f["level"] for f in outcome.findings] == ["blocked", "degraded"]
    assert finding_lines(outcome.of("blocked")) == [
        "blocked: rank 1, parity: Ray in the image: rank 0 has 2.60.0, rank 1 has 1",
        "  wanted: the same Ray in the image on every rank",
        "  remedy: let every rank have the same image",
    ]


def test_three_ranks_are_compared_as_well(results: dict[str, Any]) -> None:
    results["spark-2"] = copy.deepcopy(results["spark-1"])
    results["spark-2"]["facts"]["driver"] = "1"
    outcome = join(results, ranks=RANKS | {"spark-2": 2})
    assert [(f["check"], f["rank"]) for f in outcome.findings] == [("parity", 2)]
