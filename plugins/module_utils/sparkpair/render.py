"""Renders a plan into the files of one rank's release. Controller only.

Plain Jinja, not Ansible's templar: values of the plan are data, and a value that looks like a template stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

from .plan import release_document
from .store import OVERLAYS, File

ROLE = Path(__file__).resolve().parents[3] / "roles" / "spark_release"
RUN_DIRECTORY = "/run/sparkpair"
CODE_DIRECTORY = "/opt/sparkpair"
OVERLAY_KEYS = ("name", "path", "target", "source", "sha256_before", "sha256_after", "engine", "pin")
MANAGED = "Managed by sparkpair: changes made here are found as drift and replaced by the next deploy."

# Characters that JSON writes as they are, and that YAML forbids or folds inside a double-quoted scalar.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class RenderError(Exception):
    """A template did not give a valid file; the message names the file and the fault."""


def compose_text(value: Any) -> str:
    """A YAML double-quoted scalar that Compose reads back as exactly ``value``: ``$`` doubled, the rest JSON."""
    text = json.dumps(str(value).replace("$", "$$"), ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def dotenv_text(value: Any) -> str:
    """A single-quoted value of an env file, which Compose does not expand. Raises RenderError."""
    text = str(value)
    if any(c in text for c in "'\n\r\0"):
        raise RenderError(f"an environment value cannot hold quotes or line breaks: {text!r}")
    # Compose takes a backslash before the closing quote for an escaped quote, and reads on into the next lines.
    if text.endswith("\\"):
        raise RenderError(f"an environment value cannot end with a backslash: {text!r}")
    return f"'{text}'"


def environment() -> jinja2.Environment:
    """Jinja as the templates of spark_release expect it: undefined names are errors, block lines leave no trace."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLE / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML and env files, quoted by the two filters
    )
    env.filters["compose_text"] = compose_text
    env.filters["dotenv_text"] = dotenv_text
    return env


def _pretty(data: Any) -> str:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def render(plan: Mapping[str, Any], rank: int, *, root: str, overlays: Sequence[Mapping[str, Any]] = ()) -> list[File]:
    """Files of the release of ``plan`` on ``rank``, without secrets.

    Args:
        plan: plain JSON form of the plan.
        rank: number of the rank.
        root: directory of releases on the rank, such as /opt/sparkpair.
        overlays: results of the overlay stage that have a file to mount, each with ``source`` (path below the
            release) and ``target`` (absolute path in the container).

    Raises:
        RenderError: a template gave an invalid file.
    """
    this = next((r for r in plan["ranks"] if r["rank"] == rank), None)
    if this is None:
        raise RenderError(f"the plan has no rank {rank}")
    values = {
        "managed": MANAGED,
        "plan": plan,
        "rank": this,
        "overlays": sorted(overlays, key=lambda o: str(o["target"])),
        "base": f"{root.rstrip('/')}/releases/{plan['release']}",
        "run_directory": RUN_DIRECTORY,
        "code_directory": CODE_DIRECTORY,
    }
    env = environment()
    text = {
        name: env.get_template(f"{name.lstrip('.')}.j2").render(values)
        for name in (".env", "compose.yaml", "launch.json")
    }
    _validate(text)
    text["entrypoint.py"] = (ROLE / "files" / "entrypoint.py").read_text()
    text["plan.json"] = _pretty({"release": plan["release"], **release_document(plan)})
    if overlays:
        shown = [{k: o[k] for k in OVERLAY_KEYS if k in o} for o in values["overlays"]]
        text[OVERLAYS] = _pretty(shown)
    return [File(name, content.encode(), 0o644) for name, content in sorted(text.items())]


def _validate(text: Mapping[str, str]) -> None:
    try:
        services = yaml.safe_load(text["compose.yaml"])["services"]
        command = services["engine"]["command"]
        json.loads(text["launch.json"])
    except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        raise RenderError(f"a rendered file is not valid: {error}") from error
    if not all(isinstance(item, str) for item in command):
        raise RenderError("compose.yaml: the engine's arguments must be text")
