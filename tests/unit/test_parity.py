"""Parity of live containers: every planted difference is found, and a pair as planned gives none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from sparkpair import parity

from tests.planning import plan

OVERLAY = {"target": "/usr/lib/vllm/utils.py", "source": "overlays/verify_width/utils.py", "sha256": "a" * 64}


def states(made: dict[str, Any]) -> dict[int, Any]:
    """States of a pair that runs ``made`` exactly."""
    overlays = [OVERLAY] if made["overlays"] else []
    found: dict[int, Any] = {}
    for rank in made["ranks"]:
        mounts = [
            {"source": "/r/entrypoint.py", "target": f"{parity.CODE_DIRECTORY}/entrypoint.py", "read_only": True},
            {"source": "/r/launch.json", "target": f"{parity.CODE_DIRECTORY}/launch.json", "read_only": True},
            {"source": "/r/secrets", "target": parity.RUN_DIRECTORY, "read_only": True},
            *rank["mounts"],
            *({"source": f"/r/{o['source']}", "target": o["target"], "read_only": True} for o in overlays),
        ]
        container = {
            "name": "sparkpair-engine",
            "running": True,
            "labels": {"sparkpair.release": made["release"]},
            "image_id": "sha256:" + "1" * 64,
            "entrypoint": parity.ENTRYPOINT,
            "arguments": list(rank["arguments"]),
            "environment": {**rank["environment"], "PATH": "/usr/bin"},
            "mounts": mounts,
        }
        found[rank["rank"]] = {"containers": [container], "overlays": copy.deepcopy(overlays)}
    return found


@pytest.mark.parametrize("verify_tokens", [0, 3])
@pytest.mark.parametrize("executor", ["ray", "mp"])
def test_a_pair_as_planned_has_no_difference(verify_tokens: int, executor: str) -> None:
    made = plan(verify_tokens=verify_tokens, executor=executor)
    assert parity.differences(made, states(made)) == []


def _environment(key: str, value: str | None) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        environment = state["containers"][0]["environment"]
        environment.pop(key, None)
        if value is not None:
            environment[key] = value

    return change


def _container(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["containers"][0].update(values)


def _drop_mount(target: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        container = state["containers"][0]
        container["mounts"] = [m for m in container["mounts"] if m["target"] != target]

    return change


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "image": (_container(image_id="sha256:" + "2" * 64), "image sha256:222222222222"),
    "argument": (_container(arguments=["--other"]), "arguments differ"),
    "entrypoint": (_container(entrypoint=["bash"]), "entrypoint is ['bash']"),
    "environment value": (_environment("DFLASH_VERIFY_TOKENS", "7"), "DFLASH_VERIFY_TOKENS is '7', planned '3'"),
    "environment missing": (_environment("DFLASH_VERIFY_TOKENS", None), "DFLASH_VERIFY_TOKENS is missing"),
    "environment stray": (_environment("SPARKPAIR_X", "1"), "SPARKPAIR_X is set and not planned"),
    "environment of the image": (_environment("PATH", "/evil"), "environment PATH is '/evil'"),
    "overlay mount": (_drop_mount(OVERLAY["target"]), f"mount {OVERLAY['target']} is missing"),
    "code mount": (_drop_mount(parity.RUN_DIRECTORY), f"mount {parity.RUN_DIRECTORY} is missing"),
    "overlay bytes": (lambda s: s["overlays"][0].update(sha256="b" * 64), "differs between ranks"),
    "stopped": (_container(running=False), "does not run"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_difference_on_one_rank_is_found(kind: str) -> None:
    made = plan(verify_tokens=3)
    change, wanted = PLANTED[kind]
    found = states(made)
    change(found[1])
    differences = parity.differences(made, found)
    assert any(wanted in d for d in differences), differences


def test_equal_but_absent_on_all_ranks_is_a_difference() -> None:
    made = plan(verify_tokens=3)
    found = states(made)
    for state in found.values():
        _environment("DFLASH_VERIFY_TOKENS", None)(state)
        _drop_mount(OVERLAY["target"])(state)
        state["overlays"] = []
    text = "\n".join(parity.differences(made, found))
    for rank in made["ranks"]:
        assert f"{rank['host']}: environment DFLASH_VERIFY_TOKENS is missing" in text
    assert "no rank holds a file of the planned overlays" in text


def test_stock_leaves_no_trace_of_a_width() -> None:
    made = plan(verify_tokens=0)
    assert parity.width_traces(made, states(made)) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (_environment("DFLASH_VERIFY_TOKENS", "3"), "DFLASH_VERIFY_TOKENS"),
        (_container(arguments=['{"num_speculative_tokens_per_batch_size":[[1,4,3]]}']), "a schedule"),
        (lambda s: s["overlays"].append(dict(OVERLAY)), "overlay file"),
        (lambda s: s["containers"][0]["mounts"].append({"source": "/r/overlays/x", "target": "/x"}), "mount of"),
        (_container(running=False), "no engine runs"),
    ],
)
def test_a_trace_of_a_width_on_one_rank_is_found(change: Callable[[dict[str, Any]], None], wanted: str) -> None:
    made = plan(verify_tokens=0)
    found = states(made)
    change(found[1])
    traces = parity.width_traces(made, found)
    assert len(traces) == 1
    assert wanted in traces[0]
    assert made["ranks"][1]["host"] in traces[0]


@pytest.mark.parametrize(("layers", "same"), [("sha256:aa", True), ("sha256:bb", False), ("", False)])
def test_ids_of_two_image_stores_are_told_apart_by_the_layers(layers: str, same: bool) -> None:
    made = plan()
    live = states(made)
    live[0]["layers"] = {live[0]["containers"][0]["image_id"]: "sha256:aa"}
    live[1]["containers"][0]["image_id"] = "sha256:" + "2" * 64
    live[1]["layers"] = {"sha256:" + "2" * 64: layers}
    assert (parity.differences(made, live) == []) is same
