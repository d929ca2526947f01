"""Drift: what was accepted against what is live."""

from __future__ import annotations

from typing import Any

import pytest
from sparkpair import parity
from sparkpair.containers import CONTAINER, LABEL_RELEASE
from sparkpair.drift import drift
from sparkpair.render import CODE_DIRECTORY, RUN_DIRECTORY

from tests.planning import plan

PLAN = plan(verify_tokens=0)
RELEASE = PLAN["release"]
NAMES = {0: "a", 1: "b"}


def state(rank: int, **changed: Any) -> dict[str, Any]:
    """A rank that runs exactly what it accepted."""
    wanted = PLAN["ranks"][rank]
    mounts = [(f"{CODE_DIRECTORY}/entrypoint.py", True), (f"{CODE_DIRECTORY}/launch.json", True), (RUN_DIRECTORY, True)]
    mounts += [(m["target"], m["read_only"]) for m in wanted["mounts"]]
    container = {
        "name": CONTAINER,
        "status": "running",
        "running": True,
        "restart_count": 0,
        "labels": {LABEL_RELEASE: RELEASE},
        "entrypoint": parity.ENTRYPOINT,
        "arguments": list(wanted["arguments"]),
        "environment": dict(wanted["environment"]),
        "mounts": [{"source": "/x", "target": target, "read_only": only} for target, only in mounts],
        "image": PLAN["image"],
        "image_id": "sha256:one",
    }
    recorded = {key: PLAN[key] for key in PLAN if key != "settings"}
    recorded["ranks"] = [{k: v for k, v in r.items() if k != "host"} for r in PLAN["ranks"]]
    return {
        "docker": None,
        "current": RELEASE,
        "release": {"id": RELEASE, "exists": True, "damage": []},
        "leftovers": [],
        "overlays": [],
        "containers": [container],
        "history": [{"run": "r", "release": RELEASE, "outcome": "accepted", "image_id": "sha256:one"}],
        "history_damaged": [],
        "history_fault": "",
        "lock": None,
        "plans": {RELEASE: recorded},
        **changed,
    }


def pair() -> dict[int, Any]:
    """Both ranks as accepted."""
    return {0: state(0), 1: state(1)}


def test_a_pair_as_it_was_accepted_has_no_drift() -> None:
    assert drift(pair(), NAMES) == []


@pytest.mark.parametrize("returned_to", [RELEASE, ""])
def test_the_release_that_a_return_went_to_is_what_is_wanted(returned_to: str) -> None:
    """Regression: after a return to an older release the last acceptance was another one, and drift never ended."""
    states = pair()
    for found in states.values():
        found["history"] += [
            {"run": "s", "release": "0" * 12, "outcome": "accepted"},
            {"run": "t", "release": "1" * 12, "outcome": "rolled_back", "returned_to": returned_to},
        ]
    found = drift(states, NAMES)
    assert (found == []) == bool(returned_to), found


def test_an_acceptance_that_one_rank_could_not_record_and_the_return_from_it_are_no_drift() -> None:
    states = pair()
    states[0]["history"] += [
        {"run": "s", "release": "0" * 12, "outcome": "accepted"},
        {"run": "s", "release": "0" * 12, "outcome": "rolled_back", "returned_to": RELEASE},
    ]
    assert drift(states, NAMES) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: s.update(current="0" * 12), "b: current release is 000000000000"),
        (lambda s: s["release"].update(damage=[".env: content differs"]), f"b: release {RELEASE} is damaged: .env"),
        (lambda s: s["containers"].clear(), f"b: {CONTAINER} of release {RELEASE} does not run"),
        (lambda s: s["containers"][0].update(image_id="sha256:two"), "accepted was sha256:one"),
        (lambda s: s["containers"][0]["arguments"].append("--x"), "arguments differ"),
        (lambda s: s["containers"][0]["environment"].update(DFLASH_VERIFY_TOKENS="3"), "DFLASH_VERIFY_TOKENS is set"),
        (lambda s: s["containers"][0]["mounts"].pop(), "is missing"),
        (
            lambda s: s["history"].append({"run": "q", "release": "x", "outcome": "accepted"}),
            f"the ranks accepted different releases last: a {RELEASE}, b x",
        ),
        (lambda s: s["history"].clear(), "b: no release was ever accepted here"),
    ],
    ids=["current", "file", "container", "image", "argument", "environment", "mount", "record", "no record"],
)
def test_each_kind_of_drift_on_one_rank_is_named(spoil: Any, says: str) -> None:
    states = pair()
    spoil(states[1])
    assert any(says in text for text in drift(states, NAMES)), drift(states, NAMES)


def test_a_line_that_nobody_can_mend_is_no_drift_for_ever() -> None:
    states = pair()
    states[1]["history_damaged"] = [4]
    states[0]["history"].insert(0, {"run": "while b was offline", "release": "x", "outcome": "not_restored"})
    assert drift(states, NAMES) == []


def test_a_rank_that_is_not_reached_is_drift() -> None:
    assert "b: not reached" in drift({0: state(0), 1: None}, NAMES)
