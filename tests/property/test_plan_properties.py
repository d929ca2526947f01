"""Properties of the plan over arbitrary settings, sources and ranks."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkpair.plan import (
    RANK_ENVIRONMENT,
    build_plan,
    canonical,
    fit_stock,
    rank_differences,
    release_document,
    rule_problems,
    schedule_problems,
)
from sparkpair.settings import ABOUT, Given, Refused, Resolved, resolve
from sparkpair.sources import gather, parse_env

from tests.planning import OVERLAYS, rank

settings.register_profile("plan", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROFILE = settings.get_profile("plan")

WIDTHS = (0, 1, 3, 7)
LETTERS = st.text(alphabet="abcdefghijklmnop", min_size=1, max_size=8)

VALID: dict[str, st.SearchStrategy[Any]] = {
    "verify_tokens": st.sampled_from(WIDTHS),
    "dflash_tokens": st.integers(1, 7),
    "structured_width": st.sampled_from(["stock", "uniform"]),
    "spec_method": st.sampled_from(["dflash", "mtp", "none"]),
    "mtp_tokens": st.integers(0, 7),
    "dflash_draft_tp": st.sampled_from([1, "", None]),
    "max_num_seqs": st.integers(1, 64),
    "max_num_batched_tokens": st.integers(64, 8192),
    "executor": st.sampled_from(["ray", "mp"]),
    "gpus": st.sampled_from(["all", "none"]),
    "rdma": st.booleans(),
    "enforce_eager": st.booleans(),
    "gpu_mem_util": st.floats(0.01, 1.0),
    "tool_call_parser": st.sampled_from(["", "glm47", "hermes"]),
    "extra_env": st.dictionaries(LETTERS.map(lambda t: f"MY_{t.upper()}_X"), LETTERS, max_size=3),
    "extra_args": st.lists(LETTERS.map(lambda t: f"--zz{t}"), max_size=3),
    "limit_mm": st.dictionaries(LETTERS, st.integers(0, 9), max_size=3),
    "ready_timeout": st.integers(10, 86400),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALID)
"""Well-typed settings; rules that span settings may still refuse a combination."""

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def from_command_line(values: dict[str, Any]) -> Resolved:
    return resolve({name: Given(value, "-e") for name, value in values.items()})


def accepted(values: dict[str, Any], ranks: int = 2) -> dict[str, Any] | None:
    try:
        return build_plan(from_command_line(values), [rank(n) for n in range(ranks)], OVERLAYS).to_json()
    except Refused:
        return None


@given(SETTINGS, st.integers(2, 5), st.randoms(use_true_random=False))
@PROFILE
def test_same_input_gives_same_bytes_in_any_order(values: dict[str, Any], count: int, order: random.Random) -> None:
    first = accepted(values, count)
    if first is None:
        return
    names = list(values)
    order.shuffle(names)
    ranks = [rank(n) for n in range(count)]
    order.shuffle(ranks)
    again = build_plan(
        from_command_line({n: values[n] for n in names}), ranks, dict(reversed(list(OVERLAYS.items())))
    ).to_json()
    assert canonical(again) == canonical(first)
    assert json.dumps(again) == json.dumps(first)


@given(SETTINGS, st.integers(2, 5))
@PROFILE
def test_ranks_differ_only_where_they_may(values: dict[str, Any], count: int) -> None:
    made = accepted(values, count)
    if made is None:
        return
    assert rank_differences(made) == []
    head = made["ranks"][0]
    for entry in made["ranks"][1:]:
        assert set(entry["environment"]) == set(head["environment"])
        differing = {k for k, v in entry["environment"].items() if v != head["environment"][k]}
        assert differing <= RANK_ENVIRONMENT
        configs = [a for a in entry["arguments"] if a.startswith('{"method"')]
        assert configs == (
            [a for a in head["arguments"] if a.startswith('{"method"')] if made["executor"] == "mp" else []
        )


@given(st.sampled_from(WIDTHS), st.integers(1, 7), st.integers(1, 64))
@PROFILE
def test_every_accepted_width_has_sizes_for_every_batch(verify: int, proposed: int, sequences: int) -> None:
    made = accepted(
        {"verify_tokens": verify, "dflash_tokens": proposed, "max_num_seqs": sequences, "max_num_batched_tokens": 64}
    )
    assert (made is None) == (verify > proposed)
    if made is None:
        return
    rows = (verify or proposed) + 1
    sizes = made["capture_sizes"]
    assert sizes == sorted(set(sizes))
    assert {rows * count for count in range(1, sequences + 1)} <= set(sizes)
    assert made["expected_width"] == rows - 1
    schedule = made["speculative_config"].get("num_speculative_tokens_per_batch_size")
    assert (schedule is None) == (verify == 0)
    assert schedule is None or schedule_problems(schedule, proposed) == []
    assert bool(made["overlays"]) == (verify > 0)
    assert all(("DFLASH_VERIFY_TOKENS" in r["environment"]) == (verify > 0) for r in made["ranks"])


@given(SETTINGS, st.integers(10, 86400))
@PROFILE
def test_equal_releases_mean_equal_documents(values: dict[str, Any], timeout: int) -> None:
    first, second = accepted(values), accepted({**values, "ready_timeout": timeout})
    if first is None or second is None:
        return
    assert first["release"] == second["release"]
    assert release_document(first) == release_document(second)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(ABOUT, JUNK)))
@PROFILE
def test_every_refusal_names_setting_value_origin_and_allowed_and_none_is_lost(values: dict[str, Any]) -> None:
    alone = {name: from_command_line({name: value}).problems for name, value in values.items()}
    together = from_command_line(values)
    assert set(together.problems) == {problem for problems in alone.values() for problem in problems}
    for problem in [*together.problems, *rule_problems(together, 2)]:
        assert problem.setting in ABOUT
        assert problem.given
        # A rule may blame a setting that was left out, beside one that was given.
        assert "-e" in problem.origin
        assert problem.reason
        assert problem.allowed
        assert "\n" not in str(problem)
        if ABOUT[problem.setting].secret:
            assert problem.given == "(hidden)"


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((n for n, a in ABOUT.items() if a.width), JUNK)))
@PROFILE
def test_a_stock_plan_survives_any_width_tuning(values: dict[str, Any]) -> None:
    raw = {name: Given(value, "-e") for name, value in values.items()}
    made = build_plan(fit_stock(resolve(raw, stock=True), 2), [rank(0), rank(1)], OVERLAYS).to_json()
    assert made["verify_tokens"] == 0
    assert made["overlays"] == []


@given(st.text(max_size=200))
@PROFILE
def test_no_text_breaks_the_env_parser(text: str) -> None:
    file = parse_env(text, "x.env")
    assert all("x.env line" in p.origin for p in file.problems)
    assert all(g.origin.startswith("x.env line ") for g in file.given.values())
    if "\r" in text:
        assert any("carriage return" in p.reason for p in file.problems)


@given(st.lists(st.sampled_from(["extra", "environ", "env_file", "play", "inventory"]), unique=True))
@PROFILE
def test_the_strongest_source_wins(sources: list[str]) -> None:
    value = {"extra": "0", "environ": "1", "env_file": "3", "play": "7", "inventory": "0"}
    result = gather(
        extra={"verify_tokens": value["extra"]} if "extra" in sources else {},
        environ={"DFLASH_VERIFY_TOKENS": value["environ"]} if "environ" in sources else {},
        env_file=parse_env("DFLASH_VERIFY_TOKENS=3", "x.env") if "env_file" in sources else None,
        play={"verify_tokens": value["play"]} if "play" in sources else None,
        inventory={h: {"verify_tokens": value["inventory"]} if "inventory" in sources else {} for h in ("a", "b")},
    )
    strongest = next((s for s in value if s in sources), None)
    if strongest is None:
        assert "verify_tokens" not in result.given
    else:
        assert result.given["verify_tokens"].value == value[strongest]
