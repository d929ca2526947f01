"""Sources: who wins, what a .env file may hold, and which typos are caught."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sparkpair.settings import ABOUT, resolve
from sparkpair.settings_docs import env_example
from sparkpair.sources import EnvFile, Gathered, gather, parse_env, read_env_file, read_password

WHERE = "/home/op/.env"


def gathered(
    extra: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    env: str | None = None,
    inventory: dict[str, dict[str, Any]] | None = None,
    play: dict[str, Any] | None = None,
) -> Gathered:
    return gather(
        extra=extra or {},
        environ=environ or {},
        env_file=None if env is None else parse_env(env, WHERE),
        inventory=inventory or {"spark-0": {}, "spark-1": {}},
        play=play,
    )


def messages(file: EnvFile) -> str:
    return "\n".join(str(p) for p in file.problems)


def test_precedence_peels_off_one_source_at_a_time() -> None:
    sources: dict[str, Any] = {
        "extra": {"verify_tokens": "1"},
        "environ": {"DFLASH_VERIFY_TOKENS": "3"},
        "env": "\nDFLASH_VERIFY_TOKENS=0\n",
        "play": {"verify_tokens": 7},
        "inventory": {"spark-0": {"verify_tokens": 1}, "spark-1": {"verify_tokens": 1}},
    }
    origins = ["-e", "environment DFLASH_VERIFY_TOKENS", f"{WHERE} line 2 DFLASH_VERIFY_TOKENS"]
    origins += ["variables of the play", "inventory (host spark-0)"]
    for name, origin in zip(list(sources), origins, strict=True):
        result = gathered(**sources)
        assert not result.problems
        assert result.given["verify_tokens"].origin == origin
        del sources[name]
    assert resolve(gathered(**sources).given).origins["verify_tokens"] == "default"


def test_an_empty_environment_variable_does_not_override() -> None:
    result = gathered(environ={"DFLASH_VERIFY_TOKENS": ""}, env="DFLASH_VERIFY_TOKENS=3")
    assert result.given["verify_tokens"].value == "3"


def test_an_empty_env_file_value_counts_only_where_empty_is_allowed() -> None:
    result = gathered(env="TOOL_CALL_PARSER=\nDFLASH_DRAFT_TP=\nVLLM_API_KEY=\nPORT=\n")
    assert not result.problems
    assert set(result.given) == {"tool_call_parser", "dflash_draft_tp", "api_key"}


def test_env_file_grammar() -> None:
    text = (
        "# comment\n\n"
        "export DFLASH_VERIFY_TOKENS=3\n"
        "  PORT = 9000   # trailing comment\n"
        'LIMIT_MM=\'{"image": 4, "video": 1}\'\n'
        'EXTRA_ARGS=["--seed", "1"]\n'
        'SERVED_MODEL_NAME="$HOME"\n'
    )
    file = parse_env(text, WHERE)
    assert not file.problems
    assert {n: g.value for n, g in file.given.items()} == {
        "verify_tokens": "3",
        "port": "9000",
        "limit_mm": '{"image": 4, "video": 1}',
        "extra_args": '["--seed", "1"]',
        "served_model_name": "$HOME",
    }
    assert file.given["verify_tokens"].origin == f"{WHERE} line 3 DFLASH_VERIFY_TOKENS"


def test_unknown_key_has_a_suggestion_and_recipe_keys_an_explanation() -> None:
    text = messages(parse_env("DFLASH_VERIFY_TOKEN=3\nHEAD_IP=10.0.0.1\nZZZ=1\n", WHERE))
    assert "did you mean DFLASH_VERIFY_TOKENS?" in text
    assert "line 1" in text
    assert "use spark_fabric_address of rank 0" in text
    assert "ZZZ = 'ZZZ' (from /home/op/.env line 3): is not a known key; allowed: " in text


def test_duplicate_key_names_both_lines() -> None:
    text = messages(parse_env("PORT=1\n# x\nPORT=2\n", WHERE))
    assert "port = '2' (from /home/op/.env line 3 PORT): is set twice (also in line 1)" in text


@pytest.mark.parametrize("line", ['PORT="8888', "PORT='1' x", "='x'"])
def test_unparsable_line_is_refused_with_its_number(line: str) -> None:
    text = messages(parse_env(f"# first\n{line}\n", WHERE))
    assert f"{WHERE} line 2" in text


def test_key_without_value_is_refused() -> None:
    assert "has no value" in messages(parse_env("PORT\n", WHERE))


@pytest.mark.parametrize("text", ["# a\nPORT=8888\r\n", "# a\nPORT='88\r88'\n", "# a\n\r\n"])
def test_carriage_return_is_refused_with_its_line(text: str) -> None:
    found = messages(parse_env(text, WHERE))
    assert "carriage return" in found
    assert f"{WHERE} line 2" in found


def test_a_crlf_file_gives_one_message_beside_the_others() -> None:
    file = parse_env("PORT=1\r\nNOPE=2\r\n", WHERE)
    assert len([p for p in file.problems if "carriage return" in p.reason]) == 1
    assert any(p.setting == "NOPE" for p in file.problems)


def test_unix_line_ends_are_the_control() -> None:
    assert not parse_env("PORT=8888\n", WHERE).problems


def test_an_escaped_control_character_is_refused_by_the_setting() -> None:
    result = resolve(gathered(env='SERVED_MODEL_NAME="a\\nb"\n').given)
    assert "contains a newline" in str(result.problems[0])
    assert f"{WHERE} line 1 SERVED_MODEL_NAME" in str(result.problems[0])


def test_secret_is_hidden_in_file_messages() -> None:
    secret = "hunter2hunter2"
    text = messages(parse_env(f"VLLM_API_KEY={secret}\nVLLM_API_KEY={secret}\nVLLM_API_KEY='{secret}\n", WHERE))
    assert text.count("\n") == 1
    assert secret not in text


def test_missing_folder_and_binary_files(tmp_path: Path) -> None:
    assert "does not exist" in messages(read_env_file(tmp_path / "none.env"))
    assert "is not a file" in messages(read_env_file(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in messages(read_env_file(tmp_path / "binary"))
    (tmp_path / "good").write_text("PORT=1\n", encoding="utf-8")
    assert not read_env_file(tmp_path / "good").problems


@pytest.mark.parametrize("name", ["verify_token", "VERIFY_TOKENS", "DFLASH_VERIFY_TOKENS", "max_num_seq", "ports"])
def test_near_miss_on_the_command_line_is_refused(name: str) -> None:
    problems = gathered(extra={name: "3"}).problems
    assert [p.setting for p in problems] == [name]
    assert "did you mean" in problems[0].reason
    assert problems[0].origin == "-e"


@pytest.mark.parametrize("name", ["spark_ranks", "ansible_port", "host_port", "my_variable", "verify_tokens"])
def test_other_variables_on_the_command_line_are_free(name: str) -> None:
    assert not gathered(extra={name: "3"}).problems


@pytest.mark.parametrize(
    ("first", "second"),
    [({"port": 1}, {"port": 2}), ({"port": 1}, {}), ({}, {"port": 1}), ({"port": 1}, {"port": True})],
)
def test_hosts_that_differ_are_both_named(first: dict[str, Any], second: dict[str, Any]) -> None:
    problems = gathered(inventory={"spark-0": first, "spark-1": second}).problems
    assert len(problems) == 1
    assert problems[0].origin == "inventory (host spark-0 and host spark-1)"
    assert "differs between the ranks" in problems[0].reason


def test_hosts_may_differ_where_a_stronger_source_decides() -> None:
    result = gathered(environ={"PORT": "9000"}, inventory={"spark-0": {"port": 1}, "spark-1": {"port": 2}})
    assert not result.problems


def test_secret_that_differs_is_hidden() -> None:
    inventory = {"spark-0": {"api_key": "firstfirst"}, "spark-1": {"api_key": "secondsecond"}}
    text = "\n".join(str(p) for p in gathered(inventory=inventory).problems)
    assert "api_key" in text
    assert "firstfirst" not in text
    assert "secondsecond" not in text


def test_null_in_the_inventory_counts_only_where_it_means_inherit() -> None:
    inventory = {h: {"port": None, "dflash_draft_tp": None} for h in ("spark-0", "spark-1")}
    result = gathered(inventory=inventory)
    assert not result.problems
    assert set(result.given) == {"dflash_draft_tp"}


def test_the_example_file_is_accepted_when_every_line_is_active() -> None:
    text = re.sub(r"^# ([A-Z0-9_]+=)", r"\1", env_example(), flags=re.MULTILINE)
    result = gathered(env=text)
    assert not result.problems
    resolved = resolve(result.given)
    assert not resolved.problems
    assert resolved.settings == resolve({}).settings
    assert set(result.given) == set(ABOUT)


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o644, "s3cret", "mode 0644, so others can read it"), (0o600, "", "is empty"), (None, "", "cannot be read")],
)
def test_a_password_file_that_will_not_do_is_named_without_its_content(
    tmp_path: Path, mode: int | None, text: str, why: str
) -> None:
    path = tmp_path / "token"
    if mode is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ValueError, match=why) as refused:
        read_password(path)
    assert str(path) in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_password_is_the_first_line_of_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret with spaces \r\nnot this\n")
    path.chmod(0o600)
    assert read_password(path) == "s3cret with spaces "
