"""A whole benchmark against stand-in engines in this process, for tests of the measurement and of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkpair import traffic
from sparkpair.bench_arms import parse
from sparkpair.bench_measure import READERS, WARMUP, steps, too_wide
from sparkpair.bench_results import ArmResult, Attempt, Before, Burst, Counted, Measured, Results, Run, Temperature
from sparkpair.bench_workloads import Workload, choose
from sparkpair.gatekit import Situation

from tests.planning import plan as make_plan
from tests.standin.engine import Engine

KEPT = ("release", "spec_method", "dflash_tokens", "verify_tokens", "structured_width", "expected_width", "image")
LAB = {"gpus": "none", "rdma": False}


def works(*names: str, tokens: int = 40, runs: int = 2) -> list[Workload]:
    """Workloads of the manifest, made short."""
    return choose(names, tokens=tokens, runs=runs)


def situation(**settings: Any) -> Situation:
    """A plan of the stand-in's model."""
    return Situation(make_plan(served_model_name="stand-in", max_model_len=1024, **settings), {})


def measure(engine: Engine, where: Situation, work: Workload, *, ignore_eos: bool = False) -> Measured:
    """What the action does for one workload."""
    found = Measured(left_out=too_wide(where, work))
    kinds: Mapping[type, list[Any]] = {Run: found.runs, Burst: found.bursts, Attempt: found.attempts}
    for step in steps(where, work, "run", ignore_eos=ignore_eos):
        seen = READERS[work.kind](where, step, traffic.run_groups(base_url=engine.url, groups=step.groups))
        if step.number != WARMUP:
            kinds[type(seen)].append(seen)
    return found


def empty(arms: str, workloads: list[Workload], **settings: Any) -> Results:
    """A run that has measured nothing."""
    made = [
        ArmResult(
            id=a.id,
            spec=a.spec,
            control=a.control,
            plan={k: situation(**settings, **(a.settings or {})).plan[k] for k in KEPT},
        )
        for a in parse(arms)
    ]
    first = situation(**settings).plan
    return Results(
        id="20261202T080000Z",
        started="2026-12-02T08:00:00Z",
        procedure_only=first["container"]["gpus"] == "none",
        endpoint=first["endpoint"],
        model=first["served_model_name"],
        image=first["image"],
        max_num_seqs=first["max_num_seqs"],
        ranks=[r["host"] for r in first["ranks"]],
        ignore_eos=False,
        drift_bound=0.02,
        workloads=workloads,
        arms=made,
        before=Before(release="3f9c2a51b7e0", serving=True),
    )


def bracket(workloads: list[Workload], arms: str = "stock,7/3,3/3,stock", **settings: Any) -> Results:
    """A finished run, every arm measured against a stand-in of its width."""
    found = empty(arms, workloads, **settings)
    for arm, asked in zip(found.arms, parse(arms), strict=True):
        where = situation(**settings, **(asked.settings or {}))
        width = where.plan["expected_width"]
        with Engine(verify=width or 0, speculates=width is not None, step_seconds=0.001) as engine:
            for work in workloads:
                measured = measure(engine, where, work)
                measured.temperatures = [
                    Temperature(host="spark-0", sensor="gpu 0", celsius=65.0),
                    Temperature(host="spark-1", sensor=None, celsius=None, missing="no sensor: nvidia-smi: not found"),
                ]
                arm.measured[work.name] = measured
    found.status, found.finished = "complete", "2026-12-02T09:00:00Z"
    return found


def counters(width: float, drafts: int = 100) -> Counted:
    """Counters of steps that drafted ``width`` tokens each, all accepted."""
    return Counted(
        drafts=drafts,
        draft_tokens=round(width * drafts),
        accepted=round(width * drafts),
        per_position=[drafts] * int(width),
    )


def fixed(figures: Mapping[str, Mapping[str, float]], arms: str = "stock,7/3,3/3,stock", runs: int = 5) -> Results:
    """A run whose every figure is given: workload to arm label to tokens per second, the same in every run."""
    found = empty(arms, choose(list(figures), runs=runs))
    for name, rates in figures.items():
        for label, rate in rates.items():
            width = found.arm(label).plan["expected_width"]
            one = Run(
                seed=1,
                tokens=400,
                decode=rate,
                ttft=0.5,
                finish_reason="length",
                output_sha256="a" * 64,
                pieces_ms=(1, 2),
                counted=None if width is None else counters(width),
            )
            found.arm(label).measured[name] = Measured(runs=[one] * runs)
    return found
