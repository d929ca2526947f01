"""The report: the table of the discussion, the page, the schema of its data, and the comparison of two runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sparkpair import bench_compare, bench_report
from sparkpair.bench_results import Attempt, Burst, Counted, Measured, Results, Run, Temperature, json_schema, load
from sparkpair.bench_summary import advice, lines, outputs, temperature

from tests.bench import LAB, bracket, counters, fixed, works

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = {
    "count": {"A1": 66.9603, "B": 41.6436, "C": 41.4392, "A2": 66.8721},
    "clamp": {"A1": 63.5715, "B": 39.9767, "C": 40.1336, "A2": 63.2061},
}


@pytest.fixture(scope="module")
def measured() -> Results:
    """A bracket on stand-ins, of a pair with GPUs as far as the plan says."""
    return bracket(works("count", "json", "concurrency", "mixed", runs=2))


@pytest.fixture(scope="module")
def html(measured: Results) -> str:
    """Its page."""
    return bench_report.html(measured)


class Page(HTMLParser):
    """Tags, their attributes, and the text of a page; a tag that is not closed in order is an error."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.replace("\N{NO-BREAK SPACE}", " "))

    @property
    def text(self) -> str:
        """All of the text."""
        return " ".join(" ".join(self.words).split())


def test_table_has_the_form_and_the_figures_of_the_discussion() -> None:
    text = bench_report.markdown(fixed(PUBLISHED))
    assert "| workload | A1 7/7 | B 7/3 | C 3/3 | A2 7/7 | B vs control | C vs control | drift |" in text
    assert "| count 1-200 | 66.96 | 41.64 | 41.44 | 66.87 | -37.77 % | -38.07 % | -0.13 % |" in text
    assert "| clamp code | 63.57 | 39.98 | 40.13 | 63.21 | -36.93 % | -36.69 % | -0.57 % |" in text
    assert "**Run stock: 7/3 is slower on count 1-200 (-37.77 %) and clamp code (-36.93 %);" in text
    assert "PROVES THE PROCEDURE" not in text
    assert "output identical in every run of every arm" in text


def test_page_loads_nothing_and_is_well_formed(html: str) -> None:
    page = Page(html)
    assert [t for t, _ in page.found if t in {"script", "link", "img", "iframe"}] == []
    loaded = [v for _, attrs in page.found for k, v in attrs.items() if k in {"src", "href", "xlink:href"} and v]
    assert [v for v in loaded if not v.startswith("#")] == []
    assert not re.search(r"url\((?!#)|@import", html)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.found


def test_ids_of_the_page_are_unique_and_every_reference_finds_one(html: str) -> None:
    page = Page(html)
    ids = [a["id"] for _, a in page.found if a.get("id")]
    assert len(ids) == len(set(ids))
    wanted = {v.removeprefix("#") for _, a in page.found for k, v in a.items() if k == "xlink:href" and v}
    assert wanted
    assert wanted <= set(ids)


def test_page_shows_every_plot_table_and_attempt(html: str) -> None:
    page = Page(html)
    labels = [a["aria-label"] or "" for t, a in page.found if t == "figure"]
    assert [label.split(":")[0] for label in labels] == [
        *("Decode speed", "Against stock", "Drift of the controls", "Several at once", "First token"),
        *("Accepted drafts", "Accepted drafts"),
    ]
    for words in (
        "several at once: 4",
        "sha256 d14c2e22623212c4c2749689f6ecb601d15872a7f350f0b8fbb6c277a8565490",
        "proposal 7, verify 3",
        "proposal 3, verify 3",
        "spark-0 65 °C; spark-1: no sensor",
        "No temperature of spark-1: no sensor: nvidia-smi: not found",
        "restored",
    ):
        assert words in page.text, words
    assert page.text.count("both right") == 4 * 2


def test_pair_without_gpus_says_in_large_letters_that_it_proves_no_speed() -> None:
    lab = bracket(works("count", runs=1), **LAB)
    page = bench_report.html(lab)
    assert re.search(r'class="banner".*?<strong>This proves the procedure, not speed</strong>', page, re.S)
    assert "THIS PROVES THE PROCEDURE, NOT SPEED" in bench_report.markdown(lab)
    assert advice(lab, lines(lab)).sentence.startswith("No recommendation, since this pair has no GPUs.")


