"""The hub, asked through the library that the engine image holds: a Spark's own Python need not have it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .runner import Runner, run
from .weights import Cache, Manifest, Model, WeightsError, repository_folder
from .weights_cache import Owner

MARK_FILE = "SPARKPAIR_FILE "
MARK_ERROR = "SPARKPAIR_ERROR "
LIST_SECONDS = 120.0
INSIDE = "/huggingface"
TOKEN_INSIDE = "/run/sparkpair-token"  # noqa: S105 - a path


class NoImageError(WeightsError):
    """The image through which the hub is asked is not on this rank."""


def container_name(model: Model) -> str:
    """Name of the container that downloads a model."""
    return f"sparkpair-weights-{model.revision[:12]}"


@dataclass(frozen=True)
class Hub:
    """How to reach the hub: the image with the library, the script that uses it, variables, and a token or ""."""

    image: str
    script: str
    work: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    run: Runner = run
    sleep: Callable[[float], None] = time.sleep
    note: Callable[[str], None] = lambda _: None

    def list(self, model: Model, exclude: Sequence[str]) -> Manifest:
        """Ask for the files of a pinned snapshot. Raises WeightsError."""
        owner = Owner(os.geteuid(), os.getegid())
        with tempfile.TemporaryDirectory() as folder, self._private(owner, Path(folder) / "token") as options:
            done = self.run(
                ["docker", "run", "--rm", *self._common(options), *self._call("list", model, exclude)],
                timeout=LIST_SECONDS,
            )
        if not done.ok:
            raise self._error(model, done.out, done.why())
        found = [
            json.loads(line.removeprefix(MARK_FILE)) for line in done.out.splitlines() if line.startswith(MARK_FILE)
        ]
        return Manifest.read(
            {
                "repository": model.repository,
                "revision": model.revision,
                "source": "hub",
                "entries": found,
                "exclude": exclude,
            }
        )

    def download(
        self,
        cache: Cache,
        model: Model,
        exclude: Sequence[str],
        hold: float,
        *,
        awaited: bool = False,
        ready: Callable[[], None] = lambda: None,
    ) -> bool:
        """Have a container download the snapshot; True when it has ended well, False while it still works.

        A container that works already is only watched, for at most ``hold`` seconds. One that has failed is this run's
        if it is ``awaited``; otherwise it tells of an earlier run, and is replaced. ``ready`` is called just before a
        container is started. Raises WeightsError.
        """
        if repository_folder(model.repository) != model.folder:
            raise WeightsError(
                f"{model.folder} is not the folder that the hub's library would use; download by hand, or leave the "
                f"cache name of {model.setting} empty"
            )
        name = container_name(model)
        state = self._state(name)
        if state is not None and state[0] != "running" and state[1] != "0" and not awaited:
            self.note(f"{self._failure(model, name)}; so it ended for an earlier run, and is begun anew")
            self.stop(model)
            state = None
        if state is None:
            ready()
            self._start(cache, model, exclude, name)
        for _ in range(max(1, round(hold * 2))):
            state = self._state(name)
            if state is None or state[0] != "running":
                break
            self.sleep(0.5)
        else:
            return False
        failure = self._failure(model, name)
        self.stop(model)
        if state is None or state[1] != "0":
            raise failure
        return True

    def works(self, model: Model) -> bool:
        """Whether a container downloads this model now; False when Docker does not answer."""
        with suppress(WeightsError):
            state = self._state(container_name(model))
            return state is not None and state[0] == "running"
        return False

    def left(self, model: Model) -> bool:
        """Whether a download of this model has left its container, or the token that it was given."""
        with suppress(WeightsError):
            return self._token_file(model).exists() or self._state(container_name(model)) is not None
        return False

    def stop(self, model: Model) -> None:
        """Remove the container of a download, and the token that it was given."""
        self.run(["docker", "rm", "--force", container_name(model)], timeout=60)
        self._token_file(model).unlink(missing_ok=True)

    def _token_file(self, model: Model) -> Path:
        return self.work / f"{container_name(model)}.token"

    def _state(self, name: str) -> tuple[str, str] | None:
        """Status and exit code of a container; None when there is none. Raises WeightsError."""
        form = "{{.State.Status}} {{.State.ExitCode}}"
        done = self.run(["docker", "container", "inspect", "--format", form, name], timeout=60)
        if not done.ok and "no such container" not in done.err.lower():
            # Silence is no absence: a container that works would be removed and begun anew.
            raise WeightsError(f"Docker does not tell of the container {name}: {done.why()}")
        status, _, code = done.out.strip().partition(" ")
        return (status, code) if done.ok else None

    def _failure(self, model: Model, name: str) -> WeightsError:
        logs = self.run(["docker", "logs", "--tail", "20", name], timeout=60)
        return self._error(model, logs.out, logs.why())

    def _start(self, cache: Cache, model: Model, exclude: Sequence[str], name: str) -> None:
        owner = Owner.of(cache)
        owner.mkdir(cache.hub)
        mine = [
            "--user",
            f"{owner.uid}:{owner.gid}",
            "--volume",
            f"{cache.home}:{INSIDE}",
            "--env",
            f"HF_HOME={INSIDE}",
        ]
        self.work.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._private(owner, self._token_file(model)) as options:
            done = self.run(
                [
                    *("docker", "run", "--detach", "--name", name, *mine),
                    *self._common(options),
                    *self._call("download", model, exclude),
                ],
                timeout=LIST_SECONDS,
            )
        if not done.ok:
            self.stop(model)
            raise self._error(model, "", done.why())

    def _common(self, options: Sequence[str]) -> Sequence[str]:
        # The image may be told to stay offline, and has no home for a user that it does not know.
        settings = ("HF_HUB_OFFLINE=0", "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HOME=/tmp")
        return ["--pull", "never", "--network", "host", *(o for s in settings for o in ("--env", s)), *options]

    def _call(self, action: str, model: Model, exclude: Sequence[str]) -> Sequence[str]:
        return [
            "--entrypoint",
            "python3",
            self.image,
            "-c",
            self.script,
            action,
            model.repository,
            model.revision,
            *exclude,
        ]

    @contextmanager
    def _private(self, owner: Owner, token: Path) -> Iterator[Sequence[str]]:
        """Options that hand over variables and token by files that only the container's user can read."""
        handle, variables = tempfile.mkstemp(prefix="sparkpair-")
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write("".join(f"{name}={value}\n" for name, value in sorted(self.environment.items())))
            options = ["--env-file", variables]
            token.unlink(missing_ok=True)
            handle = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(self.token)
            owner.give(token)
            if self.token:
                options += ["--volume", f"{token}:{TOKEN_INSIDE}:ro", "--env", f"HF_TOKEN_PATH={TOKEN_INSIDE}"]
            yield options
        finally:
            Path(variables).unlink()

    def _error(self, model: Model, out: str, why: str) -> WeightsError:
        told = [line.removeprefix(MARK_ERROR) for line in out.splitlines() if line.startswith(MARK_ERROR)]
        if not told and "No such image" in why:
            return NoImageError(
                f"{self.image} is not on the head; the hub is asked through the library in it, so bring the image first"
            )
        return WeightsError(
            f"the hub does not give {model.repository} at {model.revision}: {told[-1] if told else why}"
        )
