"""Acceptance gates: each one fires on its fault, and lets a sound pair pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from sparkpair import gates, live, traffic, warmup
from sparkpair.gates import GATES, RefusedChoiceError, Seen, Situation, choose, for_a_return
from sparkpair.gates_drafts import degenerate
from sparkpair.gates_guided import exact_count, tool_call
from sparkpair.gates_host import pool_basis

from tests.planning import plan as make_plan
from tests.standin.engine import FAULTS, Engine

BY_NAME = {gate.name: gate for gate in GATES}
SERVED = "stand-in"
KEY = "a-key-of-the-test"


def plan(**values: Any) -> dict[str, Any]:
    """Plan of a pair that the stand-in can serve, at width 3 unless told otherwise."""
    made = make_plan(**{"served_model_name": SERVED, "max_model_len": 1024, "verify_tokens": 3, **values})
    return made | {"api_key_set": "api_key" in values}


def run(name: str, engine: Engine, situation: Situation, key_file: str | None = None, timeout: float = 20) -> Seen:
    """One gate against the stand-in, as the action does it but without a host in between."""
    gate = BY_NAME[name]
    answers: list[dict[str, Any]] = []
    wanted = gate.build(situation)
    while wanted:
        answers += traffic.run_groups(base_url=engine.url, groups=wanted, api_key_file=key_file, deadline=timeout)
        wanted = gates.more(gate, situation, answers)
    return gates.judge(gate, situation, answers)


@pytest.fixture(autouse=True)
def short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the soak take a fraction of a second."""
    monkeypatch.setattr("sparkpair.gates_load.SOAK_SECONDS", 0.12)


def sound(**behaviour: Any) -> dict[str, Any]:
    """Behaviour with steps long enough that streams of one group overlap."""
    return {"step_seconds": 0.001, **behaviour}


# Each gate with the faults that it must catch, and a part of what it must say.
FIRES = [
    ("health", "unhealthy", "status 503"),
    ("models", "wrong_name", "serves another"),
    ("models", "extra_name", "serves stand-in, second"),
    ("completion", "no_tokens", "0 tokens"),
    ("completion", "blank", "16 tokens: '    "),
    ("completion", "error_500", "EngineCore encountered an issue"),
    ("completion", "truncated", "early"),
    ("warmup", "error_500", "0 of 20 requests; rung-1: status 500"),
    ("warmup", "crowded", "status 503"),
    ("width", "wrong_width", "7.00 draft tokens per step"),
    ("width", "short_width", "2.00 draft tokens per step"),
    ("width", "accepts_beyond", "accepts at positions [3]"),
    ("width", "no_metrics", "/metrics has no vllm:spec_decode_num_accepted_tokens_total"),
    ("width", "no_positions", "per_pos_total"),
    ("width", "frozen_metrics", "no step with a draft was counted"),
    ("width", "error_500", "text-0: status 500"),
    ("canary", "garbage", "garbage: ['!!!!!!!!!!!!!!!!!!!!'"),
    ("canary", "blank", "garbage"),
    ("canary", "no_tokens", "garbage"),
    ("canary", "never_accepted", "0 of 855 drafted tokens accepted"),
    ("canary", "no_metrics", "/metrics has no"),
    ("stream", "truncated", "without [DONE]"),
    ("stream", "stream_error", "EngineCore encountered an issue"),
    ("stream", "late_stream", "48 tokens in 1 pieces"),
    ("stream", "no_tokens", "0 tokens"),
    ("concurrent", "serial", "all together for 0.00 s"),
    ("concurrent", "crowded", "status 503"),
    ("concurrent", "no_tokens", "no tokens from 2-0, 2-1"),
    ("json", "broken_grammar", "39 items: [1, 2, 3 ... 37, 38, 39]"),
    ("json", "free_grammar", "not JSON: 'a lamp burns"),
    ("json", "error_500", "status 500"),
    ("tool", "wrong_tool", "Krak"),
    ("tool", "no_tool", "required: no tool call; text 'a lamp burns"),
    ("tool", "named_tool", "named: no tool call"),
    ("mixed", "serial", "never decoded together"),
    ("mixed", "broken_grammar", "guided: 39 items"),
    ("mixed", "truncated", "without [DONE]"),
    ("long", "short_context", "status 400: "),
    ("long", "cut_context", "256 prompt tokens read"),
    ("long", "no_tokens", "0 tokens of text"),
    ("acceptance", "never_accepted", "0.0% of"),
    ("acceptance", "always_accepted", "100.0% of"),
    ("acceptance", "no_positions", "per_pos_total"),
    ("acceptance", "frozen_metrics", "no step"),
    ("kv_pool", "small_pool", "32768 tokens; the largest of the last 1 acceptances: 65536"),
    ("kv_pool", "no_pool", "and told 65536 tokens at the last acceptance"),
    ("soak", "unhealthy", "health-0: status 503"),
    ("soak", "error_500", "text-0: status 500"),
    ("soak", "no_tokens", "no tokens from text-0, text-1"),
]


