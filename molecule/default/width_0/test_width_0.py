"""The pair after going back to the stock width."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.labtest import Run, engine


def test_no_rank_names_a_width(sparks: list[Any]) -> None:
    """No overlay mount, no variable, no schedule."""
    for spark in sparks:
        found = engine(spark)
        assert not [e for e in found["Config"]["Env"] if e.startswith(("DFLASH_VERIFY_TOKENS", "SPARKPAIR_"))]
        assert not [m for m in found["Mounts"] if "overlays" in m["Source"]]
        assert "num_speculative_tokens_per_batch_size" not in json.dumps(found["Config"]["Cmd"])
        with spark.sudo():
            assert not spark.file("/opt/sparkpair/current/overlays").exists


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
