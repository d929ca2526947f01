"""Takes the plan's inputs out of a running play. Controller only; no connection to any host.

``spark_plan`` uses it, and so may an action that needs a secret which the plan does not hold (see ``Inputs.api_key``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.utils.vars import load_extra_vars

from .overlay_manifest import overlay_digest
from .plan import (
    RANK_VARIABLES,
    Plan,
    RankInput,
    build_plan,
    canonical,
    find_overlays,
    fit_stock,
    read_ranks,
    uses_rdma,
)
from .settings import ABOUT, Given, Problem, Resolved, resolve, shown
from .sources import EnvFile, gather, read_env_file

OVERLAYS = Path(__file__).resolve().parents[3] / "files" / "overlays"
RELEASE_ROLE = Path(__file__).resolve().parents[3] / "roles" / "spark_release"
IMAGE_FILES = Path(__file__).resolve().parents[3] / "roles" / "spark_image" / "files"
WHOLE: dict[str, Any] = {"tags": ("all",), "skip_tags": (), "start_at_task": None, "step": False}
"""Options of ansible-playbook that leave tasks out, with the values that leave out none."""
PASSED_ON = re.compile(
    r"spark_(?:(?:engine|release|lock|overlay)_\w+|\w+_(?:accepted|plan|rank|run|stage|staged|state|stock|verb|wanted))"
)
OPERATORS_OWN = ("spark_engine_stall_timeout",)
ENV_FILE_ALLOWED = "a path to a file of lines KEY=value"


def layout_digest() -> str:
    """Hex digest of the templates and scripts that a release of this checkout is made of."""
    return hashlib.sha256(
        "".join(overlay_digest(RELEASE_ROLE / p) for p in ("files", "templates")).encode()
    ).hexdigest()


def ray_files(ray: str) -> dict[str, str]:
    """Name to text of the files that an image with this version of Ray is built from. Raises OSError without them."""
    named = {"Dockerfile": "Dockerfile", "check.py": "check.py", "requirements.txt": f"ray-{ray}.txt"}
    return {name: (IMAGE_FILES / file).read_text(encoding="utf-8") for name, file in named.items()}


def ray_recipes() -> dict[str, str]:
    """Every version of Ray that this checkout has a requirements file for, with the digest of its build files."""
    versions = [p.stem.removeprefix("ray-") for p in sorted(IMAGE_FILES.glob("ray-*.txt"))]
    return {v: hashlib.sha256(canonical(ray_files(v)).encode()).hexdigest() for v in versions}


@dataclass(frozen=True)
class Inputs:
    """Resolved settings, ranks, and every problem met on the way."""

    resolved: Resolved
    ranks: list[RankInput]
    problems: list[Problem]

    @property
    def api_key(self) -> str:
        """The API key, or an empty text. Never log it; it belongs into a rank's secret file only."""
        return self.resolved.settings.api_key.get_secret_value()

    def plan(self) -> Plan:
        """Build the plan with this checkout's overlays; raises ``Refused`` with all problems."""
        return build_plan(
            self.resolved,
            self.ranks,
            find_overlays(OVERLAYS),
            self.problems,
            layout_digest(),
            ray_recipes=ray_recipes(),
        )


def plain(value: Any) -> Any:
    """Copy ``value`` into the exact built-in types: Ansible tags values with subclasses, which JSON must not see."""
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    # The base type's own conversion copies a subclass into the exact type; str(value) may return the subclass.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else str(value)


def passed_on(names: Iterable[str]) -> list[str]:
    """Of these variables, the ones that a verb passes from role to role.

    Nothing outweighs -e, so from there one of them would hold wherever its role is used: in the stop and in the start.
    """
    return sorted(name for name in names if PASSED_ON.fullmatch(name) and name not in OPERATORS_OWN)


def leaves_out(options: Iterable[str] = tuple(WHOLE)) -> list[str]:
    """Of these options, those given that leave tasks out or let somebody leave them out, and the task debugger."""
    found = []
    for name in options:
        given = context.CLIARGS.get(name)
        if given and given != WHOLE[name]:
            shown = "" if given is True else f" {given if isinstance(given, str) else ','.join(sorted(given))}"
            found.append(f"--{name.replace('_', '-')}{shown}")
    return [*found, *(["the task debugger"] if constants.ENABLE_TASK_DEBUGGER else [])]


def session() -> str:
    """Which of two starts of the same command this is: the name of Ansible's own temporary folder of one start."""
    return Path(constants.DEFAULT_LOCAL_TMP).name