def accepted_before(made: dict[str, Any]) -> Situation:
    """A pair that was accepted with these settings and the pool of a sound stand-in."""
    basis, figures = pool_basis(made["settings"]), {"kv_pool_tokens": 65_536.0}
    return Situation(made, {}, [{"outcome": "accepted", "memory_settings": basis, "figures": figures}])


@pytest.mark.parametrize(("gate", "fault", "says"), FIRES)
def test_gate_fires(gate: str, fault: str, says: str) -> None:
    with Engine(fault, **sound()) as engine:
        seen = run(gate, engine, accepted_before(plan(glm53_mixed_prefill_chunk="off")))
    assert not seen.ok
    assert says in seen.seen
    assert seen.wanted


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("gate", ["concurrent", "mixed"])
def test_requests_that_the_engine_holds_back_are_no_evidence_and_no_fault(gate: str, recorded: bool) -> None:
    """Of a release on record as well: it comes without its settings, and a return failed by chance."""
    made = live.named(plan(), {0: "spark-0", 1: "spark-1"}) if recorded else plan()
    held = Situation(made, {})
    with Engine("serial", **sound()) as engine:
        seen = run(gate, engine, held)
    assert seen.ok
    assert "no evidence about shared batches" in seen.seen
    with Engine(**sound()) as engine:
        seen = run(gate, engine, held)
    assert seen.ok
    assert "no evidence" not in seen.seen


@pytest.mark.parametrize(("gate", "fault"), [("concurrent", "crowded"), ("mixed", "broken_grammar")])
def test_requests_that_the_engine_holds_back_must_be_right_all_the_same(gate: str, fault: str) -> None:
    with Engine("serial", fault, **sound()) as engine:
        assert not run(gate, engine, Situation(plan(), {})).ok


@pytest.mark.parametrize("gate", sorted({gate for gate, _, _ in FIRES}))
def test_sound_engine_passes(gate: str) -> None:
    with Engine(**sound()) as engine:
        seen = run(gate, engine, accepted_before(plan()))
    assert seen.ok, seen


def test_every_fault_of_the_stand_in_is_used() -> None:
    elsewhere = {
        "open_api", "closed_api", "closed_health",  # auth
        "deaf_template", "never_thinks",  # thinking
        "hang", "trickle", "reflects_key", "counters_reset",  # here and in the tests of the traffic
            "ends_early",  # benchmark
    }  # fmt: skip
    assert {fault for _, fault, _ in FIRES} | elsewhere == set(FAULTS)


def test_every_gate_is_proved_to_fire() -> None:
    elsewhere = {"ranks", "parity", "stock", "ray", "auth", "thinking", "quality"}
    elsewhere |= {"temperature", "memory", "kernel"}  # test_gates_host.py
    assert {gate for gate, _, _ in FIRES} | elsewhere == set(BY_NAME)


