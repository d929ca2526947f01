"""Where setting values come from, and which of them wins.

Strongest first: ``-e`` on the command line, the caller's environment, the operator's ``.env`` file, variables of the
play, the inventory, the default. Nothing here imports Ansible; ``inputs.py`` feeds it from a running play.

- An empty variable of the caller's environment does not override: shells export empty variables by accident.
- An empty value in ``.env`` counts for a setting that may be empty (``TOOL_CALL_PARSER=`` turns the parser off); for
  any other setting the line counts as absent, as in the recipe.
- A null in the inventory counts as absent, except for ``dflash_draft_tp``, where it means inherit.
- ``.env`` is parsed, never executed: no ``$`` expansion. A carriage return anywhere in it is refused, since the recipe
  silently kept it in the value.
"""

from __future__ import annotations

import difflib
import io
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from .settings import ABOUT, NAME_OF_KEY, Given, Problem, Secret, Text, Whole, problem, shown

ENV_FILE_WORDS = "lines KEY=value with known keys, each once (see docs/env.example)"
CLOSE = 0.85
LINES_SHOWN = 5

RECIPE_KEYS = {
    "HEAD_IP": "spark_fabric_address of rank 0 in the inventory",
    "WORKER_IP": "spark_fabric_address of rank 1 in the inventory",
    "WORKER_USER": "ansible_user in the inventory",
    "WORKER_SSH": "ansible_host and ansible_user in the inventory",
    "WORKER_HOME": "spark_hf_home and spark_cache_dir in the inventory",
    "HEAD_CX7_IF": "spark_fabric_interface of rank 0 in the inventory",
    "WORKER_CX7_IF": "spark_fabric_interface of rank 1 in the inventory",
    "HEAD_CX7_IB": "spark_rdma_devices of rank 0 in the inventory",
    "WORKER_CX7_IB": "spark_rdma_devices of rank 1 in the inventory",
    "NCCL_IB_GID_INDEX": "spark_gid_index per rank in the inventory",
    "HEAD_GID": "spark_gid_index of rank 0 in the inventory",
    "WORKER_GID": "spark_gid_index of rank 1 in the inventory",
    "HF_HOME": "spark_hf_home per rank in the inventory",
    "CACHE_ROOT": "spark_cache_dir per rank in the inventory",
    "TRITON_HOST_CACHE": "spark_cache_dir per rank in the inventory",
    "TILELANG_HOST_CACHE": "spark_cache_dir per rank in the inventory",
    "TP": "the number of hosts in the inventory",
    "NNODES": "the number of hosts in the inventory",
}
"""Keys of the recipe's ``.env`` that this project takes from the inventory instead."""


@dataclass
class Gathered:
    """Winning raw values by setting name, and the problems of the sources themselves."""

    given: dict[str, Given] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class EnvFile:
    """Values of a ``.env`` file by setting name, and what is wrong with the file."""

    given: dict[str, Given]
    problems: tuple[Problem, ...]


def _may_be_empty(name: str) -> bool:
    kind = ABOUT[name].kind
    return (
        isinstance(kind, Secret)
        or (isinstance(kind, Text) and kind.empty)
        or (isinstance(kind, Whole) and kind.optional)
    )


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return " (did you mean X?)" for the closest known name, or an empty text."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def read_env_file(path: Path) -> EnvFile:
    """Parse an operator's ``.env``: comments, blank lines, ``export K=V``, quoted values.

    Problems name the line: unknown or duplicate key, unparsable line, key without ``=``, carriage return, a file that
    is missing, unreadable or not UTF-8.
    """
    where = str(path)
    if not path.is_file():
        reason = "is not a file" if path.exists() else "does not exist"
        return EnvFile({}, (_file_problem(where, "spark_env_file", where, reason),))
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return EnvFile({}, (_file_problem(where, "spark_env_file", where, "is not UTF-8"),))
    except OSError as error:
        return EnvFile({}, (_file_problem(where, "spark_env_file", where, error.strerror or str(error)),))
    return parse_env(text, where)


def _file_problem(origin: str, setting: str, given: str, reason: str) -> Problem:
    return Problem(setting, shown(given), origin, ENV_FILE_WORDS, reason)


