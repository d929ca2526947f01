"""The measurement, against the stand-in engine over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from sparkpair.bench_measure import SEED, calls_left, left, read_run, shown, steps, tag
from sparkpair.bench_results import Measured
from sparkpair.bench_summary import drafts, fault_of, sample_of
from sparkpair.gatekit import PATIENCE, overlap

from tests.bench import empty, measure, situation, works
from tests.standin.engine import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(step_seconds=0.001) as running:
        yield running


def test_a_run_measures_rate_first_token_counters_and_output(engine: Engine) -> None:
    (work,) = works("count", runs=3)
    found = measure(engine, situation(verify_tokens=3), work)
    assert len(found.runs) == 3
    for run in found.runs:
        assert (run.tokens, run.finish_reason, run.error, run.counters_error) == (40, "length", None, None)
        assert run.decode is not None
        assert run.ttft is not None
        assert run.ttft > 0
        assert run.counted is not None
        assert run.counted.draft_tokens == 3 * run.counted.drafts
        assert run.counted.per_position[3:] == [0] * 4
        # All tokens but the first came in steps of one draft each: accepted ones and one more per step.
        assert run.counted.accepted + run.counted.drafts >= 39
    assert len({run.output_sha256 for run in found.runs}) == 1
    assert sample_of(found.runs, 40).faults == ()


def test_rate_counts_tokens_after_the_first_over_the_time_after_it() -> None:
    answer = {
        **{"error": None, "status": 200, "text": None, "json": None, "content": "x", "reasoning_content": None},
        **{"started": 10.0, "first_token": 11.5, "ended": 21.5, "events": [11.5, 13.0, 17.5, 21.0]},
        **{"usage": {"completion_tokens": 401}, "finish_reason": "length"},
    }
    run = read_run(answer, 1)
    assert (run.decode, run.ttft, run.tokens) == (40.0, 1.5, 401)
    assert run.pieces_ms == (3500.0, 4400.0)
    assert read_run({**answer, "usage": {"completion_tokens": 1}}, 1).decode is None


def test_without_speculation_there_are_no_counters_and_no_complaint() -> None:
    (work,) = works("count", runs=1)
    with Engine(speculates=False) as engine:
        (run,) = measure(engine, situation(spec_method="none"), work).runs
    assert (run.counted, run.counters_error, run.error) == (None, None, None)


def test_requests_carry_the_protocol(engine: Engine) -> None:
    work, prose = works("count", "thunderstorm", runs=2)
    where = situation(verify_tokens=3)
    measure(engine, where, work)
    measure(engine, where, prose)
    counts = engine.seen[:3]
    assert [b["seed"] for b in counts] == [SEED, SEED + 16, SEED + 32]
    for body in counts:
        assert body["messages"] == [{"role": "user", "content": work.prompt}]
        assert (body["temperature"], body["top_p"], body["max_tokens"], body["stream"]) == (0, 1, 40, True)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert "ignore_eos" not in body
    assert [(b["temperature"], b["top_p"]) for b in engine.seen[3:]] == [(1, 0.95)] * 3


def test_every_arm_sends_the_same_bytes() -> None:
    work = works("concurrency")[0]
    asked = [list(steps(situation(**s), work, "run", ignore_eos=False)) for s in ({}, {"verify_tokens": 3})]
    bodies = [[r.get("body") for step in made for g in step.groups for r in g["requests"]] for made in asked]
    assert bodies[0] == bodies[1]


def test_nonce_differs_between_requests_and_between_runs() -> None:
    work = works("concurrency")[0]  # a warm-up and two runs in widths 1, 2 and 4
    contents = [
        r["body"]["messages"][0]["content"]
        for run_id in ("one", "two")
        for step in steps(situation(), work, run_id, ignore_eos=False)
        for r in step.groups[1]["requests"]
    ]
    prefixes = [c.removesuffix(work.prompt) for c in contents]
    assert len(set(prefixes)) == len(prefixes) == 2 * 3 * (1 + 2 + 4)
    assert tag("a", 1) != tag("a", 2)
    plain = works("count")[0]
    body = next(steps(situation(), plain, "one", ignore_eos=False)).groups[1]["requests"][0]["body"]
    assert hashlib.sha256(body["messages"][0]["content"].encode()).hexdigest() == plain.sha256


def test_a_schema_guides_the_json_workload_which_never_ignores_the_end(engine: Engine) -> None:
    (work,) = works("json", runs=1)
    found = measure(engine, situation(verify_tokens=3), work, ignore_eos=True)
    assert engine.seen[0]["response_format"]["json_schema"]["schema"] == work.guide
    assert "ignore_eos" not in engine.seen[0]
    assert (found.runs[0].tokens, found.runs[0].finish_reason) == (40, "length")


def test_a_text_that_ends_early_is_no_measurement_unless_ends_are_ignored() -> None:
    (work,) = works("count", runs=1)
    with Engine("ends_early") as engine:
        kept = measure(engine, situation(verify_tokens=3), work)
        ignored = measure(engine, situation(verify_tokens=3), work, ignore_eos=True)
    assert sample_of(kept.runs, 40).rates == ()
    assert sample_of(kept.runs, 40).faults == ("run 1: 20 of 40 tokens (finish reason stop)",)
    assert "only 20 of 40 tokens" in shown(work, kept.runs[0])
    assert sample_of(ignored.runs, 40).faults == ()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error_500", "status 500"),
        ("truncated", "the stream ended without [DONE]"),
        ("stream_error", "the stream carries an error"),
        ("no_tokens", "0 tokens and no text"),
    ],
)
def test_a_request_that_fails_is_a_result_with_its_reason(fault: str, words: str) -> None:
    (work,) = works("count", runs=1)
    with Engine(fault) as engine:
        (run,) = measure(engine, situation(verify_tokens=3), work).runs
    assert run.decode is None
    assert words in (run.error or "")
    assert words in fault_of(run, 40)
    assert words in shown(work, run)


@pytest.mark.parametrize(("fault", "words"), [("no_metrics", "/metrics has no"), ("no_positions", "per_pos")])
def test_counters_that_cannot_be_read_leave_the_rate(fault: str, words: str) -> None:
    (work,) = works("count", runs=1)
    with Engine(fault) as engine:
        (run,) = measure(engine, situation(verify_tokens=3), work).runs
    assert run.counted is None
    assert words in (run.counters_error or "")
    assert run.decode


def test_drafts_are_summed_over_runs(engine: Engine) -> None:
    (work,) = works("count", runs=3)
    found = drafts([r.counted for r in measure(engine, situation(verify_tokens=3), work).runs])
    assert found is not None
    assert found.width == 3.0
    assert found.per_step == pytest.approx(sum(found.per_position))
    assert found.ratio == pytest.approx(found.per_step / 3)
    assert drafts([None]) is None


def test_several_at_once_sum_their_tokens_over_the_common_time(engine: Engine) -> None:
    work = works("concurrency", runs=2)[0]
    found = measure(engine, situation(verify_tokens=3), work)
    assert [b.width for b in found.bursts] == [1, 1, 2, 2, 4, 4]
    for burst in found.bursts:
        assert len(burst.each) == burst.width
        assert burst.total is not None
        assert burst.total <= sum(r.decode or 0 for r in burst.each) * 1.0001
        assert burst.skew >= 0
        assert burst.overlap is not None
        assert burst.overlap > 0
        assert burst.counted is not None
        assert burst.counted.draft_tokens == 3 * burst.counted.drafts
    assert "tok/s together" in shown(work, found.bursts[0])
    assert found.left_out == []


def test_more_at_once_than_the_pair_decodes_is_left_out_and_said(engine: Engine) -> None:
    found = measure(engine, situation(max_num_seqs=2), works("concurrency", runs=1)[0])
    assert found.left_out == ["4 at once, since max_num_seqs is 2"]
    assert {b.width for b in found.bursts} == {1, 2}
    mixed = measure(engine, situation(max_num_seqs=1), works("mixed", runs=1)[0])
    assert (len(mixed.left_out), mixed.attempts) == (1, [])


def test_mixed_attempts_show_their_overlap_and_their_width() -> None:
    work = works("mixed", tokens=120, runs=3)[0]
    with Engine(step_seconds=0.003) as engine:
        found = measure(engine, situation(verify_tokens=3), work)
    assert len(found.attempts) == 3
    for attempt in found.attempts:
        assert attempt.evidence
        assert attempt.guided_fault == ""
        assert attempt.skew is not None
        assert attempt.counted is not None
        # Guided steps keep 7 while ordinary ones draft 3.
        assert 3 < attempt.counted.draft_tokens / attempt.counted.drafts < 7


def test_an_attempt_without_overlap_is_kept_as_no_evidence() -> None:
    work = works("mixed", runs=3)[0]
    with Engine("serial", step_seconds=0.001) as engine:
        found = measure(engine, situation(verify_tokens=3), work)
    assert [(a.evidence, a.overlap) for a in found.attempts] == [(False, 0.0)] * 3
    assert shown(work, found.attempts[0]).endswith("so no evidence")


def test_a_wrong_guided_answer_is_named() -> None:
    work = works("mixed", runs=1)[0]
    with Engine("broken_grammar") as engine:
        (attempt,) = measure(engine, situation(verify_tokens=3), work).attempts
    assert attempt.guided_fault.startswith("39 items")
    assert shown(work, attempt).startswith("39 items")


def test_calls_that_are_left_shrink_with_what_is_measured() -> None:
    found = empty("stock,stock", works("count", "mixed", "concurrency", runs=2))
    # Warm-up and two runs each; the concurrency in three widths; two arms.
    assert calls_left(situation(), found) == 2 * (3 + 3 + 9)
    found.arms[0].measured["concurrency"] = Measured()
    assert calls_left(situation(), found) == 2 * (3 + 3 + 9) - 9


def test_a_long_answer_has_the_patience_of_the_gates() -> None:
    step = next(steps(situation(), works("count")[0], "run", ignore_eos=False))
    assert {r["timeout"] for g in step.groups for r in g["requests"]} == {PATIENCE}


@pytest.mark.parametrize(
    ("elapsed", "deploys", "calls", "further", "said"),
    [
        (60, [], (10, 100), 0, "about 9 min left"),
        (25, [], (10, 20), 0, "less than a minute left"),
        # 3 s a call for 30 more, and three arms and the way back at 100 s each.
        (130, [100], (10, 40), 3, "about 8 min left"),
        (345, [100, 200], (15, 30), 0, "about 3 min left"),
    ],
)
def test_the_time_left_does_not_take_a_rollout_for_calls(
    elapsed: float, deploys: list[float], calls: tuple[int, int], further: int, said: str
) -> None:
    """Regression: the first call after a deploy made the rest of half an hour look like eight hours."""
    assert left(elapsed, deploys, calls=calls, further=further) == said


# --- decoded together -------------------------------------------------------------------------------------------------


def stream(*events: float) -> dict[str, list[float]]:
    """The part of an answer that tells when its pieces came."""
    return {"events": list(events)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0.0, 10.0), (4.0, 5.0, 6.0)),
        ((0.0, 1.0, 2.000001), (2.0, 3.0, 4.0)),
        ((0.0, 1.0, 2.0), (3.0, 4.0, 5.0)),
        ((0.0, 1.0, 2.0), ()),
    ],
    ids=["one stood still", "a microsecond", "one after the other", "nothing came"],
)
def test_spans_that_cross_without_pieces_of_both_were_taken_for_an_overlap(
    one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    """Regression: a stream with pieces at 0 s and 10 s, and one at 4 to 6 s, were 2 s of evidence."""
    assert overlap([stream(*one), stream(*other)]) == 0.0
    assert overlap([stream(*other), stream(*one)]) == 0.0
    assert overlap([]) == 0.0


def test_control_a_real_stream_with_several_tokens_per_piece_keeps_its_overlap() -> None:
    """As the lab's engine sent them: 50 pieces of 8 tokens, beside a guided answer of 113 tokens in 15 pieces."""
    ordinary = stream(*(0.054 + 0.054 * n for n in range(50)))
    guided = stream(*(0.071 + 0.047 * n for n in range(15)))
    assert overlap([ordinary, guided]) == pytest.approx(0.047 * 14)
    # The least there is: two pieces of each.
    assert overlap([stream(0.0, 1.0, 2.0), stream(0.5, 1.5, 2.5)]) == 1.5