@pytest.mark.parametrize("gate", ["completion", "json", "stream"])
def test_engine_that_hangs_fails_at_the_deadline(gate: str) -> None:
    with Engine("hang") as engine:
        seen = run(gate, engine, Situation(plan(), {}), timeout=0.3)
    assert not seen.ok
    assert "no complete answer within 0.3 s" in seen.seen


# Gates that send nothing, and the one that says so when an engine tells nothing.
STATES_ONLY = ("ranks", "parity", "stock", "ray", "temperature", "memory", "kernel", "kv_pool")


@pytest.mark.parametrize("gate", sorted(name for name in BY_NAME if name not in STATES_ONLY))
@pytest.mark.parametrize(
    "body", ["null", "[]", '{"choices": [], "usage": null}', '{"data": 5, "choices": 5}', "<html>"]
)
def test_answer_of_any_shape_fails_the_gate_and_not_the_play(gate: str, body: str) -> None:
    situation = Situation(plan(api_key=KEY), {})
    try:
        value, text = json.loads(body), None
    except ValueError:
        value, text = None, body
    usage = value.get("usage") if isinstance(value, dict) else None
    answers = [
        {**traffic._empty(request, group["name"]), "status": 200, "json": value, "text": text, "usage": usage}
        for group in BY_NAME[gate].build(situation)
        for request in group["requests"]
    ]
    gates.more(BY_NAME[gate], situation, answers)
    seen = gates.judge(BY_NAME[gate], situation, answers)
    assert gate == "health" or not seen.ok


# --- auth -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (None, "401 without the key, 200 with it, /health 200 without"),
        ("open_api", "200 without the key, 200 with it, /health 200 without"),
        ("closed_api", "401 without the key, 401 with it, /health 200 without"),
        ("closed_health", "401 without the key, 200 with it, /health 401 without"),
    ],
)
def test_auth(tmp_path: Any, fault: str | None, seen: str) -> None:
    key = tmp_path / "api_key"
    key.write_text(KEY)
    with Engine(*([fault] if fault else []), api_key=KEY) as engine:
        found = run("auth", engine, Situation(plan(api_key=KEY), {}), str(key))
    assert (found.ok, found.seen) == (fault is None, seen)


# --- thinking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "parser", "ok"),
    [
        ((), "glm45", True),
        (("deaf_template",), "glm45", False),
        (("never_thinks",), "glm45", False),
        (("never_thinks",), "", True),
        (("deaf_template",), "", False),
        (("error_500",), "glm45", False),
        (("no_tokens",), "", False),
    ],
)
def test_thinking(faults: tuple[str, ...], parser: str, ok: bool) -> None:
    with Engine(*faults, thinks=True) as engine:
        seen = run("thinking", engine, Situation(plan(reasoning_parser=parser), {}))
    assert seen.ok is ok, seen


# --- width ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "behaviour", "width"),
    [
        ({"verify_tokens": 0}, {"verify": 7}, 7.0),
        ({"verify_tokens": 1}, {"verify": 1}, 1.0),
        ({"verify_tokens": 0, "dflash_tokens": 3}, {"proposal": 3, "verify": 3}, 3.0),
        ({"verify_tokens": 0, "spec_method": "mtp", "mtp_tokens": 2}, {"proposal": 2, "verify": 2}, 2.0),
        ({}, {"counter_base": 1.2e6, "engines": 2}, 3.0),
    ],
)
def test_width_of_each_plan(values: dict[str, Any], behaviour: dict[str, Any], width: float) -> None:
    with Engine(**behaviour) as engine:
        seen = run("width", engine, Situation(plan(**values), {}))
    assert seen.ok, seen
    assert seen.figures == {"draft_tokens_per_step": width}


def test_engine_restarted_during_the_traffic_is_noticed() -> None:
    with Engine("counters_reset", counter_base=500) as engine:
        seen = run("width", engine, Situation(plan(), {}))
    assert "went back" in seen.seen


