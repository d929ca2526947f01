"""The schema: each kind of value accepts and refuses what its documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sparkpair import settings_docs
from sparkpair.settings import ABOUT, NAME_OF_KEY, Given, Settings, public, resolve

from tests.planning import given, resolved

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "raw", "wanted"),
    [
        ("verify_tokens", 3, 3),
        ("verify_tokens", "3", 3),
        ("verify_tokens", "007", 7),
        ("max_num_batched_tokens", "01024", 1024),
        ("max_num_seqs", 64, 64),
        ("dflash_draft_tp", "", None),
        ("dflash_draft_tp", None, None),
        ("dflash_draft_tp", "none", None),
        ("dflash_draft_tp", "2", 2),
        ("gpu_mem_util", ".87", 0.87),
        ("gpu_mem_util", "1.0", 1.0),
        ("gpu_mem_util", 1, 1.0),
        ("enforce_eager", "yes", True),
        ("enforce_eager", "0", False),
        ("enforce_eager", 1, True),
        ("enforce_eager", "False", False),
        ("tool_call_parser", "", ""),
        ("quantization", "none", ""),
        ("extra_args", '["--seed", "1"]', ("--seed", "1")),
        ("extra_args", ["--seed", 1], ("--seed", "1")),
        ("extra_env", '{"B": "2", "A": 1}', {"A": "1", "B": "2"}),
        ("limit_mm", '{"video": 1, "image": "4"}', {"image": 4, "video": 1}),
        ("glm53_mixed_prefill_chunk", 0, "0"),
        ("glm53_mixed_prefill_chunk", "0512", "512"),
        ("glm53_mixed_prefill_chunk", "fair", "fair"),
        ("image", "sparkpair-lab-engine:1.0", "sparkpair-lab-engine:1.0"),
        ("model_revision", "a" * 40, "a" * 40),
    ],
)
def test_accepted(name: str, raw: Any, wanted: Any) -> None:
    result = resolved(**{name: raw})
    assert not result.problems
    assert getattr(result.settings, name) == wanted
    assert type(getattr(result.settings, name)) is type(wanted)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("verify_tokens", 2),
        ("verify_tokens", 8),
        ("verify_tokens", -1),
        ("verify_tokens", "abc"),
        ("verify_tokens", "3.0"),
        ("verify_tokens", 3.0),
        ("verify_tokens", 3.7),
        ("verify_tokens", " 3 "),
        ("verify_tokens", "3\n"),
        ("verify_tokens", "+3"),
        ("verify_tokens", "٣"),
        ("verify_tokens", True),
        ("verify_tokens", None),
        ("verify_tokens", ""),
        ("verify_tokens", [3]),
        ("max_num_seqs", 0),
        ("max_num_seqs", 65),
        ("max_model_len", 10**30),
        ("max_model_len", "9" * 5000),
        ("max_num_batched_tokens", "1_000"),
        ("gpu_mem_util", 0),
        ("gpu_mem_util", "8.7"),
        ("gpu_mem_util", "1e-1"),
        ("gpu_mem_util", "nan"),
        ("gpu_mem_util", float("nan")),
        ("gpu_mem_util", True),
        ("enforce_eager", 2),
        ("enforce_eager", "maybe"),
        ("enforce_eager", ""),
        ("spec_method", "DFlash"),
        ("spec_method", False),
        ("served_model_name", "a'b"),
        ("served_model_name", "a\rb"),
        ("served_model_name", "a\nb"),
        ("served_model_name", "a\0b"),
        ("served_model_name", 5),
        ("served_model_name", ""),
        ("model_revision", "A" * 40),
        ("model_revision", "a" * 39),
        ("dflash_revision", "main"),
        ("extra_args", "--seed 1"),
        ("extra_args", ["--seed", True]),
        ("extra_args", ["--seed\r"]),
        ("extra_args", ["\ud800"]),
        ("extra_args", [""]),
        ("extra_args", {"--seed": 1}),
        ("extra_env", '{"A": "1", "A": "2"}'),
        ("extra_env", {"A B": "1"}),
        ("extra_env", {"A": "it's"}),
        ("extra_env", {"A": "1\r"}),
        ("extra_env", {"A": True}),
        ("extra_env", {"MY_TOKEN": "x"}),
        ("limit_mm", '{"image": -1}'),
        ("limit_mm", '{"image":'),
        ("limit_mm", "[1]"),
        ("glm53_mixed_prefill_chunk", "Skip"),
        ("glm53_mixed_prefill_chunk", 1025),
        ("chat_template", "relative.jinja"),
        ("shm_size", "32"),
        ("api_key", "short"),
        ("api_key", "with space inside"),
        ("image", "Upper Case"),
    ],
)
def test_refused_with_setting_value_origin_and_allowed(name: str, raw: Any) -> None:
    problems = resolved(**{name: raw}).problems
    assert [p.setting for p in problems] == [name]
    text = str(problems[0])
    assert text.startswith(f"{name} = ")
    assert "(from -e)" in text
    assert text.endswith(f"allowed: {ABOUT[name].kind.allowed}")
    assert "\n" not in text
    assert len(text) < 600


def test_a_carriage_return_is_named() -> None:
    assert "carriage return" in str(resolved(served_model_name="a\r").problems[0])


def test_variables_that_only_look_like_secrets_are_free() -> None:
    assert not resolved(extra_env={"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "3"}).problems


def test_all_problems_at_once_and_valid_ones_kept() -> None:
    result = resolved(verify_tokens=2, port="x", max_num_seqs=8)
    assert sorted(p.setting for p in result.problems) == ["port", "verify_tokens"]
    assert result.invalid == {"port", "verify_tokens"}
    assert result.settings.max_num_seqs == 8
    assert result.settings.port == 8888


def test_secret_is_hidden_everywhere() -> None:
    secret = "correct horse"
    refused = resolve({"api_key": Given(secret, "-e")})
    assert secret not in str(refused.problems[0])
    accepted = resolved(api_key="correct-horse")
    assert not accepted.problems
    assert "correct-horse" not in repr(accepted)
    assert "api_key" not in public(accepted.settings)


def test_every_default_passes_its_own_check() -> None:
    defaults = resolve({}).settings
    for name, about in ABOUT.items():
        assert about.kind.parse(getattr(defaults, name)) == getattr(defaults, name), name


def test_names_and_keys_are_unique_and_documented() -> None:
    assert len(NAME_OF_KEY) == len(ABOUT) == len(Settings.model_fields)
    for name, about in ABOUT.items():
        assert name == name.lower()
        assert about.key == about.key.upper()
        assert about.help.endswith(".")
        assert "\n" not in about.help


def test_settings_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"verify_token": 3})
    with pytest.raises(ValidationError):
        setattr(resolve({}).settings, "port", 1)  # noqa: B010 - the type checker would refuse the plain form


def test_stock_never_fails_for_width_tuning() -> None:
    tuning = given(
        verify_tokens="abc",
        dflash_tokens=99,
        structured_width="x",
        spec_method="?",
        mtp_tokens="?",
        dflash_draft_tp="?",
    )
    assert len(resolve(tuning).problems) == 6
    stock = resolve(tuning, stock=True)
    assert not stock.problems
    assert stock.settings == resolve({}).settings
    assert {n.split(" ")[0] for n in stock.notes} == set(tuning)


def test_stock_keeps_valid_speculation_and_refuses_other_mistakes() -> None:
    stock = resolve(given(spec_method="mtp", verify_tokens=3, dflash_tokens=3, port="x"), stock=True)
    assert stock.settings.spec_method == "mtp"
    assert (stock.settings.verify_tokens, stock.settings.dflash_tokens) == (0, 7)
    assert [p.setting for p in stock.problems] == ["port"]
    assert stock.origins["verify_tokens"] == "default"


@pytest.mark.parametrize(
    ("path", "text"),
    [("docs/settings.md", settings_docs.settings_page), ("docs/env.example", settings_docs.env_example)],
)
def test_committed_documents_are_the_generated_ones(path: str, text: Any) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == text(), "run: python -m sparkpair.settings_docs"


def test_documents_are_written_below_the_root(tmp_path: Path) -> None:
    settings_docs.write(tmp_path)
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") == settings_docs.settings_page()
    assert (tmp_path / "docs/env.example").read_text(encoding="utf-8") == settings_docs.env_example()
