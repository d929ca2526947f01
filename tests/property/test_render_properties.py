"""Properties of rendered files over arbitrary text and arbitrary plans."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkpair.plan import RANK_ENVIRONMENT
from sparkpair.render import RenderError, compose_text, dotenv_text, render

from tests.planning import plan

FAST = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=200, deadline=None)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CUTTING = st.lists(
    st.sampled_from(["$", "${x}", "{{ x }}", "{%", '"', "'", "\\", "\n", "#", ": ", "é", "🙂", " "]), max_size=6
)
HOSTILE = TEXT | CUTTING.map("".join)
ONE_LINE = HOSTILE.filter(lambda t: not set(t) & set("'\n\r\0") and not t.endswith("\\"))
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029']")
PRINTABLE = HOSTILE.map(lambda t: CONTROL.sub("", t).rstrip("\\"))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
BASE = {executor: plan(3, executor=executor) for executor in ("ray", "mp")}
DOLLAR = re.compile(r"\$(\$)?")


def safe_load(text: str) -> Any:
    """YAML through libyaml where PyYAML was built with it; the plain loader is most of the time of these tests."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe


def interpolated(text: str) -> str:
    """What Compose makes of ``$``: a doubled one is one, and a single one is an error here."""
    assert all(found[1] for found in DOLLAR.finditer(text)), f"Compose would expand {text!r}"
    return text.replace("$$", "$")


def variables(text: str) -> dict[str, str]:
    """Read NAME='value' lines; a value ends at the first quote that no backslash precedes."""
    found, rest = {}, text.split("\n", 1)[1]
    while rest.strip("\n"):
        match = re.match(r"\n*([A-Za-z_][A-Za-z0-9_]*)='([^\n]*?)(?<!\\)'(?=\n)", rest)
        assert match, f"not a variable: {rest[:80]!r}"
        found[match[1]] = match[2]
        rest = rest[match.end() :]
    return found


@given(HOSTILE)
@MANY
def test_any_text_survives_yaml_and_interpolation(value: str) -> None:
    line = compose_text(value)
    assert "\n" not in line
    assert interpolated(safe_load(line)) == value


@given(HOSTILE)
@MANY
def test_any_text_survives_an_env_file_or_is_refused(value: str) -> None:
    try:
        line = dotenv_text(value)
    except RenderError:
        assert set(value) & set("'\n\r\0") or value.endswith("\\")
        return
    assert variables(f"# head\nA='1'\nX={line}\nZ='2'\n") == {"A": "1", "X": value, "Z": "2"}


@given(
    st.sampled_from(["ray", "mp"]),
    st.integers(0, 2),
    st.lists(HOSTILE, max_size=5),
    st.dictionaries(NAMES, ONE_LINE, max_size=4),
    st.lists(HOSTILE, max_size=2, unique=True),
)
@FAST
def test_arguments_variables_and_overlay_paths_survive_byte_for_byte(
    executor: str, number: int, arguments: list[str], environment: dict[str, str], targets: list[str]
) -> None:
    made = copy.deepcopy(BASE[executor])
    made["ranks"][number] |= {"arguments": arguments, "environment": environment}
    overlays = [{"source": f"overlays/{n}.py", "target": target} for n, target in enumerate(targets)]
    first = render(made, number, root="/opt/sparkpair", overlays=overlays)
    files = {f.path: f.content.decode() for f in first}
    engine = safe_load(files["compose.yaml"])["services"]["engine"]
    assert [interpolated(item) for item in engine["command"]] == arguments
    assert variables(files[".env"]) == environment
    mounted = [v for v in engine["volumes"] if "/overlays/" in v["source"]]
    assert sorted(interpolated(v["target"]) for v in mounted) == sorted(targets)
    assert all(v["read_only"] is True for v in mounted)
    json.loads(files["launch.json"])
    backwards = {**made, "ranks": [dict(reversed(r.items())) for r in made["ranks"]]}
    assert render(backwards, number, root="/opt/sparkpair", overlays=overlays[::-1]) == first


WORDS = st.text("abcdefghijklmnop", min_size=1, max_size=8)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "verify_tokens": st.sampled_from([0, 1, 3, 7]),
        "executor": st.sampled_from(["ray", "mp"]),
        "gpus": st.sampled_from(["all", "none"]),
        "rdma": st.booleans(),
        "max_num_seqs": st.integers(1, 16),
        "enforce_eager": st.booleans(),
        "limit_mm": st.dictionaries(WORDS, st.integers(0, 9), max_size=2),
        "extra_env": st.dictionaries(WORDS.map(lambda w: f"MY_{w.upper()}_X"), PRINTABLE, max_size=2),
        "extra_args": st.lists(WORDS.map(lambda w: f"--zz{w}={{{{ $x }}}}"), max_size=2),
        "api_key": st.text("ABCDEFGH", min_size=12, max_size=16).map(lambda t: f"key-{t}"),
    },
)


@given(SETTINGS, st.integers(2, 3))
@settings(FAST, max_examples=15)
def test_any_plan_renders_alike_on_every_rank_and_without_its_secret(values: dict[str, Any], count: int) -> None:
    made = plan(count, **values)
    ranks = [{f.path: f.content.decode() for f in render(made, n, root="/opt/x")} for n in range(count)]
    engines = [safe_load(files["compose.yaml"])["services"]["engine"] for files in ranks]
    for number, (files, engine) in enumerate(zip(ranks, engines, strict=True)):
        assert [interpolated(item) for item in engine["command"]] == made["ranks"][number]["arguments"]
        assert variables(files[".env"]) == made["ranks"][number]["environment"]
        assert (files["plan.json"], files["entrypoint.py"]) == (ranks[0]["plan.json"], ranks[0]["entrypoint.py"])
        mine, heads = variables(files[".env"]), variables(ranks[0][".env"])
        assert {k for k in {*mine, *heads} if mine.get(k) != heads.get(k)} <= RANK_ENVIRONMENT
        differing = {k for k in {*engine, *engines[0]} if engine.get(k) != engines[0].get(k)}
        assert differing <= {"command", "healthcheck", "labels", "volumes"}
        assert [v["target"] for v in engine["volumes"]] == [v["target"] for v in engines[0]["volumes"]]
        assert "api_key" not in values or values["api_key"] not in "".join(files.values())
        assert ("devices" in engine) is (made["container"]["gpus"] == "all" and made["container"]["rdma"])