def test_pair_with_gpus_has_no_such_banner(html: str) -> None:
    assert 'class="banner"' not in html


def test_text_from_outside_is_escaped(measured: Results) -> None:
    work = measured.workloads[0].model_copy(update={"title": "<script>alert(1)</script>"})
    changed = measured.model_copy(update={"workloads": [work, *measured.workloads[1:]]})
    page = bench_report.html(changed)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_unfinished_run_says_what_is_missing_and_recommends_nothing() -> None:
    found = fixed({"count": {k: v for k, v in PUBLISHED["count"].items() if k != "A2"}, "clamp": PUBLISHED["clamp"]})
    text = bench_report.markdown(found)
    assert "- A2 7/7 has not measured count" in text
    assert "- count 1-200: control A2 has no good run" in text
    assert "**No recommendation: inconclusive for count 1-200." in text
    assert Page(bench_report.html(found)).text.count("inconclusive") >= 2


@pytest.mark.parametrize(
    ("width", "steps", "good"),
    [(3, 100, True), (2.9, 100, True), (2.5, 6, True), (2.8, 100, False), (7, 50, False), (1, 200, False)],
)
def test_an_arm_that_drafted_another_width_than_planned_is_inconclusive(width: float, steps: int, good: bool) -> None:
    found = fixed(PUBLISHED)
    counted = Counted(drafts=steps, draft_tokens=round(width * steps), accepted=1, per_position=[1])
    changed = found.arm("B").measured["count"].runs[0].model_copy(update={"counted": counted})
    found.arm("B").measured["count"].runs[2] = changed
    reasons = {line.key: line.compared.reasons for line in lines(found)}
    assert reasons["clamp"] == ()
    said = f"B: run 3: {width:.2f} draft tokens per step, and 3 are planned"
    assert reasons["count"] == (() if good else (said,))


def test_an_arm_without_evidence_of_its_width_was_recommended() -> None:
    """Regression: no drafts, or counters that went back, were taken for the planned width."""
    figures = {"count": {"A1": 10.0, "B": 12.0, "C": 10.0, "A2": 10.0}}
    assert advice(fixed(figures), lines(fixed(figures))).arm == "B"
    broken = "a counter went back between two readings: the engine was restarted"
    for change, said in (
        ({"counted": counters(3, drafts=0)}, "no step drafted"),
        ({"counted": None, "counters_error": broken}, broken),
        ({"counted": None}, "no counters on record"),
    ):
        found = fixed(figures)
        runs = found.arm("B").measured["count"].runs
        runs[:] = [run.model_copy(update=change) for run in runs]
        assert advice(found, lines(found)).arm is None
        (line,) = lines(found)
        assert line.compared.reasons == (f"B: runs 1, 2, 3, 4, 5: {said}",)
        assert said in bench_report.markdown(found)
        assert said in Page(bench_report.html(found)).text


def test_control_guided_runs_may_draft_less_but_must_be_counted() -> None:
    found = fixed({"json": dict.fromkeys(("A1", "B", "C", "A2"), 10.0)})
    runs = found.arm("B").measured["json"].runs
    runs[:] = [run.model_copy(update={"counted": counters(1)}) for run in runs]
    assert lines(found)[0].compared.reasons == ()
    runs[0] = runs[0].model_copy(update={"counted": None, "counters_error": "/metrics has no x"})
    assert lines(found)[0].compared.reasons == ("B: run 1: /metrics has no x",)


def test_control_an_arm_without_speculation_needs_no_counters() -> None:
    found = fixed({"count": {"A1": 10.0, "B": 9.0, "A2": 10.0}}, arms="stock,off,stock")
    assert lines(found)[0].compared.reasons == ()


