"""What a benchmark found, as typed data; its JSON is ``results.json``. Controller only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .bench_arms import CURRENT
from .bench_workloads import Workload

SCHEMA = 1
FILE = "results.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Counted(_Part):
    """Speculation counters of one run: steps with a draft, drafted and accepted tokens, accepted per position."""

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: list[float]


class Run(_Part):
    """One measured answer. Times in seconds; ``decode`` is (tokens - 1) / (end - first token) in tokens per second.

    ``error`` says why it is no measurement; ``counters_error`` why the counters are not known. ``pieces_ms`` are the
    median and the 95th percentile of the milliseconds between two pieces of the stream.
    """

    seed: int
    tokens: int
    decode: float | None
    ttft: float | None
    finish_reason: str | None
    output_sha256: str
    pieces_ms: tuple[float, float] | None = None
    counted: Counted | None = None
    counters_error: str | None = None
    error: str | None = None


class Burst(_Part):
    """Several answers at once: decoded tokens of all per second from the first token of any to the end of the last.

    ``overlap`` is how long all of them were decoded together, in seconds; None in results that did not keep it yet.
    """

    width: int
    total: float | None
    each: list[Run]
    skew: float
    overlap: float | None = None
    counted: Counted | None = None
    counters_error: str | None = None


class Attempt(_Part):
    """One attempt of an ordinary and a guided request at once.

    ``overlap`` is how long both were between their first and last piece, with two pieces of each in that time; 0 is no
    evidence about mixed batches.
    """

    skew: float | None
    overlap: float
    ordinary: Run
    guided: Run
    guided_fault: str
    counted: Counted | None
    counters_error: str | None = None

    @property
    def evidence(self) -> bool:
        """Whether the two shared batches."""
        return self.overlap > 0


class Temperature(_Part):
    """The hottest sensor of a rank right after a workload; ``celsius`` None with the reason in ``missing``."""

    host: str
    sensor: str | None
    celsius: float | None
    missing: str | None = None


class Measured(_Part):
    """Everything about one workload in one arm."""

    runs: list[Run] = []
    bursts: list[Burst] = []
    attempts: list[Attempt] = []
    left_out: list[str] = []
    temperatures: list[Temperature] = []


class ArmResult(_Part):
    """One arm: its label, what was asked for, what was planned, and what was measured by workload.

    ``started`` and ``finished`` are when its first measurement began and its last one ended, in UTC.
    """

    id: str
    spec: str
    control: bool
    plan: dict[str, Any]
    measured: dict[str, Measured] = {}
    started: str | None = None
    finished: str | None = None


class Before(_Part):
    """What served before the first arm: the release, and whether it is to be put back (else the pair is stopped)."""

    release: str | None
    serving: bool


class Results(_Part):
    """A whole benchmark. ``restored`` is False from the first arm that is deployed until what served before does again.

    ``left`` is the release of another run that was found serving at the end and stayed. ``resumed`` are the times at
    which an interrupted run went on. ``procedure_only`` marks a pair without GPUs, whose figures prove the procedure
    and no speed.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    id: str
    status: Literal["unfinished", "complete", "abandoned"] = "unfinished"
    started: str
    finished: str | None = None
    procedure_only: bool
    endpoint: str
    model: str
    image: str
    max_num_seqs: int
    ranks: list[str]
    ignore_eos: bool
    drift_bound: float
    workloads: list[Workload]
    arms: list[ArmResult]
    before: Before
    restored: bool = True
    left: str | None = None
    resumed: list[str] = []
    messages: list[str] = []

    @property
    def deploys(self) -> bool:
        """Whether an arm is deployed, so that what served before has to be put back."""
        return any(a.spec != CURRENT for a in self.arms)

    def arm(self, label: str) -> ArmResult:
        """The arm with this label; KeyError when there is none."""
        for one in self.arms:
            if one.id == label:
                return one
        raise KeyError(label)

    def workload(self, name: str) -> Workload:
        """The workload of this name; KeyError when there is none."""
        for one in self.workloads:
            if one.name == name:
                return one
        raise KeyError(name)

    def missing(self, arm: ArmResult) -> list[str]:
        """Workloads that this arm has not measured yet."""
        return [w.name for w in self.workloads if w.name not in arm.measured]

    def request(self) -> dict[str, Any]:
        """What was asked for: equal requests may be continued."""
        part = self.model_dump(mode="json", include={"endpoint", "model", "image", "ignore_eos", "drift_bound"})
        plans = [{"id": a.id, "spec": a.spec, "release": a.plan["release"]} for a in self.arms]
        return part | {"arms": plans, "workloads": [w.model_dump(mode="json") for w in self.workloads]}

    def save(self, folder: Path) -> Path:
        """Write results.json whole or not at all, and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path, fresh = folder / FILE, folder / f".{FILE}.next"
        fresh.write_text(
            json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        fresh.replace(path)
        return path


def load(path: Path) -> Results:
    """Read a results file. Raises OSError, or ValueError with every place that has not the form of the schema."""
    return Results.model_validate_json(path.read_text(encoding="utf-8"))


def json_schema() -> dict[str, Any]:
    """The JSON schema of results.json; ``python -m sparkpair.bench_results`` prints it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Results.model_json_schema(by_alias=True)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