def width_answers(drafts: int, tokens: int, positions: list[int]) -> list[dict[str, Any]]:
    """Answers of the width gate with counters that grew by these figures."""

    def text(share: int) -> str:
        lines = [f'vllm:spec_decode_num_{n}_total{{engine="0"}} {v * share}' for n, v in (
            ("drafts", drafts), ("draft_tokens", tokens), ("accepted_tokens", sum(positions)),
        )]  # fmt: skip
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        return "\n".join(lines + [f'{name}{{engine="0",position="{p}"}} {v * share}' for p, v in enumerate(positions)])

    base = traffic._empty({"id": ""}, "width") | {"status": 200}
    return [base | {"id": "before", "text": text(0)}, base | {"id": "after", "text": text(1)}]


@pytest.mark.parametrize(
    ("drafts", "tokens", "positions", "ok"),
    [
        (100, 300, [90, 80, 70, 0, 0, 0, 0], True),
        (100, 298, [90, 80, 70, 0, 0, 0, 0], True),  # two last steps were cut short
        (100, 295, [90, 80, 70, 0, 0, 0, 0], False),
        (100, 304, [90, 80, 70, 0, 0, 0, 0], False),  # one step drafted the whole proposal
        (100, 301, [90, 80, 70, 0, 0, 0, 0], False),
        (7, 21, [7, 7, 7, 0, 0, 0, 0], False),  # too few steps to say anything
        (100, 300, [90, 80], False),
        (100, 300, [90, 80, 70, 0, 0, 0, 1], False),
    ],
)
def test_width_is_exact(drafts: int, tokens: int, positions: list[int], ok: bool) -> None:
    seen = BY_NAME["width"].judge(Situation(plan(), {}), width_answers(drafts, tokens, positions))
    assert seen.ok is ok, seen


# --- canary and acceptance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("!!!!!!!!", True),
        ('"' * 40, True),
        ("!! !!\n!!!!", True),
        ("lock" * 24, True),
        ("NaN NaN NaN\nNaN NaN NaN", True),
        ("0" * 96, True),
        ("!?!?!?!?", True),
        ("ocklocklocklocklo", True),
        ("abcdefgh" * 4 + "abc", True),
        ("OK", False),
        ("!!!!", False),
        ("ha ha ha ha", False),
        ("abcdefgh" * 3, False),
        ("abcdefghi" * 12, False),
        ("lock" * 24 + ".", False),
        (json.dumps(list(range(1, 41))), False),
    ],
)
def test_degenerate_text(text: str, bad: bool) -> None:
    assert degenerate(text) is bad


def sampled(name: str, *contents: str | None) -> list[dict[str, Any]]:
    """Answers with sound counters around texts."""
    answers = width_answers(200, 600, [90, 80, 70, 0, 0, 0, 0])
    texts = [answers[0] | {"id": f"{name}-{i}", "text": None, "content": c} for i, c in enumerate(contents)]
    return [answers[0], *texts, answers[1]]


@pytest.mark.parametrize(("gate", "name"), [("canary", "canary"), ("acceptance", "sampled-0")])
@pytest.mark.parametrize("bad", ["lock" * 24, "NaN " * 24, "0" * 96, "!?" * 48, "", " \n ", None])
def test_one_text_of_garbage_among_sound_ones_fails(gate: str, name: str, bad: str | None) -> None:
    judge, situation = BY_NAME[gate].judge, Situation(plan(), {})
    assert judge(situation, sampled(name, "OK", "Red, green, blue", "Four")).ok
    seen = judge(situation, sampled(name, "OK", bad, "Four"))
    assert (seen.ok, seen.seen) == (False, f"garbage: {[(bad or '')[:20]]!r}")


def test_few_drafts_prove_nothing_against_a_pair() -> None:
    answers = width_answers(9, 63, [0] * 7)
    answers.insert(1, answers[0] | {"id": "canary-0", "content": "OK"})
    assert BY_NAME["canary"].judge(Situation(plan(verify_tokens=0), {}), answers).ok