def bursts(found: Results, rates: dict[str, float], **more: Any) -> None:
    """Give the arms three bursts of two requests each."""
    for label, rate in rates.items():
        arm = found.arm(label)
        one = Run(seed=1, tokens=400, decode=rate, ttft=0.5, finish_reason="length", output_sha256="a" * 64)
        width = arm.plan["expected_width"]
        made = {"overlap": 4.0, "counted": counters(width), **(more if label == "B" else {})}
        arm.measured["concurrency"] = Measured(
            bursts=[Burst(width=2, total=2 * rate, each=[one] * 2, skew=0, **made)] * 3
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"overlap": 0.0}, "never decoded together"),
        ({"overlap": None, "counted": None}, "an older result, without a record of counters or overlap"),
        ({"counted": counters(7)}, "7.00 draft tokens per step, and 3 are planned"),
        ({"counted": None, "counters_error": "/metrics has no x"}, "/metrics has no x"),
        ({}, ""),
    ],
)
def test_requests_that_never_met_were_judged_as_requests_at_once(change: dict[str, Any], said: str) -> None:
    """Regression: a burst was compared whether or not its requests shared a batch, and without its counters."""
    found = fixed({"concurrency": {}}, runs=3)
    bursts(found, {"A1": 10, "B": 12, "C": 10, "A2": 10}, **change)
    (line,) = lines(found)
    assert line.compared.reasons == ((f"B: runs 1, 2, 3: {said}",) if said else ())


def test_counters_of_a_mixed_attempt_that_cannot_be_read_are_shown(measured: Results) -> None:
    found = measured.model_copy(deep=True)
    attempt = found.arm("B").measured["mixed"].attempts[0]
    attempt.counted, attempt.counters_error = None, "/metrics has no x"
    assert "/metrics has no x" in bench_report.markdown(found)


def with_attempts(found: Results, arm: str, **change: Any) -> Results:
    """The results with one mixed attempt of every arm, that of ``arm`` changed."""
    found.workloads += works("mixed", tokens=400)
    for one in found.arms:
        run = Run(seed=1, tokens=400, decode=9, ttft=1, finish_reason="length", output_sha256="a" * 64)
        right = Attempt(skew=0, overlap=2, ordinary=run, guided=run, guided_fault="", counted=None)
        one.measured["mixed"] = Measured(attempts=[right.model_copy(update=change if one.id == arm else {})])
    return found


def test_wrong_guided_answers_did_not_matter_to_the_advice() -> None:
    """Regression: an arm was recommended however often its guided answers were broken beside another request."""
    faster = {"count": {"A1": 10.0, "B": 12.0, "C": 10.0, "A2": 10.0}}
    right = with_attempts(fixed(faster), "")
    assert (
        advice(right, lines(right)).sentence
        == "Run 7/3: faster than stock on count 1-200 (+20.00 %), slower on nothing."
    )
    wrong = with_attempts(fixed(faster), "B", guided_fault="39 items")
    found = advice(wrong, lines(wrong))
    assert found.arm is None
    said = "7/3 is barred: wrong beside another request (attempt 1, guided: 39 items)."
    assert said in found.sentence
    control = with_attempts(fixed(faster), "A2", guided_fault="39 items")
    assert advice(control, lines(control)).arm == "B"
    assert "A2 7/7 was wrong beside another request" in advice(control, lines(control)).sentence


def test_missing_mixed_evidence_is_said() -> None:
    faster = {"count": {"A1": 10.0, "B": 12.0, "C": 10.0, "A2": 10.0}}
    said = "There is no evidence about ordinary and guided requests in one batch for"
    alone, none = with_attempts(fixed(faster), "B", overlap=0), fixed(faster)
    assert advice(alone, lines(alone)).sentence.endswith(f"{said} 7/3.")
    assert advice(none, lines(none)).sentence.endswith(f"{said} 7/3, 3/3.")
    assert said not in advice(fixed(PUBLISHED), lines(fixed(PUBLISHED))).sentence


def test_an_ordinary_answer_that_ended_early_was_called_right() -> None:
    """Regression: 12 of 400 tokens beside a right guided answer were "both right"."""
    run = Run(seed=1, tokens=12, decode=9, ttft=1, finish_reason="stop", output_sha256="a" * 64)
    text = bench_report.markdown(with_attempts(fixed(PUBLISHED), "B", ordinary=run))
    assert "ordinary: 12 of 400 tokens (finish reason stop)" in text
    assert text.count("both right") == 3


def test_figures_without_a_control_were_called_inconclusive() -> None:
    """Regression: ``current`` and a lone control got "Stock stays the setting to run" and empty columns."""
    for arms, label in (("current", "B"), ("stock", "A1")):
        found = fixed({"count": {}}, arms="7/3" if arms == "current" else arms)
        filled = fixed({"count": {label: 10.0}}, arms="7/3" if arms == "current" else arms)
        found.arms = filled.arms
        assert advice(found, lines(found)).sentence == "Measured only; nothing was compared."
        text = bench_report.markdown(found)
        assert f"| workload | {label} " in text
        for words in ("vs control", "| drift |", "nconclusive:", "Stock stays"):
            assert words not in text, words
    assert "| drift |" in bench_report.markdown(fixed({"count": {"A1": 10.0, "A2": 10.0}}, arms="stock,stock"))


