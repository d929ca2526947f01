"""The pair after a deploy with verify_tokens=3."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.labtest import CHECKOUT, Run, engine, tree


def test_every_rank_runs_the_current_release(sparks: list[Any]) -> None:
    """The container's label, the link and the release's own plan name one release on all ranks."""
    seen = set()
    for spark in sparks:
        with spark.sudo():
            current = spark.file("/opt/sparkpair/current").linked_to.rsplit("/", 1)[-1]
        assert engine(spark)["Config"]["Labels"]["sparkpair.release"] == current
        seen.add(current)
    assert len(seen) == 1


def test_release_files_have_owner_and_mode(sparks: list[Any]) -> None:
    """Root owns everything; secrets are 0600 in a folder of 0700, the rest is 0644."""
    for spark in sparks:
        with spark.sudo():
            for name in (".env", "compose.yaml", "launch.json", "entrypoint.py", "plan.json", "release.json"):
                found = spark.file(f"/opt/sparkpair/current/{name}")
                assert (found.user, found.group, found.mode) == ("root", "root", 0o644), name
            assert spark.file("/opt/sparkpair/current/secrets").mode == 0o700
            for name in ("ray_token", "api_key"):
                assert spark.file(f"/opt/sparkpair/current/secrets/{name}").mode == 0o600


def test_ray_token_is_equal_on_all_ranks_and_nowhere_else(sparks: list[Any]) -> None:
    """The token stands in the secret file only: not in inspect, not in any argv, not in the log."""
    tokens = set()
    for spark in sparks:
        with spark.sudo():
            token = spark.check_output("cat /opt/sparkpair/current/secrets/ray_token")
            tokens.add(token)
            shown = spark.check_output(
                "docker inspect sparkpair-engine; docker logs sparkpair-engine 2>&1; "
                "cat /proc/*/cmdline | tr '\\0' ' '; "
                "cd /opt/sparkpair/current; cat .env compose.yaml plan.json"
            )
        assert len(token) == 64
        assert token not in shown
    assert len(tokens) == 1


def test_schedule_and_environment_carry_the_width(sparks: list[Any]) -> None:
    """The head's arguments hold the schedule, and both ranks the variable."""
    head = engine(sparks[0])["Config"]
    config = json.loads(head["Cmd"][head["Cmd"].index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == 7
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 3]]
    for spark in sparks:
        assert "DFLASH_VERIFY_TOKENS=3" in engine(spark)["Config"]["Env"]


def test_docker_never_restarts_a_rank(sparks: list[Any]) -> None:
    """A rank that comes back alone wedges the pair."""
    for spark in sparks:
        found = engine(spark)
        assert found["HostConfig"]["RestartPolicy"]["Name"] == "no"
        assert found["RestartCount"] == 0
        assert found["HostConfig"]["LogConfig"]["Config"]["max-size"]