@pytest.mark.parametrize("gate", ["canary", "completion", "warmup"])
def test_pair_without_speculation_passes(gate: str) -> None:
    without = plan(spec_method="none", verify_tokens=0)
    with Engine(speculates=False) as engine:
        assert run(gate, engine, Situation(without, {})).ok


@pytest.mark.parametrize("gate", ["width", "acceptance"])
def test_gate_about_drafts_is_left_out_without_them(gate: str) -> None:
    assert (
        BY_NAME[gate].applies(Situation(plan(spec_method="none", verify_tokens=0), {})) == "no speculation is planned"
    )


def test_acceptance_sends_more_until_it_has_enough_steps() -> None:
    with Engine(verify=7) as engine:
        seen = run("acceptance", engine, Situation(plan(verify_tokens=0, max_num_seqs=1), {}))
        sent = len(engine.seen)
    assert seen.ok, seen
    assert sent > 1
    assert 0 < seen.figures["first_draft_acceptance"] < 1


def test_too_few_steps_after_the_last_round_fail() -> None:
    """It does not ask for ever, and what it counted is no evidence."""
    situation, answers = Situation(plan(), {}), width_answers(99, 297, [50, 40, 30, 0, 0, 0, 0])
    before, after = answers
    for turn in (1, 2, 3):
        assert gates.more(BY_NAME["acceptance"], situation, [before, *[after] * turn])
    assert gates.more(BY_NAME["acceptance"], situation, [before, *[after] * 4]) == []
    assert not BY_NAME["acceptance"].judge(situation, [before, *[after] * 4]).ok
    enough = width_answers(100, 300, [50, 40, 30, 0, 0, 0, 0])
    assert gates.more(BY_NAME["acceptance"], situation, enough) == []
    assert BY_NAME["acceptance"].judge(situation, enough).ok


@pytest.mark.parametrize(("first", "ok"), [(9, False), (10, True), (999, True), (1000, False)])
def test_share_of_the_first_draft_has_both_ends(first: int, ok: bool) -> None:
    answers = width_answers(1000, 3000, [first, 0, 0, 0, 0, 0, 0])
    seen = BY_NAME["acceptance"].judge(Situation(plan(), {}), answers)
    assert seen.ok is ok, seen


# --- warm-up ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seqs", "requests"), [(1, 11), (2, 13), (3, 16), (4, 20)])
def test_warmup_sends_what_the_recipe_counts(seqs: int, requests: int) -> None:
    with Engine() as engine:
        seen = run("warmup", engine, Situation(plan(max_num_seqs=seqs), {}))
        sent = [body for body in engine.seen if "max_tokens" in body or "messages" in body]
    assert seen.ok, seen
    assert seen.seen == f"{requests} of {requests} requests"
    assert len(sent) == requests == warmup.count(seqs)