def test_one_workload_that_drifts_leaves_a_sentence_per_class() -> None:
    drifting = {"hashmap": {"A1": 10.0, "B": 10.0, "C": 10.0, "A2": 11.0}}
    found = fixed(PUBLISHED | drifting)
    assert "inconclusive for hash-map prose. Stock stays" in advice(found, lines(found)).sentence
    text = bench_report.markdown(found)
    assert "- Structured and code (2 of 2 conclusive): 7/3 is slower on count 1-200 (-37.77 %)" in text
    assert "- Prose (0 of 1 conclusive): nothing can be said." in text


def test_sentence_of_a_pair_without_gpus_reads_well() -> None:
    found = fixed(PUBLISHED)
    found.procedure_only = True
    said = "No recommendation, since this pair has no GPUs. Its figures by themselves"
    assert advice(found, lines(found)).sentence.startswith(f"{said} would say: Run stock: 7/3 is slower")
    few = fixed(PUBLISHED, runs=1)
    few.procedure_only = True
    assert advice(few, lines(few)).sentence == f"{said} are inconclusive for count 1-200 and clamp code."


def test_two_arms_of_one_name_are_told_apart() -> None:
    found = fixed({"count": {"A1": 10.0, "B": 8.0, "C": 10.0, "A2": 10.0}}, arms="stock,7/3,7/3,stock")
    assert "B 7/3 is slower on count 1-200 (-20.00 %); C 7/3 makes no" in advice(found, lines(found)).sentence


def test_outputs_of_failed_requests_were_called_identical() -> None:
    """Regression: the hash of no text at all was "identical in every run of every arm"."""
    found = fixed({"count": dict.fromkeys(("A1", "B", "C", "A2"), 10.0)})
    count = found.workload("count")
    runs = found.arm("B").measured["count"].runs
    runs[0] = runs[0].model_copy(update={"error": "status 500", "output_sha256": "e" * 64})
    assert outputs(found, count).startswith("output identical in every good run of every arm (sha256 aaaa")
    for arm in found.arms:
        arm.measured["count"].runs = [runs[0]] * 5
    assert outputs(found, count) == ""


def test_sampled_outputs_are_compared_run_by_run() -> None:
    found = fixed({"thunderstorm": dict.fromkeys(("A1", "B", "C", "A2"), 10.0)})
    work = found.workload("thunderstorm").model_copy(update={"tokens": 400})
    for arm in found.arms:
        arm.measured["thunderstorm"].runs = [
            run.model_copy(update={"output_sha256": str(n) * 64})
            for n, run in enumerate(arm.measured["thunderstorm"].runs)
        ]
    assert outputs(found, work) == "a run's output identical in every arm for 5 of 5 runs"
    runs = found.arm("B").measured["thunderstorm"].runs
    runs[0] = runs[1]
    assert outputs(found, work).startswith("a run's output identical in every arm for 4 of 5 runs, so content")


def test_changes_and_verdict_lay_beyond_the_edge_of_a_phone() -> None:
    """Regression: the last columns of the table were off the screen."""
    found = fixed(PUBLISHED | {"hashmap": {"A1": 10.0, "B": 9.0, "C": 10.0, "A2": 11.0}})
    page = bench_report.html(found).replace("\N{NO-BREAK SPACE}", " ")
    assert '<span class="phone">B -37.77 %\nC -38.07 %\ndrift -0.13 %</span>' in page
    assert '<span class="phone">B -14.29 %\nC -4.76 %\ndrift +10.00 %\ninconclusive</span>' in page
    assert re.search(r"max-width: 600px.*\.phone \{ display: block", page, re.S)
    assert 'class="phone">' not in bench_report.html(fixed({"count": {"B": 10.0}}, arms="7/3"))


