"""Statistics of the benchmark, on the published figures of the first one and on made-up ones."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.bench_statistics import (
    DRIFT_BOUND,
    LEAST_AT_ONCE,
    LEAST_RUNS,
    RULE,
    Compared,
    Sample,
    bootstrap,
    change,
    change_interval,
    compare,
    drift,
    middle,
    recommend,
)

COUNT = {"A1": 66.9603, "B": 41.6436, "C": 41.4392, "A2": 66.8721}
CODE = {"A1": 63.5715, "B": 39.9767, "C": 40.1336, "A2": 63.2061}
CONTROLS = ("A1", "A2")
rates = st.lists(st.floats(min_value=0.5, max_value=500), min_size=1, max_size=6)


def compared(figures: dict[str, float], runs: int = 5, **more: float) -> Compared:
    """Compare arms of which every run has the same rate."""
    return compare({a: Sample((r,) * runs) for a, r in figures.items()}, CONTROLS, runs, **more)


@pytest.mark.parametrize(
    ("figures", "against_control", "moved"), [(COUNT, "-37.77%", "-0.13%"), (CODE, "-36.93%", "-0.57%")]
)
def test_published_figures_of_the_discussion(figures: dict[str, float], against_control: str, moved: str) -> None:
    found = compared(figures)
    assert f"{found.changes['B'].value:+.2%}" == against_control
    assert f"{found.drift:+.2%}" == moved
    assert found.conclusive
    assert [found.verdict(arm) for arm in ("B", "C")] == ["slower", "slower"]


def test_7_3_against_3_3_in_the_discussion() -> None:
    assert [f"{change(f['B'], [f['C']]):+.2%}" for f in (COUNT, CODE)] == ["+0.49%", "-0.39%"]


def test_the_sentence_names_the_loss_and_keeps_stock() -> None:
    advice = recommend({"count": compared(COUNT), "code": compared(CODE)}, {"B": "7/3", "C": "3/3"})
    assert advice.arm is None
    assert advice.sentence == (
        "Run stock: 7/3 is slower on count (-37.77 %) and code (-36.93 %); "
        "3/3 is slower on count (-38.07 %) and code (-36.69 %)."
    )
    assert "slower on none" in advice.rule


def test_an_arm_that_gains_and_never_loses_is_recommended() -> None:
    faster = compared({"A1": 10, "B": 12, "C": 13, "A2": 10})
    same = compared({"A1": 10, "B": 10.05, "C": 9, "A2": 10})
    advice = recommend({"prose": faster, "code": same}, {"B": "7/3", "C": "3/3"})
    assert (advice.arm, advice.sentence) == (
        "B",
        "Run 7/3: faster than stock on prose (+20.00 %), slower on nothing.",
    )


def test_of_two_winners_the_faster_one_is_recommended() -> None:
    advice = recommend({"prose": compared({"A1": 10, "B": 12, "C": 13, "A2": 10})}, {"B": "7/3", "C": "3/3"})
    assert advice.arm == "C"


def test_gain_and_loss_keep_stock_and_name_both() -> None:
    prose, code = compared({"A1": 10, "B": 12, "A2": 10}), compared({"A1": 10, "B": 8, "A2": 10})
    advice = recommend({"prose": prose, "code": code}, {"B": "7/3"})
    assert advice.sentence == "Run stock: 7/3 is faster on prose (+20.00 %) and slower on code (-20.00 %)."


def test_one_inconclusive_workload_ends_the_recommendation() -> None:
    bad = compare({"A1": Sample((10,)), "B": Sample((20,))}, CONTROLS, 1)
    advice = recommend({"prose": bad, "code": compared(CODE)}, {"B": "7/3"})
    assert advice.arm is None
    assert advice.sentence.startswith("No recommendation: inconclusive for prose.")
    many = recommend({f"prose {n}": bad for n in range(4)} | {"code": compared(CODE)}, {"B": "7/3"})
    assert many.sentence.startswith("No recommendation: inconclusive for 4 of 5 comparisons.")
    assert recommend({}, {}).sentence.startswith("No recommendation: nothing was compared")


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ({"A1": Sample((10.0,) * 5), "B": Sample((9.0,) * 5)}, "control A2 has no good run"),
        ({"B": Sample((9.0,) * 5), "A2": Sample((10.0,) * 5)}, "control A1 has no good run"),
        ({"A1": Sample((10.0,) * 5), "A2": Sample((10.0,) * 4)}, "A2: 4 of 5 runs"),
        (
            {
                "A1": Sample((10.0,) * 5),
                "B": Sample((9.0,) * 4, ("run 3: 212 of 400",)),
                "A2": Sample((10.0,) * 5),
            },
            "B: run 3: 212 of 400",
        ),
        (
            {"A1": Sample((10.0,) * 5), "A2": Sample((10.3,) * 5)},
            "the controls drifted by +3.00 % from A1 to A2; the bound is 2 %",
        ),
    ],
)
def test_inconclusive_says_why(samples: dict[str, Sample], reason: str) -> None:
    found = compare(samples, CONTROLS, 5)
    assert reason in found.reasons
    assert found.verdict("B") == "inconclusive"


def test_control_of_the_reasons_a_clean_bracket_has_none() -> None:
    clean = compared({"A1": 10, "B": 9, "A2": 10 * (1 + DRIFT_BOUND - 0.001)})
    assert clean.reasons == ()
    assert clean.verdict("B") == "slower"


def test_a_single_run_could_recommend() -> None:
    """Regression: the interval of one run is one point, and was beyond every bound."""
    samples = {label: Sample((rate,)) for label, rate in {"A1": 10, "B": 12, "A2": 10}.items()}
    few = compare(samples, CONTROLS, 1, least=LEAST_RUNS)
    assert few.reasons == ("1 run of each arm, and a recommendation needs 5",)
    assert recommend({"prose": few}, {"B": "7/3"}).arm is None
    enough = compare({a: Sample(s.rates * 5) for a, s in samples.items()}, CONTROLS, 5, least=LEAST_RUNS)
    assert recommend({"prose": enough}, {"B": "7/3"}).arm == "B"
    assert f"at least {LEAST_RUNS} runs of every arm ({LEAST_AT_ONCE} of several" in RULE


def test_a_barred_arm_is_named_and_never_recommended() -> None:
    found = {"prose": compared({"A1": 10, "B": 13, "C": 12, "A2": 10})}
    names = {"B": "7/3", "C": "3/3"}
    assert recommend(found, names).arm == "B"
    barred = recommend(found, names, {"B": "it was wrong"})
    assert (barred.arm, barred.sentence.endswith("7/3 is barred: it was wrong.")) == ("C", True)
    both = recommend(found, names, dict.fromkeys(names, "it was wrong"))
    assert both.arm is None
    assert both.sentence.startswith("Run stock: 7/3 is faster on prose (+30.00 %); 3/3 is faster")


def test_arms_without_enough_controls_are_inconclusive() -> None:
    one = compare({"A1": Sample((10.0,)), "B": Sample((9.0,))}, ["A1"], 1)
    assert one.reasons == ("there is only one control arm (A1), so the drift is not known",)
    assert f"{one.changes['B'].value:+.0%}" == "-10%"
    none = compare({"B": Sample((9.0,))}, [], 1)
    assert none.reasons == ("there is no control arm, so nothing to compare with",)
    assert none.changes == {}


def test_drift_widens_what_counts_as_equal() -> None:
    steady = compared({"A1": 10, "B": 10.2, "A2": 10})
    drifting = compared({"A1": 10, "B": 10.25, "A2": 10.19})
    assert (steady.verdict("B"), drifting.verdict("B")) == ("faster", "equal")
    assert drifting.conclusive


def test_a_wide_interval_is_no_difference() -> None:
    noisy = compare({"A1": Sample((10, 10, 10)), "B": Sample((9, 12, 14)), "A2": Sample((10, 10, 10))}, CONTROLS, 3)
    assert noisy.changes["B"].value > 0.19
    assert noisy.verdict("B") == "equal"


@settings(max_examples=20, deadline=None)
@given(rates)
def test_an_interval_holds_its_median_and_stays_within_the_values(values: list[float]) -> None:
    found = middle(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found.value == median(values)


@settings(max_examples=20, deadline=None)
@given(rates, rates, rates)
def test_a_change_is_scale_free_and_deterministic(arm: list[float], first: list[float], last: list[float]) -> None:
    found = change_interval(arm, [first, last])
    assert found == change_interval(arm, [first, last])
    scaled = change_interval([r * 8 for r in arm], [[r * 8 for r in g] for g in (first, last)])
    assert scaled.value == pytest.approx(found.value)
    assert scaled.low == pytest.approx(found.low)


@given(st.floats(min_value=0.5, max_value=500), st.floats(min_value=0.5, max_value=500))
def test_midpoint_lies_between_the_controls(a: float, b: float) -> None:
    assert change(a, [a, b]) * change(b, [a, b]) <= 0
    assert drift(a, b) * drift(b, a) <= 0


def test_rates_that_cannot_be_compared_are_refused() -> None:
    for wrong in (lambda: drift(0, 1), lambda: change(1, []), lambda: change(1, [0]), lambda: bootstrap([], sum)):
        with pytest.raises(ValueError, match="needs"):
            wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="every group"):
        middle([])
