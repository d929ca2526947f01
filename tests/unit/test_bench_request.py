"""What a benchmark is asked for: prompts and their checksums, arms, and runs that go on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from sparkpair import bench_runs
from sparkpair.bench_arms import Arm, RefusedError, parse
from sparkpair.bench_results import ArmResult, Before, Measured, Results, load
from sparkpair.bench_workloads import PROMPTS, choose
from sparkpair.bench_workloads import load as load_workloads

from tests.planning import plan

# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "begins"), [("thunderstorm.txt", "20e59ae8"), ("night_train.txt", "5a727eb5")])
def test_prose_prompts_of_the_discussion_have_the_published_sha256(file: str, begins: str) -> None:
    assert hashlib.sha256((PROMPTS / file).read_bytes()).hexdigest().startswith(begins)


def test_every_workload_reads_the_prompt_that_its_checksum_names() -> None:
    found = {w.name: w for w in load_workloads()}
    assert list(found) == [
        *("count", "clamp", "hashmap", "photosynthesis", "json", "thunderstorm", "night_train"),
        *("concurrency", "mixed"),
    ]
    for work in found.values():
        assert hashlib.sha256(work.prompt.encode()).hexdigest() == work.sha256
    prose = [found[n] for n in ("thunderstorm", "night_train")]
    assert [(w.temperature, w.top_p, w.tokens) for w in prose] == [(1, 0.95, 512)] * 2
    greedy = [found[n] for n in ("count", "clamp")]
    assert [(w.temperature, w.runs, w.tokens, w.nonce) for w in greedy] == [(0, 5, 400, False)] * 2
    assert found["json"].guide is not None
    assert found["concurrency"].widths == [1, 2, 4]


def manifest(folder: Path, **changes: Any) -> Path:
    """A folder with one workload, changed."""
    (folder / "p.txt").write_bytes(b"Hello.")
    entry = {"name": "p", "title": "p", "kind": "single", "text": "prose", "file": "p.txt", "tokens": 4, "runs": 1}
    entry |= {"temperature": 0, "top_p": 1, "sha256": hashlib.sha256(b"Hello.").hexdigest(), **changes}
    (folder / "manifest.yml").write_text(yaml.safe_dump({"schema": 1, "workloads": [entry]}), encoding="utf-8")
    return folder


def test_a_manifest_is_read(tmp_path: Path) -> None:
    assert load_workloads(manifest(tmp_path))[0].prompt == "Hello."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, "has sha256"),
        ({"file": "gone.txt"}, "cannot be read"),
        ({"tokens": 1}, "tokens"),
        ({"kind": "other"}, "kind"),
        ({"sead": 1}, "sead"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=words):
        load_workloads(manifest(tmp_path, **changes))


def test_own_prompts_come_after_the_manifest_with_a_nonce(tmp_path: Path) -> None:
    (tmp_path / "my prompt.txt").write_text("Write a haiku.\n", encoding="utf-8")
    found = choose(["count"], [str(tmp_path / "my prompt.txt")], runs=2, tokens=30)
    assert [(w.name, w.runs, w.tokens, w.nonce) for w in found] == [("count", 2, 30, False), ("my-prompt", 2, 30, True)]
    assert found[1].prompt == "Write a haiku.\n"
    assert len(choose([], [str(tmp_path / "my prompt.txt")])) == len(choose()) + 1


def test_workloads_that_cannot_be_chosen_are_refused(tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("x", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" ", encoding="utf-8")
    for names, prompts, more, words in (
        (["cuont"], [], {}, "'cuont': is no workload; allowed: count, clamp"),
        (["count"], [str(tmp_path / "count.txt")], {}, "count stands twice"),
        ([], [str(tmp_path / "gone.txt")], {}, "cannot be read"),
        ([], [str(tmp_path / "empty.txt")], {}, "is empty"),
        ([], [], {"runs": 0}, "runs = 0"),
        ([], [], {"tokens": 1}, "tokens = 1"),
    ):
        with pytest.raises(RefusedError, match=words):
            choose(names, prompts, **more)


# --- arms -------------------------------------------------------------------------------------------------------------


def test_the_default_bracket_has_the_labels_of_the_discussion() -> None:
    assert [(a.id, a.spec, a.control) for a in parse(None)] == [
        ("A1", "stock", True),
        ("B", "7/3", False),
        ("C", "3/3", False),
        ("A2", "stock", True),
    ]


@pytest.mark.parametrize("given", ["stock, 7/1,off ,7/7", ["stock", "7/1", "off", "stock"]])
def test_arms_become_settings_that_plan(given: object) -> None:
    arms = parse(given)
    assert [a.id for a in arms] == ["A1", "B", "C", "A2"]
    made = {a.id: plan(**(a.settings or {})) for a in arms}
    assert [made[a]["expected_width"] for a in made] == [7, 1, None, 7]
    assert made["A1"]["release"] == made["A2"]["release"]


def test_static_width_needs_no_overlay_and_a_narrow_one_does() -> None:
    static, narrow = (plan(**(a.settings or {})) for a in parse("3/3,7/3"))
    assert (static["expected_width"], static["overlays"]) == (3, [])
    assert (narrow["expected_width"], len(narrow["overlays"])) == (3, 2)


def test_current_is_not_deployed() -> None:
    assert parse("current") == [Arm("B", "current", None)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("7/2", "'7/2': is not an arm; allowed: stock, off, current"),
        ("3/7", "'3/7': is not an arm"),
        ("8/3", "'8/3': is not an arm"),
        ("stock,current", "current is measured alone"),
        ("stock,,7/3", "holds an empty name"),
        (7, "is not a list"),
    ],
)
def test_arms_that_make_no_sense_are_refused(given: object, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        parse(given)


# --- runs that go on --------------------------------------------------------------------------------------------------


def results(run_id: str, arms: str = "stock,7/3,stock", release: str = "old") -> Results:
    """A run that has measured nothing."""
    made = [ArmResult(id=a.id, spec=a.spec, control=a.control, plan={"release": f"r-{a.spec}"}) for a in parse(arms)]
    return Results(
        id=run_id,
        started="2026-12-02T08:00:00Z",
        procedure_only=False,
        endpoint="http://192.0.2.1:8888",
        model="m",
        image="i",
        max_num_seqs=4,
        ranks=["spark-0", "spark-1"],
        ignore_eos=False,
        drift_bound=0.02,
        workloads=choose(["count"]),
        arms=made,
        before=Before(release=release, serving=True),
    )


def interrupted(reports: Path) -> Results:
    """A run that was interrupted in its second arm."""
    run = bench_runs.open_run(reports, results("1"), "auto")
    bench_runs.begin(reports, run)
    run.arms[0].measured["count"] = Measured()
    run.save(bench_runs.path_of(reports, "1"))
    return run


def test_a_run_goes_on_with_what_it_noted_of_before(tmp_path: Path) -> None:
    interrupted(tmp_path)
    found = bench_runs.open_run(tmp_path, results("2", release="arm of run 1"), "auto")
    assert (found.id, found.before.release) == ("1", "old")
    assert [found.missing(a) for a in found.arms] == [[], ["count"], ["count"]]


@pytest.mark.parametrize("resume", ["auto", "true", "false"])
def test_what_another_verb_deployed_since_the_interruption_is_not_undone(tmp_path: Path, resume: str) -> None:
    """The lock was released, the operator deployed, and then the benchmark went on."""
    interrupted(tmp_path)
    found = bench_runs.open_run(tmp_path, results("2", release="deployed since"), resume, theirs=True)
    assert found.before.release == "deployed since"


def test_a_run_that_was_put_back_takes_what_serves_now(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    run.restored = True
    run.save(bench_runs.path_of(tmp_path, "1"))
    found = bench_runs.open_run(tmp_path, results("2", release="deployed since"), "true")
    assert (found.id, found.before.release) == ("1", "deployed since")
    bench_runs.begin(tmp_path, found)
    assert load(bench_runs.path_of(tmp_path, "1") / "results.json").restored is False


def test_another_request_is_refused_while_one_is_interrupted(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(RefusedError, match=r"run 1 .* was interrupted, and this request is another one"):
        bench_runs.open_run(tmp_path, results("2", "stock,7/1,stock"), "auto")
    assert load(bench_runs.path_of(tmp_path, "1") / "results.json").status == "unfinished"


def test_beginning_anew_abandons_the_interrupted_run_and_keeps_its_note(tmp_path: Path) -> None:
    interrupted(tmp_path)
    found = bench_runs.open_run(tmp_path, results("2", "stock,7/1,stock", "an arm"), "false")
    bench_runs.begin(tmp_path, found)
    assert (found.id, found.before.release) == ("2", "old")
    assert load(bench_runs.path_of(tmp_path, "1") / "results.json").status == "abandoned"


def test_a_finished_run_is_no_reason_to_go_on(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    run.status = "complete"
    run.save(bench_runs.path_of(tmp_path, "1"))
    assert bench_runs.open_run(tmp_path, results("2"), "auto").id == "2"
    with pytest.raises(RefusedError, match="no run was interrupted"):
        bench_runs.open_run(tmp_path, results("2"), "true")


def test_a_run_of_current_puts_nothing_back(tmp_path: Path) -> None:
    run = bench_runs.open_run(tmp_path, results("1", "current"), "auto")
    bench_runs.begin(tmp_path, run)
    assert (run.deploys, run.restored) == (False, True)


def test_a_damaged_results_file_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (bench_runs.path_of(tmp_path, "1") / "results.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RefusedError, match=r"results\.json: cannot be read"):
        bench_runs.open_run(tmp_path, results("2"), "auto")
    with pytest.raises(RefusedError, match="resume = 'maybe'"):
        bench_runs.open_run(tmp_path, results("2"), "maybe")


def test_a_damaged_old_file_refused_every_later_benchmark(tmp_path: Path) -> None:
    """Regression: one file that cannot be read stood in the way for ever; a newer whole run shows it is not needed."""
    run = interrupted(tmp_path)
    run.status = "complete"
    run.save(bench_runs.path_of(tmp_path, "1"))
    (bench_runs.path_of(tmp_path, "0")).mkdir()
    (bench_runs.path_of(tmp_path, "0") / "results.json").write_text("{}", encoding="utf-8")
    assert bench_runs.open_run(tmp_path, results("2"), "auto").id == "2"
    assert bench_runs.damaged(tmp_path) == [bench_runs.path_of(tmp_path, "0") / "results.json"]


def test_a_second_run_of_one_second_gets_its_own_folder(tmp_path: Path) -> None:
    interrupted(tmp_path)
    assert (bench_runs.free_id(tmp_path, "1"), bench_runs.free_id(tmp_path, "3")) == ("1-2", "3")