@pytest.mark.parametrize(
    ("left", "serving", "restored", "said"),
    [
        (None, True, True, "3f9c2a51b7e0, restored"),
        (None, False, True, "3f9c2a51b7e0 (not serving), stopped again"),
        (None, True, False, "3f9c2a51b7e0, not put back yet"),
        ("feedfeedfeed", True, True, "3f9c2a51b7e0; left as it is, release feedfeedfeed by another run"),
    ],
)
def test_a_release_of_another_run_was_called_restored(
    left: str | None, serving: bool, restored: bool, said: str
) -> None:
    """Regression: finding another controller's release at the end was reported as having put back the old one."""
    found = fixed(PUBLISHED)
    found.left, found.restored, found.before.serving = left, restored, serving
    assert said in Page(bench_report.html(found)).text
    assert f"| served before | {said} |" in bench_report.markdown(found)


def test_reasons_resumptions_and_times_reach_both_forms() -> None:
    found = fixed(PUBLISHED)
    found.messages, found.resumed = ["ended by a failure: rank 1 is lost"], ["2026-12-02T08:30:00Z"]
    found.arms[0].started, found.arms[0].finished = "2026-12-02T08:01:00Z", "2026-12-02T08:09:00Z"
    for text in (bench_report.markdown(found), Page(bench_report.html(found)).text):
        for words in (
            "ended by a failure: rank 1 is lost",
            "and went on at 2026-12-02T08:30:00Z",
            "2026-12-02T08:01:00Z to 2026-12-02T08:09:00Z",
            "structured_width stock",
            "41.64, 41.64, 41.64, 41.64, 41.64",
            found.image,
            "400 length",
        ):
            assert words in text, words
    assert "| count 1-200 | 400 | 5 | 0 | 1 | count.txt |" in bench_report.markdown(found)


def test_ends_of_text_are_not_ignored_for_a_guided_workload() -> None:
    found = fixed({"json": {}, "count": {}})
    found.ignore_eos = True
    assert "ignored, so that every answer has its length; kept for JSON by schema" in bench_report.markdown(found)


def test_the_first_token_of_a_cached_prompt_was_shown_as_the_time_of_a_prefill(html: str) -> None:
    assert html.count("rompt cached by the warm-up") + html.count("prompt is cached by the warm-up") >= 3
    assert "prompt cached by the warm-up" in bench_report.markdown(fixed(PUBLISHED))


def test_time_between_pieces_took_the_slowest_run_for_the_95th_percentile() -> None:
    found = fixed(PUBLISHED)
    runs = found.arm("B").measured["count"].runs
    runs[0] = runs[0].model_copy(update={"pieces_ms": (1, 900)})
    assert bench_report.workload_rows(found, found.workload("count"))[1][2] == "1.0 / 2.0 ms"


def test_nothing_measured_still_makes_a_page() -> None:
    found = fixed({"count": {}})
    assert "A1 7/7 has not measured count" in Page(bench_report.html(found)).text
    assert bench_report.markdown(found)


def test_differing_outputs_are_said() -> None:
    found = fixed(PUBLISHED)
    count = found.workload("count")
    assert outputs(found, count).startswith("output identical")
    other = found.arm("B").measured["count"].runs[0].model_copy(update={"output_sha256": "b" * 64})
    found.arm("B").measured["count"].runs = [other] * 5
    assert outputs(found, count).startswith("output differs between arms")
    found.arm("B").measured["count"].runs = [other, *found.arm("A1").measured["count"].runs[1:]]
    assert outputs(found, count).startswith("output differs between runs of B")


def test_temperatures_take_the_hottest_and_state_a_missing_sensor() -> None:
    arm = fixed(PUBLISHED).arms[0]
    assert temperature(arm) == "not read"
    for name, celsius in (("count", 60.0), ("clamp", 65.0)):
        arm.measured[name].temperatures = [
            Temperature(host="spark-0", sensor="gpu 0", celsius=celsius),
            Temperature(host="spark-1", sensor=None, celsius=None, missing="no sensor"),
        ]
    assert temperature(arm) == "spark-0 65 °C; spark-1: no sensor"


# --- results.json -----------------------------------------------------------------------------------------------------


def test_results_are_what_the_published_schema_says(measured: Results, tmp_path: Path) -> None:
    path = measured.save(tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(data, json_schema())
    assert (data["schema"], data["status"]) == (1, "complete")
    assert load(path) == measured
    assert not list(tmp_path.glob(".results*"))
    data["arms"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema())
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match="surprise"):
        load(path)