def test_second_deploy_touches_nothing(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """One probe per rank, then the end: same container start, same files, nothing changed."""
    before = [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks]
    run = verb("deploy", "-e", "verify_tokens=3")
    assert run.code == 0, run.screen
    assert run.result["outcome"] == "ok"
    assert run.result["changed"] is False
    assert run.result["draft_tokens_per_step"] == pytest.approx(3.0)
    assert [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks] == before
    assert all(count <= 2 for count in run.executions.values()), run.executions


def test_check_mode_on_a_deployed_pair_changes_nothing(sparks: list[Any], verb: Callable[..., Run]) -> None:
    """The plan of another width is shown as a diff, and the pair keeps serving untouched."""
    before = [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks]
    run = verb("deploy", "-e", "verify_tokens=0", "--check", "--diff")
    assert run.code == 0, run.screen
    assert run.result["changed"] is True
    assert "num_speculative_tokens_per_batch_size" in run.screen
    for spark in sparks:
        with spark.sudo():
            assert spark.check_output("cat /opt/sparkpair/current/secrets/ray_token") not in run.screen
    assert [(engine(s)["State"]["StartedAt"], tree(s)) for s in sparks] == before


def test_preflight_of_a_pair_that_serves_is_ready(verb: Callable[..., Run]) -> None:
    """No finding at all, in one SSH execution for each host; and every fabric is found by discovery."""
    run = verb("preflight")
    assert (run.code, run.result["findings"]) == (0, []), run.screen
    assert "preflight: ready" in run.screen
    assert run.executions == {"spark-0": 1, "spark-1": 1}


def test_status_shows_the_measured_width(verb: Callable[..., Run]) -> None:
    """Status measures, prints a table and exits with 0."""
    run = verb("status")
    assert run.code == 0, run.screen
    assert "3.0 draft tokens per step" in run.screen
    assert run.result["draft_tokens_per_step"] == pytest.approx(3.0)
    assert [r["name"] for r in run.result["ranks"]] == ["spark-0", "spark-1"]


def ask_ray(*token: str) -> str:
    """What ``ray status`` says at a third address of the lab's network."""
    client = [sys.executable, "molecule/lab/lab.py", "client", "env", "RAY_AUTH_MODE=token"]
    given = [f"RAY_AUTH_TOKEN={t}" for t in token]
    status = ["timeout", "60", "ray", "status", "--address", "10.213.77.10:6379"]
    done = subprocess.run([*client, *given, *status], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_ray_refuses_a_third_address_without_the_token(sparks: list[Any]) -> None:
    """A client with another token is turned away; with the pair's token the same client sees both nodes."""
    with sparks[0].sudo():
        token = sparks[0].check_output("cat /opt/sparkpair/current/secrets/ray_token")
    refused = ask_ray("0" * 64)
    assert "InvalidAuthToken" in refused
    assert "Node status" not in refused
    assert ask_ray(token).count(" 1 node_") == 2


def test_bad_value_is_refused_before_any_connection(verb: Callable[..., Run]) -> None:
    """The message names setting, value, origin and what is allowed; nobody was asked anything."""
    started = time.monotonic()
    run = verb("deploy", "-e", "verify_tokens=2")
    assert run.code != 0
    assert run.result["outcome"] == "refused"
    assert sum(run.executions.values()) == 0
    for part in ("verify_tokens", "'2'", "-e", "0, 1, 3 or 7"):
        assert part in run.screen, part
    assert time.monotonic() - started < 60


def test_flag_that_the_image_does_not_know_is_refused_while_the_pair_serves(
    sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The real engine's own help is asked, and the flags of the lab are in it."""
    before = [engine(s)["State"]["StartedAt"] for s in sparks]
    run = verb("deploy", "-e", json.dumps({"extra_args": ["--no-such-flag", "--kv-cache-memory-bytes", "67108864"]}))
    assert (run.code, run.result["outcome"]) == (2, "refused"), run.screen
    assert "the image's vllm serve does not know --no-such-flag" in run.screen
    assert "--no-such-flag, --" not in run.screen
    assert [engine(s)["State"]["StartedAt"] for s in sparks] == before
    check = verb("deploy", "--check", "-e", json.dumps({"extra_args": ["--seed", "1"]}))
    assert check.code == 0, check.screen


def test_lock_held_on_one_rank_refuses_a_deploy_and_the_pair_serves_on(
    sparks: list[Any], verb: Callable[..., Run]
) -> None:
    """The holder is named, the lock is never taken over, the head's is given back, and release needs a reason."""
    note = {"run": "other", "who": "somebody", "controller": "laptop", "verb": "deploy", "release": "x", "time": 0}
    with sparks[1].sudo():
        sparks[1].check_output(
            f"mkdir /opt/sparkpair/lock && echo '{json.dumps(note)}' > /opt/sparkpair/lock/holder.json"
        )
    before = [engine(s)["State"]["StartedAt"] for s in sparks]
    run = verb("deploy", "-e", "verify_tokens=0")
    assert (run.code, run.result["outcome"]) == (2, "refused"), run.screen
    assert "by somebody on laptop, deploy of x" in run.screen
    assert [engine(s)["State"]["StartedAt"] for s in sparks] == before
    with sparks[0].sudo():
        assert not sparks[0].file("/opt/sparkpair/lock").exists
    assert "by somebody on laptop" in verb("lock").screen
    assert verb("lock", "-e", "lock=release").code == 2
    assert verb("lock", "-e", "lock=release", "-e", "reason=test").code == 0
    with sparks[1].sudo():
        assert not sparks[1].file("/opt/sparkpair/lock").exists
