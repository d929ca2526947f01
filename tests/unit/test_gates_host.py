"""Gates about the Sparks: what fires them, what does not, and what is stated instead of assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sparkpair import gates, gates_host, kernel, live, metrics, sensors
from sparkpair.gatekit import Situation
from sparkpair.runner import Completed

from tests.planning import plan

PLAN = plan(verify_tokens=0)
GIB = 1 << 20
METRIC = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4096"} 1.0\n'


def state(**changed: Any) -> dict[str, Any]:
    """A cool rank with memory to spare and a quiet kernel."""
    return {
        "sensors": {"hottest": {"sensor": "gpu 0", "celsius": 61.0}, "missing": None},
        "memory": {"MemAvailable": 20 * GIB},
        "kernel": {"lines": [], "missing": None},
        **changed,
    }


def situation(worker: dict[str, Any], **more: Any) -> Situation:
    """A healthy head beside this worker."""
    return Situation(PLAN, {0: state(), 1: worker}, **more)


# --- temperature, memory, kernel -------------------------------------------------------------------------------------


def hot(celsius: float) -> dict[str, Any]:
    """Readings of a rank at this temperature."""
    return {"hottest": {"sensor": "gpu 0", "celsius": celsius}, "missing": None}


@pytest.mark.parametrize(("celsius", "passes"), [(89.9, True), (90.0, False), (103.0, False)])
def test_a_rank_at_the_pause_threshold_fails(celsius: float, passes: bool) -> None:
    seen = gates_host.judge_temperature(situation(state(sensors=hot(celsius))), [])
    assert seen.ok == passes
    assert f"spark-1: {celsius:.0f} C (gpu 0)" in seen.seen
    assert gates_host.judge_temperature(situation(state(sensors=hot(celsius)), limits={"celsius": 110}), []).ok


def test_the_pause_of_a_rank_that_cooled_down_is_told() -> None:
    seen = gates_host.judge_temperature(situation(state(sensors=hot(85), cooled=35.0)), [])
    assert seen.ok
    assert "spark-0: 61 C (gpu 0);" in seen.seen
    assert "spark-1: 85 C (gpu 0) after a pause of 35 s" in seen.seen


def test_a_missing_sensor_is_stated() -> None:
    missing = {"hottest": None, "missing": "no sensor: nvidia-smi: not found"}
    seen = gates_host.judge_temperature(situation(state(sensors=missing)), [])
    assert seen.ok
    assert "spark-1: no sensor: nvidia-smi: not found" in seen.seen


def test_a_rank_without_headroom_fails() -> None:
    seen = gates_host.judge_memory(situation(state(memory={"MemAvailable": GIB})), [])
    assert (seen.ok, seen.seen) == (False, "spark-1: 1.0 GiB available")
    assert gates_host.judge_memory(situation(state()), []).ok
    assert gates_host.judge_memory(situation(state(memory={"MemAvailable": GIB}), limits={"headroom_gib": 0.5}), []).ok
    assert not gates_host.judge_memory(situation(state(memory={})), []).ok


def test_an_alarming_kernel_line_fails_and_a_log_that_cannot_be_read_is_stated() -> None:
    seen = gates_host.judge_kernel(situation(state(kernel={"lines": ["NVRM: Xid 79"], "missing": None})), [])
    assert (seen.ok, seen.seen) == (False, "spark-1: NVRM: Xid 79")
    seen = gates_host.judge_kernel(situation(state(kernel={"lines": [], "missing": "cannot be read"})), [])
    assert (seen.ok, seen.seen) == (True, "spark-1: cannot be read")
    assert gates_host.judge_kernel(situation(state()), []).seen == "none on any rank"


@pytest.mark.parametrize("judge", [gates_host.judge_temperature, gates_host.judge_memory, gates_host.judge_kernel])
def test_a_rank_that_was_not_read_is_not_assumed_to_be_well(judge: Any) -> None:
    assert judge(Situation(PLAN, {0: state(), 1: state()}), []).ok
    seen = judge(Situation(PLAN, {0: state(), 1: None}), [])
    assert (seen.ok, seen.seen) == (False, "spark-1: not read")


LOG = """2026-03-01T00:00:01+0000 h kernel: NVRM: loading NVIDIA UNIX Open Kernel Module
2026-03-01T00:00:02+0000 h kernel: usb 1-1: new device
{}
"""


@pytest.mark.parametrize(
    ("line", "alarming"),
    [
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.", True),
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: nvAssertFailedNoLog: Assertion failed", True),
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: GPU at PCI:000f:01:00: GPU-5f1c", True),
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: The NVIDIA GPU 000f:01:00.0 is not accessible", True),
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!", True),
        ("2026-03-01T00:00:03+0000 h kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64", False),
        ("2026-03-01T00:00:03+0000 h kernel: Out of memory: Killed process 7 (VLLM::Worker)", True),
        ("2026-03-01T00:00:03+0000 h kernel: oom-kill:constraint=CONSTRAINT_NONE", True),
        ("2026-03-01T00:00:03+0000 h kernel: mlx5_core 0000:01:00.0: Port module event", False),
    ],
)
def test_kernel_lines_of_gpu_errors_and_lack_of_memory_alarm(line: str, alarming: bool) -> None:
    asked: list[list[str]] = []

    def runner(argv: Any, **_: Any) -> Completed:
        asked.append(list(argv))
        return Completed(0, LOG.format(line), "")

    found = kernel.since(runner, "2026-03-01T00:00:00.123456789Z")
    assert found == {"lines": [line] if alarming else [], "missing": None}
    assert "--since=2026-03-01 00:00:00 UTC" in asked[0]


def test_a_kernel_log_that_cannot_be_read_says_why() -> None:
    found = kernel.since(lambda *_, **__: Completed(127, "", "journalctl: not found"), "2026-03-01T00:00:00Z")
    assert found == {"lines": [], "missing": "the kernel log cannot be read: journalctl: not found"}


# --- pausing ---------------------------------------------------------------------------------------------------------


def test_traffic_waits_until_a_hot_head_has_cooled_down(tmp_path: Path) -> None:
    readings, now = ["95", "92", "85"], [0.0]

    def runner(*_: Any, **__: Any) -> Completed:
        return Completed(0, f"0, {readings.pop(0) if len(readings) > 1 else readings[0]}\n", "")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    given = {"zones": tmp_path, "clock": lambda: now[0], "sleep": sleep}
    assert sensors.cool_down(runner, 90.0, 60.0, **given) == 2 * sensors.COOLING_SECONDS
    assert sensors.cool_down(runner, 80.0, 12.0, **given) == 12.0
    assert sensors.cool_down(runner, 80.0, 0.0, **given) == 0.0
    none = Completed(127, "", "nvidia-smi: not found")
    assert sensors.cool_down(lambda *_, **__: none, 80.0, 60.0, **given) == 0.0


def test_reading_a_cool_sensor_slowly_is_no_pause(tmp_path: Path) -> None:
    now = [0.0]

    def runner(*_: Any, **__: Any) -> Completed:
        now[0] += 7
        return Completed(0, "0, 50\n", "")

    assert sensors.cool_down(runner, 90.0, 60.0, zones=tmp_path, clock=lambda: now[0], sleep=lambda _: None) == 0.0


# --- the KV pool -----------------------------------------------------------------------------------------------------


def entry(tokens: float, **changed: Any) -> dict[str, Any]:
    """An accepted run with the memory settings of the plan."""
    basis = gates_host.pool_basis(PLAN["settings"])
    figures = {"kv_pool_tokens": tokens}
    common = {"outcome": "accepted", "release": PLAN["release"], "figures": figures, "memory_settings": basis}
    return {**common, **changed}


def answer(text: str = METRIC, status: int = 200) -> list[dict[str, Any]]:
    """What the engine answers."""
    return [{"id": "kv_pool", "status": status, "error": None, "text": text, "json": None}]


@pytest.mark.parametrize(
    ("history", "passes"),
    [
        ([], True),
        ([entry(65_536)], True),
        ([entry(72_000)], True),
        ([entry(100_000)], False),
        ([entry(100_000), entry(66_000)], False),
        ([entry(n) for n in (80_000, 75_000, 70_000, 68_000, 66_000)], False),
        ([entry(80_000), *[entry(66_000)] * 5], True),
        ([entry(80_000), *[entry(66_000, memory_settings={})] * 5], False),
        ([entry(100_000, outcome="rolled_back")], True),
        ([entry(100_000, memory_settings={"gpu_mem_util": 0.9})], True),
        ([entry(100_000, figures={})], True),
    ],
    ids=[
        "first",
        "equal",
        "within a tenth",
        "smaller",
        "not only the last",
        "losses add up",
        "long ago",
        "others between",
        "not accepted",
        "other settings",
        "unknown",
    ],
)
def test_a_pool_that_shrank_fails(history: list[dict[str, Any]], passes: bool) -> None:
    seen = gates_host.judge_pool(situation(state(), history=history), answer())
    assert seen.ok == passes
    assert seen.figures == {"kv_pool_tokens": 65_536.0}


@pytest.mark.parametrize(
    ("history", "passes"),
    [
        ([entry(65_536), entry(87_296, release="other", memory_settings={})], True),
        ([entry(65_536), entry(87_296, release="other", memory_settings={"gpu_mem_util": 0.9})], True),
        ([entry(87_296, release="other"), entry(65_536, memory_settings={})], True),
        ([entry(87_296), entry(65_536, memory_settings={})], False),
        ([entry(87_296, release="other"), entry(66_000)], False),
    ],
    ids=[
        "unknown settings",
        "other settings",
        "own settings unknown",
        "shrank since its acceptance",
        "shrank since another",
    ],
)
def test_a_release_on_record_is_compared_by_the_settings_of_its_own_acceptance(
    history: list[dict[str, Any]], passes: bool
) -> None:
    """Its plan has no settings: a return failed on the pool of a release that had others, and the pair was down."""
    recorded = live.named(PLAN, dict(enumerate(("spark-0", "spark-1"))))
    where = Situation(recorded, {0: state(), 1: state()}, history=history)
    assert gates_host.judge_pool(where, answer()).ok == passes


def test_a_pool_that_is_no_longer_told_fails() -> None:
    """The metric was there at the last acceptance, and nobody knows why it is not any more."""

    def judged(*history: dict[str, Any]) -> tuple[bool, str]:
        seen = gates_host.judge_pool(situation(state(), history=list(history)), answer(""))
        return seen.ok, seen.seen

    untold = "the engine does not tell the size of its pool"
    assert judged(entry(65_536)) == (False, f"{untold}, and told 65536 tokens at the last acceptance")
    assert judged(entry(65_536), entry(0, figures={})) == (True, untold)
    assert judged(entry(65_536, memory_settings={})) == (True, untold)


def test_an_engine_that_does_not_tell_its_pool_is_stated_and_one_that_does_not_answer_fails() -> None:
    untold = METRIC.replace("4096", "None")
    assert metrics.kv_pool_tokens(untold) is None
    assert metrics.kv_pool_tokens("") is None
    assert "does not tell" in gates_host.judge_pool(situation(state()), answer(untold)).seen
    assert not gates_host.judge_pool(situation(state()), answer(status=500)).ok


def test_the_gates_after_the_traffic_run_by_name_only() -> None:
    regular = [gate.name for gate, _ in gates.choose()]
    assert "kv_pool" in regular
    assert not {"temperature", "memory", "kernel"} & set(regular)
    named = gates.choose(only=["ranks", "temperature", "memory", "kernel"], skip=["temperature"])
    assert [(gate.name, why) for gate, why in named] == [
        ("ranks", ""),
        ("temperature", "skipped on request"),
        ("memory", ""),
        ("kernel", ""),
    ]
