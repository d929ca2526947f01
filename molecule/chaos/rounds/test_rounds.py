"""Rounds of chaos: blows of a random kind at random moments of a rollout, and what may not be true after any of them.

The matrix (scenario ``faults``) knows its faults and their ends. Here neither is chosen by a person: a seed draws the
verb, the release, the blows, their ranks and moments, and the round judges the end by what holds for every rollout. A
round that fails names its seed: ``CHAOS_SEED=<seed> CHAOS_ROUNDS=1 make molecule SCENARIOS=chaos`` plays the same draw
again, though not the same moment to the millisecond.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from bench import OLD, Bench, Process, new
from blows import BLOWS, ROOT, Blow, inside

from tests.labtest import Run
from tests.standin import image as standin

ROUNDS, SEED = int(os.environ.get("CHAOS_ROUNDS", "20")), int(os.environ.get("CHAOS_SEED", "1"))
BAD = ("garbage", "no_tokens", "exits", "dies_in_warmup", "broken_grammar")
GOOD = ("", "", "slow")
# Seconds: a rollout of a stand-in takes about 25, with a return about 50; none may take longer than the last.
MOMENTS, LASTING, LONGEST = (0.0, 45.0), (1.0, 5.0, 20.0, 45.0), 600.0
# An engine that was ended so shortly before the end of the run was ended after its last gate.
LATE = 8.0


@dataclass
class Draw:
    """What a seed decides: the rollout, and its blows as (kind, rank, moment, seconds that it lasts)."""

    verb: str
    fault: str
    blows: list[tuple[Blow, int, float, float]]

    @classmethod
    def of(cls, seed: int) -> Draw:
        """Draw a round."""
        chance = random.Random(seed)  # noqa: S311 - a seed that can be named, not a secret
        verb = chance.choice(("deploy", "deploy", "deploy", "rollback"))
        fault = chance.choice(BAD + GOOD) if verb == "deploy" else ""
        blows = [
            (chance.choice(BLOWS), chance.randrange(2), chance.uniform(*MOMENTS), chance.choice(LASTING))
            for _ in range(chance.choice((1, 1, 2)))
        ]
        return cls(verb, fault, blows)

    def __str__(self) -> str:
        return f"{self.verb} {self.fault or 'good'}: " + "; ".join(
            f"{blow.name} (rank {rank}, at {moment:.1f} s for {lasting:.0f} s)"
            for blow, rank, moment, lasting in self.blows
        )


@dataclass
class Struck:
    """The blows of a round while it runs: each is landed and healed by a timer, and all are healed at the end."""

    draw: Draw
    landed: dict[int, float] = field(default_factory=dict)
    timers: list[threading.Timer] = field(default_factory=list)

    def begin(self, process: Process) -> None:
        """Start the clocks of all blows."""
        self.process = process
        for index, (blow, rank, moment, lasting) in enumerate(self.draw.blows):
            self.after(moment, self.land, index)
            if blow.heals:
                self.after(moment + lasting, blow.heals, process, rank)
        self.after(LONGEST, os.killpg, process.pid, signal.SIGKILL)

    def after(self, seconds: float, what: Callable[..., object], *args: Any) -> None:
        timer = threading.Timer(seconds, what, args)
        timer.daemon = True
        self.timers.append(timer)
        timer.start()

    def land(self, index: int) -> None:
        blow, rank, _, _ = self.draw.blows[index]
        if self.process.poll() is None:
            self.landed[index] = time.time()
            blow.lands(self.process, rank)

    def end(self) -> None:
        """Stop the clocks, and take back whatever is still in force."""
        for timer in self.timers:
            timer.cancel()
            timer.join()
        for index in self.landed:
            blow, rank, _, _ = self.draw.blows[index]
            if blow.heals:
                blow.heals(self.process, rank)


@pytest.fixture
def bench(sparks: list[Any], verb: Callable[..., Run]) -> Iterator[Bench]:
    """The pair with the old release accepted, whatever the round before has left."""
    made = Bench(sparks, verb)
    for rank in (0, 1):
        if sparks[rank].run(f"sudo docker image inspect {standin.tag()}").rc != 0:
            made.load(rank, standin.tag())
    heal(made)
    yield made


def heal(bench: Bench) -> None:
    """What an operator does: release a lock that is left, deploy the old release, and look for drift."""
    for rank in (0, 1):
        bench.wait_for_ssh(rank)
    if bench.lock() != ["", ""]:
        released = bench.verb("lock", "-e", "lock=release", "-e", "reason=a round of chaos has been looked at")
        assert released.code == 0, released.screen[-6000:]
    run = bench.deploy(*OLD)
    assert run.code == 0, run.screen[-6000:]
    drift = bench.verb("drift")
    assert drift.code == 0, drift.screen


def engines() -> list[dict[str, Any]]:
    """Each rank's engine as Docker shows it: empty where there is none."""
    seen = [json.loads(inside(rank, "docker inspect sparkpair-engine 2>/dev/null") or "[]") for rank in (0, 1)]
    return [containers[0] if containers else {} for containers in seen]


