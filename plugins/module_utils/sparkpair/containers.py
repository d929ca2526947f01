"""The engine containers of this host, as the Docker CLI reports them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from .runner import Runner

CONTAINER = "sparkpair-engine"
LABEL_RELEASE = "sparkpair.release"
LABEL_RANK = "sparkpair.rank"
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\S+) ")


class DockerError(Exception):
    """The Docker Engine of this host did not answer as expected; the message says what it said."""


@dataclass(frozen=True)
class Container:
    """One container of ours; times are RFC 3339 strings as Docker prints them."""

    id: str
    name: str
    image: str
    image_id: str
    labels: dict[str, str]
    status: str
    running: bool
    exit_code: int
    oom_killed: bool
    restart_count: int
    started_at: str
    health: str
    entrypoint: list[str]
    arguments: list[str]
    environment: dict[str, str]
    mounts: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a module result."""
        return asdict(self)


def _docker(runner: Runner, *args: str, timeout: float = 60.0) -> str:
    done = runner(["docker", *args], timeout=timeout)
    if not done.ok:
        raise DockerError(f"docker {args[0]}: {done.why()}")
    return done.out


def _from_inspect(raw: dict[str, Any]) -> Container:
    state, config = raw["State"], raw["Config"]
    environment = dict(entry.partition("=")[::2] for entry in config.get("Env") or [])
    mounts = [
        {"source": m.get("Source", ""), "target": m["Destination"], "read_only": not m.get("RW", True)}
        for m in raw.get("Mounts") or []
    ]
    return Container(
        id=raw["Id"],
        name=raw["Name"].lstrip("/"),
        image=config["Image"],
        image_id=raw["Image"],
        labels=dict(config.get("Labels") or {}),
        status=state["Status"],
        # Docker counts one that is paused, or waits for its next restart, as running too.
        running=state["Status"] == "running",
        exit_code=int(state["ExitCode"]),
        oom_killed=bool(state.get("OOMKilled", False)),
        restart_count=int(raw.get("RestartCount", 0)),
        started_at=state["StartedAt"],
        health=(state.get("Health") or {}).get("Status", ""),
        entrypoint=list(config.get("Entrypoint") or []),
        arguments=list(config.get("Cmd") or []),
        environment=environment,
        mounts=sorted(mounts, key=lambda m: str(m["target"])),
    )


def find(runner: Runner) -> list[Container]:
    """Containers with our label or our name, running or not, sorted by name.

    The name counts as well, because a leftover of a foreign tool under our name blocks a start just as much.
    """
    ids: set[str] = set()
    for wanted in (f"label={LABEL_RELEASE}", f"name=^/?{CONTAINER}$"):
        ids.update(_docker(runner, "ps", "-aq", "--no-trunc", "--filter", wanted).split())
    if not ids:
        return []
    done = runner(["docker", "inspect", "--type", "container", *sorted(ids)])
    # A container may be removed between the two calls; Docker then reports the others and exits with 1.
    if not done.ok and not re.search(r"no such (container|object)", done.err, re.IGNORECASE):
        raise DockerError(f"docker inspect: {done.why()}")
    return sorted((_from_inspect(raw) for raw in json.loads(done.out or "[]")), key=lambda c: c.name)


def require_compose(runner: Runner) -> None:
    """Raise DockerError when Docker Compose, without which no engine is started, does not answer."""
    _docker(runner, "compose", "version")


def stop_and_remove(runner: Runner, container: Container, grace: int) -> None:
    """Stop gracefully within ``grace`` seconds, then remove. Raises DockerError; a container already gone is fine."""
    for args, patience in ((["stop", "-t", str(grace)], grace + 60.0), (["rm", "-f"], 60.0)):
        done = runner(["docker", *args, container.id], timeout=patience)
        if (
            not done.ok
            and "no such container" not in done.err.lower()
            and "already in progress" not in done.err.lower()
        ):
            raise DockerError(f"docker {args[0]} {container.name}: {done.why()}")


def logs(runner: Runner, container_id: str, *, tail: int | None = None, since: str | None = None) -> list[str]:
    """Log lines of both streams with Docker's timestamps in front, oldest first; [] when the container is gone.

    A progress bar redraws itself after carriage returns, within one line of Docker's: each drawing is a line here, with
    the timestamp of the whole.
    """
    argv = ["docker", "logs", "--timestamps"]
    if tail is not None:
        argv += ["--tail", str(tail)]
    if since:
        argv += ["--since", since]
    done = runner([*argv, container_id])
    lines = sorted([*_stamped(done.out), *_stamped(done.err)], key=lambda line: line.split(" ", 1)[0])
    return lines if tail is None else lines[-tail:]


def _stamped(text: str) -> list[str]:
    lines, stamp = [], ""
    for line in re.split(r"[\r\n]+", text):
        if found := _STAMPED.match(line):
            stamp = found.group(1)
            lines.append(line)
        elif stamp and line.strip():
            lines.append(f"{stamp} {line}")
    return lines