@pytest.mark.parametrize("tokenizer", ["words", "bytes", "words_after_start"])
def test_rungs_have_exact_lengths_with_any_tokenizer(monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> None:
    if tokenizer == "words_after_start":
        plain = Engine.tokens
        monkeypatch.setattr(Engine, "tokens", lambda s, p: plain(s, p) if isinstance(p, list) else [1, 2, *plain(s, p)])
    with Engine(tokenizer=tokenizer) as engine:
        seen = run("warmup", engine, Situation(plan(max_num_seqs=1, max_model_len=4096), {}))
        rungs = [engine.tokens(b["prompt"]) for b in engine.seen if b.get("max_tokens") == 1]
    assert seen.ok, seen
    assert [len(r) for r in rungs] == list(warmup.RUNGS)
    assert ("token ids for 1" in seen.seen) is (tokenizer == "words_after_start")


def test_warmup_uses_the_operators_patience() -> None:
    situation = Situation(plan(spark_warmup_timeout=7), {})
    groups = gates.more(BY_NAME["warmup"], situation, [])
    assert {r["timeout"] for g in groups for r in g["requests"]} == {7.0}


def test_warmup_can_be_switched_off() -> None:
    assert BY_NAME["warmup"].applies(Situation(plan(spark_warmup=False), {})) == "spark_warmup is off"


# --- guided output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(list(range(1, 41))), ""),
        ("```json\n" + json.dumps(list(range(1, 41))) + "\n```", ""),
        (json.dumps([True, *range(2, 41)]), "40 items"),
        (json.dumps([1.0, *range(2, 41)]), "40 items"),
        (json.dumps(list(range(1, 42))), "41 items"),
        ('{"a": 1}', "another value"),
        ("[1, 2", "not JSON"),
        (None, "not JSON"),
    ],
)
def test_exact_count(content: str | None, says: str) -> None:
    answer = traffic._empty({"id": "x"}, "g") | {"status": 200, "content": content}
    assert exact_count(answer).startswith(says)
    assert bool(exact_count(answer)) is bool(says)


def test_second_tool_call_is_not_overlooked() -> None:
    call = {"function": {"name": "get_weather", "arguments": '{ "city": "Warsaw" }'}}
    answer = traffic._empty({"id": "x"}, "g") | {"status": 200, "tool_calls": [call]}
    assert tool_call(answer) == 'get_weather({"city":"Warsaw"})'
    assert tool_call(answer | {"tool_calls": [call, call]}).count("get_weather") == 2


def test_soak_spreads_its_requests_over_its_time() -> None:
    with Engine() as engine:
        answers = traffic.run_groups(base_url=engine.url, groups=BY_NAME["soak"].build(Situation(plan(), {})))
    assert len(answers) == 24
    assert answers[-1]["ended"] - answers[0]["started"] > 0.1


def test_quality_runs_only_when_asked_for() -> None:
    with Engine() as engine:
        assert not run("quality", engine, Situation(plan(), {})).ok
    assert not {"quality", "soak"} & {gate.name for gate, _ in choose()}
    assert [gate.name for gate, _ in choose(also=["quality"])][-1] == "quality"


@pytest.mark.parametrize("gate", ["concurrent", "mixed"])
def test_gate_for_two_requests_needs_room_for_two(gate: str) -> None:
    assert BY_NAME[gate].applies(Situation(plan(max_num_seqs=1), {})) == "max_num_seqs is 1"
    assert BY_NAME[gate].applies(Situation(plan(max_num_seqs=2), {})) == ""


# --- ranks and Ray ----------------------------------------------------------------------------------------------------


def state(release: str, **container: Any) -> dict[str, Any]:
    """What spark_state reads on a sound rank."""
    return {
        "current": release,
        "release": {"id": release, "exists": True, "damage": []},
        "docker": None,
        "leftovers": [],
        "containers": [
            {
                "name": "sparkpair-engine",
                "status": "running",
                "running": True,
                "restart_count": 0,
                "labels": {"sparkpair.release": release},
            }
            | container
        ],
        "ray": {"alive": ["192.0.2.2", "192.0.2.1"], "error": None},
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "2 of 2 ranks"),
        ({"restart_count": 1}, "was restarted 1 times"),
        ({"running": False, "status": "exited"}, "does not run"),
        ({"labels": {"sparkpair.release": "0" * 12}}, "does not run"),
    ],
)
def test_ranks(change: Mapping[str, Any], says: str) -> None:
    made = plan()
    states = {0: state(made["release"]), 1: state(made["release"], **change)}
    seen = BY_NAME["ranks"].judge(Situation(made, states), [])
    assert (seen.ok, says in seen.seen) == (not change, True), seen


