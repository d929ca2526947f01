"""The pair after going back to the stock width."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.labtest import CHECKOUT, Run, engine


def test_no_rank_names_a_width(sparks: list[Any]) -> None:
    """No overlay mount, no variable, no schedule."""
    for spark in sparks:
        found = engine(spark)
        assert not [e for e in found["Config"]["Env"] if e.startswith(("DFLASH_VERIFY_TOKENS", "SPARKPAIR_"))]
        assert not [m for m in found["Mounts"] if "overlays" in m["Source"]]
        assert "num_speculative_tokens_per_batch_size" not in json.dumps(found["Config"]["Cmd"])
        with spark.sudo():
            assert not spark.file("/opt/sparkpair/current/overlays").exists


KEY = "lab-only-key-0123456789"


def ask_api(*headers: str) -> str:
    """Status with which the API answers a client at a third address of the lab's network."""
    url = "http://10.213.77.10:8888/v1/models"
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *(p for h in headers for p in ("-H", h)), url]
    client = [sys.executable, "molecule/lab/lab.py", "client", *curl]
    return subprocess.run(client, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()


def test_api_refuses_a_third_address_without_the_key() -> None:
    """401 without the key and with a wrong one, 200 with it."""
    assert ask_api() == "401"
    assert ask_api("Authorization: Bearer wrong-key-0123456789") == "401"
    assert ask_api(f"Authorization: Bearer {KEY}") == "200"


def test_api_key_is_in_the_secret_file_only(sparks: list[Any]) -> None:
    """Not in inspect, not in any argv, not in the log, not in another file of the release."""
    for spark in sparks:
        with spark.sudo():
            assert spark.check_output("cat /opt/sparkpair/current/secrets/api_key") == KEY
            shown = spark.check_output(
                "docker inspect sparkpair-engine; docker logs sparkpair-engine 2>&1; "
                "cat /proc/*/cmdline | tr '\\0' ' '; cat /opt/sparkpair/history.jsonl; "
                "cd /opt/sparkpair/current; find . -path ./secrets -prune -o -type f -exec cat {} +"
            )
        assert KEY not in shown


def test_status_measures_the_full_width(verb: Callable[..., Run]) -> None:
    """Seven draft tokens per step."""
    run = verb("status")
    assert run.code == 0, run.screen
    assert run.result["draft_tokens_per_step"] == pytest.approx(7.0)


def test_environment_beats_env_file_and_extra_vars_beat_both(verb: Callable[..., Run], tmp_path: Any) -> None:
    """``.env`` says 0, the caller 3, ``-e`` 1: 3 wins without ``-e``, 1 with it. Check mode shows what is planned."""
    dotenv = tmp_path / "operator.env"
    dotenv.write_text("DFLASH_VERIFY_TOKENS=0\n")
    given = ("-e", f"spark_env_file={dotenv}", "--check")
    assert verb("deploy", *given, DFLASH_VERIFY_TOKENS="3").result["verify_tokens"] == 3
    assert verb("deploy", *given, "-e", "verify_tokens=1", DFLASH_VERIFY_TOKENS="3").result["verify_tokens"] == 1
    assert verb("deploy", *given).result["verify_tokens"] == 0