def read_inputs(
    task_vars: Mapping[str, Any],
    templar: Any,
    loader: Any,
    *,
    env_file: str | None = None,
    stock: bool = False,
    over: Mapping[str, Given] | None = None,
) -> Inputs:
    """Collect settings and ranks for the hosts of the running play.

    ``env_file`` beats the variable ``spark_env_file``; without either, ``.env`` in the inventory's folder is used when
    it exists. Relative paths start at the current directory. Templates are resolved per host; one that fails is a
    problem like any other. ``over`` are settings that beat every other source.
    """
    problems: list[Problem] = []
    hostvars = task_vars["hostvars"]
    hosts = [plain(host) for host in task_vars["ansible_play_hosts_all"]]
    extra_names = [plain(name) for name in load_extra_vars(loader)]
    wanted = [*ABOUT, *RANK_VARIABLES, "spark_env_file"]
    variables = {host: _read(hostvars[host], wanted, host, extra_names, problems) for host in hosts}
    this_host = plain(task_vars.get("inventory_hostname", ""))
    mine = variables.get(this_host) or next(iter(variables.values()), {})
    extra: dict[str, Any] = {name: mine.get(name) for name in extra_names}
    for host, values in variables.items():
        problems += [_unequal_extra(n, host) for n in extra if n in ABOUT and values.get(n) != extra[n]]
    chosen = _env_file(env_file or mine.get("spark_env_file"), task_vars)
    gathered = gather(
        extra={n: v for n, v in extra.items() if n not in ABOUT or n in mine},
        environ=os.environ,
        env_file=chosen,
        inventory={host: {n: v for n, v in values.items() if n in ABOUT} for host, values in variables.items()},
        play=_play_variables(task_vars, templar, mine, extra_names),
    )
    resolved = resolve({**gathered.given, **(over or {})}, stock=stock)
    ranks, rank_problems = read_ranks(variables, rdma=uses_rdma(resolved.settings))
    problems += [*gathered.problems, *rank_problems, *left_out(task_vars)]
    return Inputs(fit_stock(resolved, len(hosts)), ranks, problems)


def _read(
    source: Mapping[str, Any], names: list[str], host: str, extra: list[str], problems: list[Problem]
) -> dict[str, Any]:
    values = {}
    for name in names:
        if name not in source:
            continue
        try:
            values[name] = plain(source[name])
        except Exception as error:
            origin = "-e" if name in extra else f"inventory (host {host})"
            allowed = ABOUT[name].kind.allowed if name in ABOUT else "a value without undefined variables"
            reason = f"its template fails: {str(error).splitlines()[0]}"
            problems.append(Problem(name, "a template", origin, allowed, reason))
    return values


def _unequal_extra(name: str, host: str) -> Problem:
    allowed = ABOUT[name].kind.allowed
    return Problem(name, "a template", "-e", f"one value for all ranks: {allowed}", f"is another value on host {host}")


def _env_file(named: Any, task_vars: Mapping[str, Any]) -> EnvFile | None:
    if named is None or named == "":
        folder = plain(task_vars.get("inventory_dir"))
        default = Path(folder) / ".env" if isinstance(folder, str) else None
        return read_env_file(default) if default is not None and default.is_file() else None
    if not isinstance(named, str):
        wrong = Problem("spark_env_file", shown(named), "variable spark_env_file", ENV_FILE_ALLOWED, "is not a path")
        return EnvFile({}, (wrong,))
    return read_env_file(Path(named).expanduser().absolute())


def _play_variables(
    task_vars: Mapping[str, Any], templar: Any, mine: Mapping[str, Any], extra: list[str]
) -> dict[str, Any]:
    """Settings that a play, role or task sets: visible to the task, but not (or otherwise) in the host's variables."""
    found = {}
    for name in ABOUT:
        if name in extra or name not in task_vars:
            continue
        value = plain(templar.template(task_vars[name]))
        if value is not None and (name not in mine or mine[name] != value):
            found[name] = value
    return found


def left_out(task_vars: Mapping[str, Any]) -> list[Problem]:
    """Find ranks that --limit leaves out: they share a group with the play's hosts, and half a pair serves nothing."""
    hostvars, hosts = task_vars["hostvars"], [plain(host) for host in task_vars["ansible_play_hosts_all"]]
    if not context.CLIARGS.get("subset"):
        return []
    groups = {
        name: set(members) for name, members in task_vars.get("groups", {}).items() if name not in ("all", "ungrouped")
    }
    near = {m for members in groups.values() if members & set(hosts) for m in members}
    missing = sorted(plain(m) for m in near - set(hosts) if "spark_rank" in hostvars[m])
    return [
        Problem("spark_rank", f"host {host}", "--limit", "every rank of the pair in the play", "is left out by --limit")
        for host in missing
    ]