def test_the_published_schema_is_current() -> None:
    published = json.loads((ROOT / "docs" / "benchmark.schema.json").read_text(encoding="utf-8"))
    assert published == json_schema(), "python -m sparkpair.bench_results > docs/benchmark.schema.json"


def test_report_is_made_again_from_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fixed(PUBLISHED).save(tmp_path)
    assert bench_report.main([str(path)]) == 0
    first = (tmp_path / "report.html").read_bytes()
    assert bench_report.main([str(path)]) == 0
    assert (tmp_path / "report.html").read_bytes() == first
    assert str(tmp_path / "report.md") in capsys.readouterr().out
    assert bench_report.main([str(tmp_path / "gone.json")]) == 2
    assert bench_report.main([]) == 2


# --- compare ----------------------------------------------------------------------------------------------------------


def test_two_runs_are_compared_arm_by_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faster = {"count": {k: v * 1.1 for k, v in PUBLISHED["count"].items()} | {"D": 10.0}}
    old, new = fixed(PUBLISHED), fixed(faster, arms="stock,7/3,3/3,stock,7/1")
    new.id, new.max_num_seqs = "20261203T080000Z", 2
    paths = []
    for one in (old, new):
        folder = tmp_path / one.id
        paths.append(str(one.save(folder)))
    assert bench_compare.main(paths) == 0
    text = capsys.readouterr().out
    assert "| count 1-200 | B 7/3 | 41.64 | 45.81 | +10.00 % | +10.00 % to +10.00 % |  |" in text
    for said in ("max_num_seqs: 4 and 2", "workload clamp is in one of them only", "arm D 7/1 is in one of them only"):
        assert f"- {said}" in text


def test_compare_was_silent_about_releases_drift_width_and_concurrency() -> None:
    """Regression: two ``current`` runs of different widths gave a change without a remark; drift did not matter."""
    old, new = fixed(PUBLISHED), fixed(PUBLISHED | {"count": PUBLISHED["count"] | {"A2": 100.0}})
    new.id = "20261203T080000Z"
    assert bench_compare.differences(old, new) == []
    new.arm("B").plan |= {"release": "another", "expected_width": 7}
    assert bench_compare.differences(old, new) == [
        "arm B 7/3, expected_width: 3 and 7",
        f"arm B 7/3, release: {old.arm('B').plan['release']} and another",
    ]
    text = bench_compare.markdown(old, new)
    assert "inconclusive in 20261203T080000Z, count 1-200: B: runs 1, 2, 3, 4, 5: 3.00 draft tokens per step" in text
    assert "the controls drifted by" in text
    # Runs of another width than planned are no measurement.
    assert [row for row in bench_compare.rows(old, new) if row[1].startswith("B")] == []
    marks = {row[0]: row[6] for row in bench_compare.rows(old, new)}
    assert marks["count 1-200"] == "inconclusive"


def test_control_of_compare_conclusive_runs_have_no_remark() -> None:
    assert bench_compare.open_reasons(fixed(PUBLISHED)) == []
    assert {row[6] for row in bench_compare.rows(fixed(PUBLISHED), fixed(PUBLISHED))} == {""}
    old, new = fixed({"concurrency": {}}, runs=3), fixed({"concurrency": {}}, runs=3)
    for found, rate in ((old, 10.0), (new, 11.0)):
        bursts(found, dict.fromkeys(("A1", "B", "C", "A2"), rate))
    assert bench_compare.rows(old, new)[0][:6] == [
        *("several at once: 2", "A1 7/7", "20.00", "22.00", "+10.00 %", "+10.00 % to +10.00 %")
    ]


def test_another_prompt_is_no_comparison() -> None:
    old, new = fixed(PUBLISHED), fixed(PUBLISHED)
    new.workloads = [w.model_copy(update={"sha256": "0" * 64}) for w in new.workloads]
    assert {row[4] for row in bench_compare.rows(old, new)} == {"another request"}
    assert {row[4] for row in bench_compare.rows(old, old)} == {"+0.00 %"}


def test_files_that_cannot_be_compared_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    assert bench_compare.main([str(tmp_path / "bad.json")] * 2) == 2
    assert "bad.json" in capsys.readouterr().err
    assert bench_compare.main(["one"]) == 2
