"""Speculation counters: what is read, summed, compared and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sparkpair.metrics import Counters, MetricsError, acceptance, delta, draft_width, parse

from tests.standin.engine import Engine

# Lines in the form of a running vLLM 0.32.0 with 7 proposed and 3 verified tokens.
CAPTURED = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny-lab"} 176.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny-lab"} 1.7646528312345e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny-lab"} 528.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny-lab"} 301.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny-lab",position="0"} 130.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny-lab",position="1"} 99.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny-lab",position="2"} 72.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny-lab",position="3"} 0.0
"""


def counters(
    drafts: float = 0, tokens: float = 0, accepted: float = 0, positions: tuple[float, ...] = (0, 0)
) -> Counters:
    return Counters(drafts, tokens, accepted, dict(enumerate(positions)))


def test_reads_a_running_engine() -> None:
    assert parse(CAPTURED) == counters(176, 528, 301, (130, 99, 72, 0))


def test_lines_kept_by_the_pattern_are_enough() -> None:
    kept = "\n".join(line for line in CAPTURED.splitlines() if line.startswith("vllm:spec_decode_num_"))
    assert parse(kept) == parse(CAPTURED)


def test_created_is_not_a_counter() -> None:
    assert parse(CAPTURED).drafts < 1e9


def test_large_numbers_keep_their_exponent() -> None:
    text = CAPTURED.replace(" 176.0", " 1.2e+06").replace(" 528.0", " 3.600001e+06")
    assert (parse(text).drafts, parse(text).draft_tokens) == (1_200_000, 3_600_001)


def test_engines_are_summed() -> None:
    assert parse(CAPTURED + CAPTURED.replace('engine="0"', 'engine="1"')) == counters(
        352, 1056, 602, (260, 198, 144, 0)
    )


@pytest.mark.parametrize("series", ["drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"])
def test_series_that_one_of_several_engines_lacks_is_an_error_that_names_it(series: str) -> None:
    name = f"vllm:spec_decode_num_{series}_total"
    second = CAPTURED.replace('engine="0"', 'engine="1"')
    lacking = "\n".join(line for line in second.splitlines() if name not in line)
    with pytest.raises(MetricsError, match=f"has no {name}.* of engine 1"):
        parse(CAPTURED + lacking)
    assert parse(CAPTURED + second).engines == {"0", "1"}


def test_position_that_one_of_several_engines_lacks_is_an_error() -> None:
    lacking = "\n".join(line for line in CAPTURED.splitlines() if 'position="2"' not in line)
    with pytest.raises(MetricsError, match="of position 2 of engine 1"):
        parse(CAPTURED + lacking.replace('engine="0"', 'engine="1"'))


def test_engine_that_came_between_two_readings_is_an_error() -> None:
    one, two = parse(CAPTURED), parse(CAPTURED + CAPTURED.replace('engine="0"', 'engine="1"'))
    with pytest.raises(MetricsError, match="different engines"):
        delta(one, two)
    assert delta(two, two).drafts == 0


@pytest.mark.parametrize("series", ["drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"])
def test_missing_series_is_an_error_that_names_it(series: str) -> None:
    name = f"vllm:spec_decode_num_{series}_total"
    text = "\n".join(line for line in CAPTURED.splitlines() if name not in line)
    with pytest.raises(MetricsError, match=f"has no .*{name}"):
        parse(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" 176.0", " many"),
        (" 176.0", " NaN"),
        (" 176.0", " +Inf"),
        ('position="0"', 'position="x"'),
        (',position="0"', ""),
    ],
)
def test_malformed_text_is_an_error(old: str, new: str) -> None:
    with pytest.raises(MetricsError):
        parse(CAPTURED.replace(old, new))


def test_growth_is_the_difference() -> None:
    before, after = counters(10, 30, 5, (4, 1)), counters(30, 90, 25, (16, 9))
    assert delta(before, after) == counters(20, 60, 20, (12, 8))
    assert draft_width(delta(before, after)) == 3.0
    assert acceptance(delta(before, after)) == 0.6
    assert acceptance(delta(before, after), 1) == 0.4


@pytest.mark.parametrize("after", [counters(9, 90, 25), counters(30, 29, 25), counters(30, 90, 4), counters(0, 0, 0)])
def test_counter_that_went_back_is_an_error(after: Counters) -> None:
    with pytest.raises(MetricsError, match="went back"):
        delta(counters(10, 30, 5), after)


def test_position_that_went_back_is_an_error() -> None:
    with pytest.raises(MetricsError, match="went back"):
        delta(counters(1, 1, 1, (5, 0)), counters(2, 2, 2, (4, 0)))


def test_other_positions_are_another_engine() -> None:
    with pytest.raises(MetricsError, match="different draft positions"):
        delta(counters(1, 1, 1, (1, 0)), counters(2, 2, 2, (1, 0, 0)))


def test_no_step_is_no_width() -> None:
    still = delta(counters(5, 15, 2), counters(5, 15, 2))
    for read in (draft_width, acceptance):
        with pytest.raises(MetricsError, match="no step"):
            read(still)


def test_acceptance_of_an_uncounted_position_is_an_error() -> None:
    with pytest.raises(MetricsError, match="position 7"):
        acceptance(counters(5, 15, 2), 7)


def test_the_stand_in_counts_like_vllm() -> None:
    engine = Engine(engines=2, counter_base=1.2e6)
    before = parse(engine.metrics())
    assert sum(engine.steps(40, guided=False)) == 40
    grown = delta(before, parse(engine.metrics()))
    engine.server.server_close()
    assert before.drafts == 1.2e6
    assert draft_width(grown) == 3.0
    assert replace(grown, per_position={}).accepted == sum(grown.per_position.values())
    assert not any(v for p, v in grown.per_position.items() if p >= 3)