def release(engine: dict[str, Any]) -> str:
    """The release of an engine; empty without one."""
    return str(engine["Config"]["Labels"]["sparkpair.release"]) if engine else ""


def notes() -> list[str]:
    """What each rank's lock says; empty where it is not held."""
    return [inside(rank, f"cat {ROOT}/lock/holder.json 2>/dev/null").strip() for rank in (0, 1)]


def ended(engine: dict[str, Any]) -> float:
    """When an engine ended, as a Unix time; infinite while it runs."""
    if engine["State"]["Running"]:
        return float("inf")
    return datetime.fromisoformat(engine["State"]["FinishedAt"][:19] + "+00:00").timestamp()


def judge(draw: Draw, landed: set[str], run: Run, old: str, before: list[str]) -> list[str]:
    """Everything that may not be true after a rollout that was struck. Empty when its promise holds."""
    now, locks = engines(), notes()
    ran = [e["Id"] if e and e["State"]["Running"] else "" for e in now]
    outcome = run.result.get("outcome", "")
    ends = {blow.ends for blow, *_ in draw.blows if blow.name in landed}
    faults = []
    whole = release(now[0]) == release(now[1]) != "" and all(
        ended(e) > time.time() - LATE or "engine" in ends for e in now
    )
    if run.code == 0 and draw.fault in BAD:
        faults.append("a release that misbehaves was accepted")
    if outcome in ("ok", "rolled_back") and not whole:
        faults.append(f"it says {outcome}, and no whole pair is there")
    if outcome == "rolled_back" and release(now[0]) != old:
        faults.append("it says rolled back, and another release is there")
    if outcome in ("ok", "rolled_back") and any(locks):
        faults.append(f"it says {outcome}, and a lock is left")
    if outcome == "refused" and ran != before and "engine" not in ends:
        faults.append("it says refused, and the pair was touched")
    if outcome == "not_restored" and not any(locks):
        faults.append("it says not restored, and no lock says why")
    half = bool(ran[0]) != bool(ran[1])
    if half and not any(locks) and "engine" not in ends:
        faults.append("half a pair runs, and no lock says why")
    if not outcome and "controller" not in ends:
        faults.append("nobody has ended it, and it says no outcome")
    if "controller" in ends and ran != before and not whole and not any(locks):
        faults.append("it was ended half way, and no lock names the phase")
    return faults


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_round(bench: Bench, seed: int) -> None:
    draw = Draw.of(seed)
    old, before = bench.current(0), [e["Id"] for e in engines()]
    struck = Struck(draw)
    args = new(draw.fault) if draw.verb == "deploy" else ("-e", "release=previous")
    begun = time.time()
    with ExitStack() as stack:
        stack.callback(struck.end)
        run = bench.verb(draw.verb, *args, at="", then=struck.begin)
    landed = {draw.blows[index][0].name for index in struck.landed}
    faults = judge(draw, landed, run, old, before)
    if time.time() - begun >= LONGEST:
        faults.append("it did not end")
    print(f"seed {seed}: {draw}; landed {len(landed)}; {run.result.get('outcome', 'no outcome')} ({run.code})")
    assert not faults, f"{faults}\n{draw}\n{run.screen[-9000:]}"
    heal(bench)
    assert bench.leftovers() == []