@pytest.mark.parametrize(
    ("change", "ok"),
    [({}, True), ({"started_at": "later"}, False), ({"id": "another"}, False)],
    ids=["the same", "restarted", "made anew"],
)
def test_an_engine_that_was_restarted_by_hand_in_the_gates_was_accepted(change: Mapping[str, Any], ok: bool) -> None:
    """Docker counts the restarts that it makes itself, and not those of a person."""
    made = plan()
    first = {"id": "one", "started_at": "first"}
    before = {rank: state(made["release"], **first) for rank in (0, 1)}
    now = {0: state(made["release"], **first), 1: state(made["release"], **{**first, **change})}
    seen = BY_NAME["ranks"].judge(Situation(made, now, before=before), [])
    assert (seen.ok, "spark-1: sparkpair-engine was started again" in seen.seen) == (ok, not ok)
    assert BY_NAME["ranks"].judge(Situation(made, now), []).ok


def test_rank_that_was_not_reached_fails() -> None:
    made = plan()
    seen = BY_NAME["ranks"].judge(Situation(made, {0: state(made["release"]), 1: None}), [])
    assert (seen.ok, seen.seen) == (False, "spark-1: not reached")


def test_ranks_that_differ_from_the_plan_fail() -> None:
    made = plan()
    differs = [f"difference {n}" for n in range(7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gates.parity, "differences", lambda p, states: differs if p is made and states == {0: None} else []
        )
        seen = BY_NAME["parity"].judge(Situation(made, {0: None}), [])
        sound = BY_NAME["parity"].judge(Situation(made, {1: None}), [])
    assert (seen.ok, sound.ok) == (False, True)
    assert seen.seen.startswith("difference 0; difference 1")
    assert seen.seen.endswith("and 2 more")
    assert sound.seen == "2 ranks as planned"


def test_stock_gate_fires_on_a_trace_and_is_left_out_with_a_width() -> None:
    made = plan(verify_tokens=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates.parity, "width_traces", lambda _, states: ["spark-1: a schedule"] if states else [])
        seen = BY_NAME["stock"].judge(Situation(made, {0: None}), [])
        sound = BY_NAME["stock"].judge(Situation(made, {}), [])
    assert (seen.ok, seen.seen) == (False, "spark-1: a schedule")
    assert sound.ok
    assert not BY_NAME["stock"].applies(Situation(made, {}))
    assert BY_NAME["stock"].applies(Situation(plan(verify_tokens=3), {})) == "a verify width is planned"


@pytest.mark.parametrize(
    ("ray", "ok", "says"),
    [
        ({"alive": ["192.0.2.2", "192.0.2.1"], "error": None}, True, "alive: 192.0.2.2, 192.0.2.1"),
        ({"alive": ["192.0.2.1"], "error": None}, False, "alive: 192.0.2.1"),
        ({"alive": ["192.0.2.1", "192.0.2.2", "192.0.2.3"], "error": None}, False, "192.0.2.3"),
        ({"alive": [], "error": "ray did not answer"}, False, "ray did not answer"),
        (None, False, "Ray was not asked"),
    ],
)
def test_ray(ray: dict[str, Any] | None, ok: bool, says: str) -> None:
    made = plan()
    seen = BY_NAME["ray"].judge(Situation(made, {0: state(made["release"]) | {"ray": ray}}), [])
    assert seen.ok is ok
    assert says in seen.seen


def test_ray_is_left_out_with_another_executor() -> None:
    assert BY_NAME["ray"].applies(Situation(plan(executor="mp"), {})) == "the executor is not ray"


# --- the choice of gates ----------------------------------------------------------------------------------------------


def test_order_is_fixed_and_cheap_gates_come_first() -> None:
    names = [gate.name for gate, _ in choose(["json", "health", "ranks"])]
    assert names == ["ranks", "health", "json"]


@pytest.mark.parametrize("gate", ["temperature", "memory", "kernel"])
def test_gate_of_the_second_round_is_refused_in_the_first(gate: str) -> None:
    """It would pass with "not read", since nothing is read before the traffic."""
    with pytest.raises(RefusedChoiceError, match=f"{gate} cannot be asked for by also"):
        choose(also=["soak", gate])
    assert [g.name for g, _ in choose(only=[gate])] == [gate]


def test_skipped_gate_stays_with_its_reason() -> None:
    chosen = {gate.name: reason for gate, reason in choose(skip=["long"])}
    assert chosen["long"] == "skipped on request"
    assert not any(reason for name, reason in chosen.items() if name != "long")


@pytest.mark.parametrize("where", ["only", "skip", "also"])
def test_unknown_gate_is_refused(where: str) -> None:
    with pytest.raises(
        RefusedChoiceError, match=r"no gate is named helth; there are ranks, parity, stock, ray, health"
    ):
        choose(**{where: ["helth"]})


@pytest.mark.parametrize("seconds", [0, -1, "5", True, float("inf"), float("nan"), None])
def test_deadline_is_seconds(seconds: Any) -> None:
    with pytest.raises(RefusedChoiceError, match="deadline of gate json"):
        choose(deadlines={"json": seconds})


@pytest.mark.parametrize("value", [-1, "90", True, float("inf"), None])
def test_limit_is_a_number(value: Any) -> None:
    with pytest.raises(RefusedChoiceError, match="limit celsius must be a number"):
        gates.limits({"celsius": value})


def test_limits_are_known_by_name() -> None:
    assert gates.limits({"celsius": 80, "soak_seconds": 0.5}) == {"celsius": 80.0, "soak_seconds": 0.5}
    with pytest.raises(
        RefusedChoiceError, match=r"named celcius; there are celsius, headroom_gib, pause_seconds, soak"
    ):
        gates.limits({"celcius": 80})


def test_soak_lasts_as_long_as_it_is_told() -> None:
    told = Situation(plan(), {}, limits={"soak_seconds": 0.36})
    with Engine() as engine:
        seen = run("soak", engine, told)
    assert seen.ok
    (group,) = BY_NAME["soak"].build(told)
    assert sum(r.get("pause", 0) for r in group["requests"]) == pytest.approx(0.36)


WISHES: dict[str, Any] = {"skip": [], "also": [], "limits": {}, "deadlines": {}}


@pytest.mark.parametrize(
    ("today", "then", "wanted"),
    [
        # A wish of today that the old release cannot meet does not keep it from coming back.
        ({"also": ["quality"]}, {}, {}),
        ({"limits": {"headroom_gib": 1000, "celsius": 20, "pause_seconds": 1, "soak_seconds": 900}}, {}, {}),
        ({"deadlines": {"health": 0.1}}, {}, {}),
        # What it was accepted with counts, as far as it is no harder than the default.
        ({}, {"also": ["soak"]}, {"also": ["soak"]}),
        ({}, {"limits": {"celsius": 97, "headroom_gib": 1.0}}, {"limits": {"celsius": 97, "headroom_gib": 1.0}}),
        ({}, {"limits": {"celsius": 60}, "deadlines": {"health": 1, "warmup": 9000}}, {"deadlines": {"warmup": 9000}}),
        # A wider wish of today counts as well.
        ({"skip": ["long"]}, {"skip": ["kernel"]}, {"skip": ["kernel", "long"]}),
        ({"limits": {"headroom_gib": 0.5}}, {"limits": {"headroom_gib": 1}}, {"limits": {"headroom_gib": 0.5}}),
        # A damaged record is none.
        ({}, {"also": "soak", "deadlines": ["x"]}, {}),
        ({}, {"skip": ["no such gate"], "limits": {"celsius": 97}}, {}),
        ({}, {"also": 7}, {}),
    ],
)
def test_a_return_passes_the_gates_that_its_release_was_accepted_with(
    today: dict[str, Any], then: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert for_a_return(WISHES | today, then) == WISHES | wanted


def test_deadline_of_an_unknown_gate_is_refused() -> None:
    with pytest.raises(RefusedChoiceError, match="no gate is named jsn"):
        choose(deadlines={"jsn": 5})
