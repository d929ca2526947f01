"""How every rank gets the head's image, chosen from what the ranks hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sparkpair.image_choice import Choice, choose, differences
from sparkpair.images import content
from sparkpair.plan import build_plan, engine_image
from sparkpair.settings import Refused

from tests.fakeengine import image
from tests.planning import OVERLAYS, plan, rank, refusals, resolved

PIN = "registry.example/engine@sha256:" + "9" * 64
PULLED = content(image("a", "b", digests=[PIN]), PIN)
LOADED = content(image("a", "b"), "x")
BUILT = content(image("a", "b", "ray"), "x") | {"inputs": "1" * 64}
OTHER = content(image("a", "c"), "x")


def held(here: dict[str, Any] | None = None, source: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a rank holds; it is ready when something is there."""
    return {"here": here, "source": source, "ready": here is not None}


def chosen(head: Any, worker: Any, mode: str = "stream", steps: tuple[str, ...] = (), **values: Any) -> Choice:
    """The choice for a pair."""
    values = {"image": PIN, "ray_version": "", **values}
    made = plan(image_transfer=mode, **values)
    return choose(made, {"spark-0": head, "spark-1": worker}, list(steps))


@pytest.mark.parametrize("mode", ["stream", "pull", "none"])
@pytest.mark.parametrize("here", [PULLED, LOADED, LOADED | {"id": "sha256:another store"}])
def test_ranks_with_the_same_content_need_nothing(mode: str, here: dict[str, Any]) -> None:
    assert chosen(held(PULLED), held(here), mode) == Choice()


def test_a_rank_without_it_receives_it_from_the_head() -> None:
    choice = chosen(held(PULLED), held())
    assert (choice.stream, choice.prepare, choice.problems) == (["spark-1"], {}, [])
    assert choice.lines[0].endswith("from the head over 192.0.2.1")


def test_a_rank_with_other_content_under_the_same_name_receives_the_head_s() -> None:
    assert chosen(held(PULLED), held(OTHER)).stream == ["spark-1"]


@pytest.mark.parametrize("mode", ["stream", "pull", "none"])
def test_what_was_pulled_on_the_rank_by_hand_is_only_named(mode: str) -> None:
    choice = chosen(held(PULLED), held(None, PULLED), mode)
    assert choice.prepare["spark-1"]["source"] == PIN
    assert choice.prepare["spark-1"]["reference"].startswith("sparkpair/engine:")
    assert choice.stream == []


def test_a_rank_pulls_what_the_head_has_and_not_what_a_tag_is_now() -> None:
    choice = chosen(held(PULLED), held(), "pull", image="registry.example/engine:1")
    assert choice.prepare == {"spark-1": {"source": PIN, "reference": "registry.example/engine:1"}}


def test_what_was_built_on_the_head_is_sent_and_its_base_pulled() -> None:
    choice = chosen(held(BUILT, PULLED), held(), "pull")
    assert choice.prepare == {"spark-1": {"source": PIN, "reference": PIN}}
    assert choice.stream == ["spark-1"]
    assert chosen(held(BUILT, PULLED), held(None, PULLED), "pull").prepare == {}


@pytest.mark.parametrize(
    ("head", "worker", "mode", "problem"),
    [
        (held(LOADED), held(), "pull", "spark-1: .*no registry digest.*image_transfer: stream"),
        (held(PULLED), held(), "none", "spark-1: .* is not there, the head has sha256:999999.*none forbids"),
        (held(PULLED), held(OTHER), "none", "spark-1: .* is another image"),
        (held(PULLED), None, "stream", "spark-1: its image was not seen"),
        (held(), held(PULLED), "none", r"spark-0 \(head\): .* is not there"),
        (None, held(PULLED), "stream", r"spark-0 \(head\)"),
    ],
)
def test_what_cannot_be_had_names_rank_and_reason(head: Any, worker: Any, mode: str, problem: str) -> None:
    choice = chosen(head, worker, mode)
    assert len(choice.problems) == 1
    assert re.search(problem, choice.problems[0])


def test_check_mode_before_the_head_s_pull_says_what_is_not_known_yet() -> None:
    choice = chosen(held(), held(), steps=("pull x",))
    assert choice.lines == ["spark-0: pull x", "spark-1: then the head's image by stream, unless it is there"]
    assert (choice.stream, choice.prepare, choice.problems) == ([], {}, [])


def test_three_ranks_are_served_by_what_each_lacks() -> None:
    made = build_plan(resolved(image=PIN, ray_version=""), [rank(n) for n in range(3)], OVERLAYS).to_json()
    choice = choose(made, {"spark-0": held(PULLED), "spark-1": held(LOADED), "spark-2": held()}, [])
    assert choice.stream == ["spark-2"]


@pytest.mark.parametrize(
    ("worker", "found"),
    [
        (held(LOADED), []),
        (held(), ["spark-1: sparkpair/engine:"]),
        (held(OTHER), ["spark-1: sparkpair/engine:"]),
    ],
)
def test_at_the_end_a_rank_that_differs_is_named(worker: Any, found: list[str]) -> None:
    made = plan(image=PIN, ray_version="")
    problems = differences(made, {"spark-0": held(PULLED), "spark-1": worker})
    assert [p[: len(f)] for p, f in zip(problems, found, strict=True)] == found
    assert differences(made, {"spark-0": held(), "spark-1": worker}) != []


# --- the name that the plan gives -------------------------------------------------------------------------------------


def test_an_image_without_digest_keeps_its_own_name() -> None:
    made = plan(image="local/engine:1", ray_version="")
    assert (made["image"], made["image_inputs"]) == ("local/engine:1", "")


def test_the_default_image_gets_a_name_that_every_rank_can_have() -> None:
    made = plan()
    assert made["image"] == f"sparkpair/engine:{made['image_inputs'][:12]}"
    assert made["settings"]["image"].endswith("9bb1557a4234fce63d59599e44d10747eabd742beb337eebf9e7070be8a0fd58")


def test_the_name_changes_with_all_that_the_image_is_made_of_and_with_nothing_else() -> None:
    def name(recipe: str = "r", **values: Any) -> str:
        return engine_image(resolved(**values).settings, recipe)[0]

    changed = [name("other"), name(image=PIN), name(ray_version="2.59.0"), name(executor="mp"), name(ray_version="")]
    assert name() not in changed
    assert len(set(changed[:3])) == 3
    assert name(executor="mp") == name(executor="mp", ray_version="2.59.0") == name("other", ray_version="")
    assert name() == name(image_transfer="pull", ray_wheels="/wheels", max_num_seqs=2)


def test_a_ray_without_requirements_file_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(Refused, match=r"has no requirements file; allowed: 2\.60\.0, or empty"):
        build_plan(resolved(ray_version="2.1.0"), [rank(0), rank(1)], OVERLAYS, ray_recipes={"2.60.0": "x"})
    for values in ({"ray_version": ""}, {"ray_version": "2.1.0", "executor": "mp"}, {}):
        build_plan(resolved(**values), [rank(0), rank(1)], OVERLAYS, ray_recipes={"2.60.0": "x"})


def test_a_registry_account_needs_the_file_with_its_password() -> None:
    assert len(refusals(registry_user="robot")) == 1
    assert "registry_password_file" in refusals(registry_user="robot")[0]
    assert refusals(registry_user="robot", registry_password_file="/etc/sparkpair/token") == []