def parse_env(text: str, where: str) -> EnvFile:
    """Parse the text of a ``.env`` file; ``where`` names it in messages."""
    problems: list[Problem] = []
    returns = [n for n, line in enumerate(text.split("\n"), start=1) if "\r" in line]
    if returns:
        lines = ", ".join(str(n) for n in returns[:LINES_SHOWN]) + (" ..." if len(returns) > LINES_SHOWN else "")
        plural = "s" if len(returns) > 1 else ""
        keys = [
            m.group(1)
            for n in returns[:1]
            if (m := re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)", text.split("\n")[n - 1]))
        ]
        setting = NAME_OF_KEY.get(keys[0], keys[0]) if keys else "spark_env_file"
        problems.append(
            Problem(
                setting,
                f"{len(returns)} line{plural} with a carriage return",
                f"{where} line{plural} {lines}",
                ENV_FILE_WORDS + ", with Unix line ends",
                "contains a carriage return (CRLF file?)",
            )
        )
    given: dict[str, Given] = {}
    seen: dict[str, int] = {}
    for binding in parse_stream(io.StringIO(text.replace("\r", ""))):
        source = binding.original.string
        line = binding.original.line + source[: len(source) - len(source.lstrip())].count("\n")
        origin = f"{where} line {line}"
        if binding.error:
            # The line may hold a secret, so only what stands before "=" is shown.
            start = source.strip().partition("=")[0]
            problems.append(_file_problem(origin, "spark_env_file", start, "cannot be parsed (quotes closed?)"))
            continue
        if binding.key is None:
            continue
        key = binding.key
        name = NAME_OF_KEY.get(key)
        if name is None:
            if key in RECIPE_KEYS:
                reason = f"is a key of the recipe that is not used here; use {RECIPE_KEYS[key]}"
            else:
                reason = "is not a known key" + suggestion(key, list(NAME_OF_KEY))
            problems.append(_file_problem(origin, key, key, reason))
            continue
        value = binding.value
        if key in seen:
            hidden = value if not ABOUT[name].secret else "(hidden)"
            problems.append(problem(name, Given(hidden, f"{origin} {key}"), f"is set twice (also in line {seen[key]})"))
        elif value is None:
            problems.append(problem(name, Given("", f"{origin} {key}"), "has no value (write KEY=value)"))
        elif value or _may_be_empty(name):
            given[name] = Given(value, f"{origin} {key}")
        seen.setdefault(key, line)
    return EnvFile(given, tuple(problems))


def unknown_extra(names: Sequence[str]) -> list[Problem]:
    """Refuse ``-e`` names that are nearly a setting: a typo there would silently deploy something else.

    Other variables are free, since a play has variables of its own. Names that start with ``spark_`` or ``ansible_``
    are never taken for a typo.
    """
    problems = []
    by_lower = {key.lower(): name for key, name in NAME_OF_KEY.items()}
    for name in names:
        if name in ABOUT or name.startswith(("spark_", "ansible_")):
            continue
        lower = name.lower()
        close = difflib.get_close_matches(lower, list(ABOUT), n=1, cutoff=CLOSE)
        meant = by_lower.get(lower) or (close[0] if close else None)
        if meant is not None:
            reason = f"is not a setting (did you mean {meant}?)"
            problems.append(Problem(name, shown(name), "-e", f"the setting {meant}, or an unrelated name", reason))
    return problems


def _per_host(name: str, values: Mapping[str, Any], hosts: Sequence[str]) -> Given | Problem:
    first = hosts[0]
    for host in hosts[1:]:
        missing = (host not in values) or (first not in values)
        if missing or values[host] != values[first] or type(values[host]) is not type(values[first]):
            mine = "nothing" if first not in values else shown(values[first])
            theirs = "nothing" if host not in values else shown(values[host])
            if ABOUT[name].secret:
                mine, theirs = "(hidden)", "(another)"
            return Problem(
                name,
                f"{mine} and {theirs}",
                f"inventory (host {first} and host {host})",
                f"one value for all ranks, as a group variable: {ABOUT[name].kind.allowed}",
                "differs between the ranks",
            )
    return Given(values[first], f"inventory (host {first})")


def gather(
    *,
    extra: Mapping[str, Any],
    environ: Mapping[str, str],
    env_file: EnvFile | None,
    inventory: Mapping[str, Mapping[str, Any]],
    play: Mapping[str, Any] | None = None,
) -> Gathered:
    """Pick the strongest value of every setting.

    ``extra`` holds the templated ``-e`` variables, ``environ`` the caller's environment, ``inventory`` the variables by
    host, ``play`` the variables that a play or role sets itself. A setting belongs to the pair: when the inventory
    decides it, every host must agree.
    """
    result = Gathered(problems=unknown_extra(sorted(extra)))
    if env_file is not None:
        result.problems += env_file.problems
    hosts = sorted(inventory)
    for name, about in ABOUT.items():
        if name in extra:
            result.given[name] = Given(extra[name], "-e")
        elif environ.get(about.key):
            result.given[name] = Given(environ[about.key], f"environment {about.key}")
        elif env_file is not None and name in env_file.given:
            result.given[name] = env_file.given[name]
        elif play is not None and name in play:
            result.given[name] = Given(play[name], "variables of the play")
        else:
            null_counts = isinstance(about.kind, Whole) and about.kind.optional
            values = {
                host: inventory[host][name]
                for host in hosts
                if name in inventory[host] and (null_counts or inventory[host][name] is not None)
            }
            if values:
                found = _per_host(name, values, hosts)
                if isinstance(found, Problem):
                    result.problems.append(found)
                else:
                    result.given[name] = found
    return result


def read_password(path: Path) -> str:
    """First line of a file that only its owner can read. Raises ValueError that names the file, never its content."""
    try:
        mode = path.stat().st_mode
        with path.open(encoding="utf-8") as source:
            line = source.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"registry_password_file {path} cannot be read: {type(error).__name__}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ValueError(
            f"registry_password_file {path} has mode {stat.S_IMODE(mode):04o}, so others can read it; "
            f"allowed is 0600: chmod 600 {path}"
        )
    if not line:
        raise ValueError(f"registry_password_file {path} is empty; its first line must be the password or token")
    return line
