"""Speculative-decoding counters from an engine's /metrics. Controller only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CACHE_CONFIG = "vllm:cache_config_info"
GENERATED = "vllm:generation_tokens_total"
KEEP_LINES = "vllm:spec_decode_num_"


class MetricsError(Exception):
    """The counters cannot be read or compared; the message says which and why."""


@dataclass(frozen=True)
class Counters:
    """Counter values (or their growth), summed over ``engines``: steps with a draft, drafted and accepted tokens."""

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: dict[int, float] = field(default_factory=dict)
    engines: frozenset[str] = field(default=frozenset(), compare=False)


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text + "\n"):
        yield from family.samples


def parse(text: str) -> Counters:
    """Read the counters. Raises MetricsError when the text is malformed, or a series is missing or no number.

    A missing series is never read as zero: an engine without counters would look like one that drafts nothing. So is
    one that lacks some of several engines, whose sum would be too small for those that are there.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    engines: dict[str, set[str]] = {}
    try:
        for sample in _samples(text):
            series = sample.name
            if series == PER_POSITION:
                position = int(sample.labels["position"])
                series += f" of position {position}"
                positions[position] = positions.get(position, 0.0) + sample.value
            elif sample.name in {DRAFTS, DRAFT_TOKENS, ACCEPTED}:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            else:
                continue
            engines.setdefault(series, set()).add(sample.labels.get("engine", ""))
    except (ValueError, KeyError) as error:
        raise MetricsError(f"/metrics cannot be parsed: {error}") from error
    missing = sorted({DRAFTS, DRAFT_TOKENS, ACCEPTED} - set(sums)) + ([] if positions else [PER_POSITION])
    if missing:
        raise MetricsError(f"/metrics has no {', '.join(missing)}")
    if not all(math.isfinite(value) for value in (*sums.values(), *positions.values())):
        raise MetricsError("/metrics holds a counter that is not a number")
    every = frozenset[str]().union(*engines.values())
    for series, found in engines.items():
        if lacking := sorted(every - found):
            raise MetricsError(f"/metrics has no {series} of engine {', '.join(lacking)}")
    return Counters(sums[DRAFTS], sums[DRAFT_TOKENS], sums[ACCEPTED], positions, every)


def kv_pool_tokens(text: str) -> int | None:
    """Tokens that fit the KV pool, from the labels of ``vllm:cache_config_info``; None when they do not tell."""
    try:
        for sample in _samples(text):
            if sample.name == CACHE_CONFIG:
                return int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
    except (ValueError, KeyError):
        return None
    return None


def generated_tokens(text: str) -> float | None:
    """Tokens that all engines have generated so far, for whomever; None when the text does not tell."""
    try:
        found = [sample.value for sample in _samples(text) if sample.name == GENERATED]
    except ValueError:
        return None
    return sum(found) if found and all(math.isfinite(value) for value in found) else None


def delta(before: Counters, after: Counters) -> Counters:
    """Growth from ``before`` to ``after``.

    Raises MetricsError when a counter went back (the engine was restarted), or when the readings count other positions
    or other engines.
    """
    if before.engines != after.engines:
        raise MetricsError("two readings count different engines: one of them came or went")
    if set(before.per_position) != set(after.per_position):
        raise MetricsError("two readings count different draft positions: the engine was replaced")
    grown = Counters(
        after.drafts - before.drafts,
        after.draft_tokens - before.draft_tokens,
        after.accepted - before.accepted,
        {p: v - before.per_position[p] for p, v in sorted(after.per_position.items())},
        after.engines,
    )
    if min(grown.drafts, grown.draft_tokens, grown.accepted, *grown.per_position.values()) < 0:
        raise MetricsError("a counter went back between two readings: the engine was restarted")
    return grown


def draft_width(grown: Counters) -> float:
    """Draft tokens per step. Raises MetricsError when there was no step."""
    if grown.drafts <= 0:
        raise MetricsError("no step with a draft was counted")
    return grown.draft_tokens / grown.drafts


def acceptance(grown: Counters, position: int = 0) -> float:
    """Share of the steps that accepted the draft at ``position``. Raises MetricsError without a step or that series."""
    if grown.drafts <= 0:
        raise MetricsError("no step with a draft was counted")
    if position not in grown.per_position:
        raise MetricsError(f"/metrics has no {PER_POSITION} of position {position}")
    return grown.per_position[position] / grown.drafts
