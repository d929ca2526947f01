"""The engine image on one rank: what it is by content, and how it gets there by pulling, building and tagging.

Everything goes through the Docker CLI, so that both image stores of Docker and any credential helper work.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .noting import Note, unnoted
from .runner import TIMED_OUT, Completed, LineRunner, Runner, follow

LABEL_INPUTS = "sparkpair.image.inputs"
"""Label of an image that was built here: the hash of everything that it was made of."""
DOCKER_ARCHITECTURE = {"aarch64": "arm64", "x86_64": "amd64"}
MARK = "SPARKPAIR_PROBE "
RAY_PROBE = f"""
import importlib.metadata, json
try:
    import ray
    print({MARK!r} + json.dumps(ray.__version__))
except ImportError:
    print({MARK!r} + json.dumps(None))
"""
HERE = ("Already exists", "Download complete", "Pull complete")
"""What ``docker pull`` says of a layer that is on this host."""
NO_SPACE = "no space left on device"


class ImageError(Exception):
    """The image cannot be had on this rank; the message names the image, what Docker said and what to do."""


@dataclass(frozen=True)
class Wanted:
    """The image that the plan wants on every rank.

    ``reference`` is the name under which the engine starts it, ``source`` where it comes from, ``inputs`` the hash of
    all that it is made of (empty when ``reference`` is the source's own name), and ``ray`` the version of Ray that it
    must hold (empty to take the image as it is).
    """

    reference: str
    source: str
    inputs: str = ""
    ray: str = ""
    architecture: str = ""


@dataclass(frozen=True)
class Login:
    """A registry account. The password goes to Docker's standard input and into a configuration that is removed."""

    user: str
    password: str


def place() -> Path:
    """Where work is kept: in memory where that can be written.

    So a full disk does not hide its own message, and what a killed process leaves is gone with the next start.
    """
    return Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())


def inspect(runner: Runner, reference: str) -> dict[str, Any]:
    """``docker image inspect`` of one image; {} when this engine has none of that name.

    Raises ImageError when Docker does not answer.
    """
    done = runner(["docker", "image", "inspect", reference], timeout=60)
    if done.ok:
        try:
            return dict(json.loads(done.out)[0])
        except (ValueError, IndexError) as error:
            raise ImageError(f"docker image inspect {reference} printed no JSON: {error}") from error
    if "no such" in done.err.lower():
        return {}
    raise ImageError(f"docker image inspect {reference}: {done.why()}")


def layers(runner: Runner, reference: str) -> str | None:
    """One digest over all layers of an image; None when this engine has none of that name, "" when it cannot tell."""
    try:
        data = inspect(runner, reference)
    except ImageError:
        return ""
    return str(content(data, reference)["layers"]) if data else None


def content(data: Mapping[str, Any], reference: str) -> dict[str, Any]:
    """What an image is, as ranks compare it.

    Returns ``reference``; ``digests`` (registry digests); ``references`` (``name@digest``); ``layers`` (one digest over
    all layer digests); ``id`` (local, differs between image stores); ``architecture``; ``inputs`` (of a built one).
    """
    layers = "\n".join(layers_of(data))
    named = sorted(str(d) for d in data.get("RepoDigests") or [] if "<none>" not in str(d))
    return {
        "reference": reference,
        "digests": sorted({d.rpartition("@")[2] for d in named}),
        "references": named,
        "layers": "sha256:" + hashlib.sha256(layers.encode()).hexdigest() if layers else "",
        "id": data.get("Id", ""),
        "architecture": data.get("Architecture") or "",
        "inputs": ((data.get("Config") or {}).get("Labels") or {}).get(LABEL_INPUTS, ""),
    }


def layers_of(data: Mapping[str, Any]) -> list[str]:
    """Digests of the uncompressed layers, lowest first."""
    return [str(layer) for layer in (data.get("RootFS") or {}).get("Layers") or []]


def same_image(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare by registry digest, else by layers. Local ids differ between image stores, so they do not count."""
    if set(one["digests"]) & set(other["digests"]):
        return True
    return bool(one["layers"]) and one["layers"] == other["layers"]


def short(image: Mapping[str, Any]) -> str:
    """The content of an image in as many characters as tell two apart."""
    return str((image["digests"] or [image["layers"]])[0])[:19]


def ready(wanted: Wanted, here: Mapping[str, Any] | None, source: Mapping[str, Any] | None) -> bool:
    """Tell whether ``here`` (content under the wanted reference) is what the plan wants.

    A name of ours proves nothing by itself: it must carry the hash of the inputs, or be the source itself.
    """
    if here is None:
        return False
    if not wanted.inputs or here["inputs"] == wanted.inputs:
        return True
    pinned = wanted.source.partition("@")[2]
    return (bool(pinned) and pinned in here["digests"]) or (source is not None and source["id"] == here["id"])


def see(runner: Runner, wanted: Wanted) -> dict[str, Any]:
    """Look at both names of the image: ``here``, ``source`` (content or None) and ``ready``. Changes nothing."""
    found: dict[str, Any] = {}
    for key, reference in (("here", wanted.reference), ("source", wanted.source)):
        data = inspect(runner, reference)
        found[key] = content(data, reference) if data else None
    return {**found, "ready": ready(wanted, found["here"], found["source"])}


def inside(
    runner: Runner,
    reference: str,
    entrypoint: str,
    *arguments: str,
    timeout: float = 300.0,
    options: Sequence[str] = (),
) -> Completed:
    """Run a program of the image in a container without network that is removed when it ends or its time is over.

    It gets no GPU unless ``options`` (of ``docker run``) ask for one; ``timeout`` in seconds. Nothing is ever pulled.
    """
    name = f"sparkpair-probe-{secrets.token_hex(6)}"
    argv = ["docker", "run", "--rm", "--pull", "never", "--name", name, "--network", "none", *options]
    done = runner([*argv, "--entrypoint", entrypoint, reference, *arguments], timeout=timeout)
    if done.rc == TIMED_OUT:
        # Only the client was ended: the container goes on, and may hold memory and GPU.
        runner(["docker", "rm", "--force", name], timeout=60)
    return done


def ray_in(runner: Runner, reference: str, *, timeout: float = 300.0) -> tuple[str | None, str]:
    """Version of Ray in an image (None when there is none), and why its Python did not answer ("" when it did)."""
    return _answer(inside(runner, reference, "python3", "-c", RAY_PROBE, timeout=timeout))


def has_file(runner: Runner, reference: str, path: str, *, timeout: float = 300.0) -> tuple[bool, str]:
    """Whether an image holds a file, and why its Python did not answer ("" when it did)."""
    code = f"import json, os; print({MARK!r} + json.dumps(os.path.isfile({path!r})))"
    found, why = _answer(inside(runner, reference, "python3", "-c", code, timeout=timeout))
    return found is True, why


def _answer(done: Completed) -> tuple[Any, str]:
    """The JSON value behind the mark (None without one), and why there is none: an image may print a banner first."""
    marked = [line for line in done.out.splitlines() if line.startswith(MARK)]
    if not done.ok or not marked:
        return None, done.why()
    return json.loads(marked[-1].removeprefix(MARK)), ""


def registry_of(reference: str) -> str:
    """The registry of a reference, as Docker reads it: docker.io when the first part is no host name."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


class _Layers:
    """Counts layers in what ``docker pull`` prints: ``<id>: Pulling fs layer``, then what becomes of it."""

    def __init__(self, reference: str, note: Note) -> None:
        self._doing, self._note = f"pull {reference}", note
        self._known, self._here = set[str](), set[str]()

    def __call__(self, line: str) -> None:
        identity, _, state = line.partition(": ")
        if state in HERE:
            self._here.add(identity)
        if state in HERE or state == "Pulling fs layer":
            self._known.add(identity)
            self._note(self._doing, len(self._here), len(self._known), "layers")


def pull(
    runner: Runner,
    reference: str,
    login: Login | None,
    timeout: float,
    *,
    note: Note = unnoted,
    follower: LineRunner = follow,
) -> None:
    """Pull one image; ``note`` gets how many of its layers are here. Raises ImageError.

    A login lives in a configuration of its own, in a directory in memory that only root can read and that is removed
    afterwards: nothing of it stays on the rank's disk, in an argument or in a log, also when this process is killed.
    """
    base = ["docker"]
    folder = tempfile.mkdtemp(prefix="sparkpair-login-", dir=place()) if login else None
    try:
        if login and folder:
            base += ["--config", folder]
            registry = registry_of(reference)
            argv = [*base, "login", registry, "--username", login.user, "--password-stdin"]
            done = runner(argv, stdin=login.password, timeout=120)
            if not done.ok:
                raise ImageError(
                    f"the login of {login.user} to {registry} was refused: {done.why()}; "
                    "correct registry_user or the content of registry_password_file"
                )
        note(f"pull {reference}")
        done = follower([*base, "pull", reference], _Layers(reference, note), timeout=timeout)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if not done.ok:
        raise ImageError(f"docker pull {reference}: {_explained(done)}")


def _explained(done: Completed) -> str:
    why = done.why()
    if NO_SPACE in (done.err + done.out).lower():
        return f"{why}; free space where Docker keeps its images (docker system df, docker image prune), then run again"
    return why


def tag(runner: Runner, source: str, reference: str) -> None:
    """Give an image another name. Raises ImageError."""
    done = runner(["docker", "tag", source, reference], timeout=60)
    if not done.ok:
        raise ImageError(f"docker tag {source} {reference}: {done.why()}")


def fit(wanted: Wanted, found: Mapping[str, Any]) -> None:
    """Raise ImageError when an image is built for another processor than the plan's."""
    architecture = DOCKER_ARCHITECTURE.get(wanted.architecture, wanted.architecture)
    if architecture and found["architecture"] not in (architecture, ""):
        raise ImageError(
            f"{found['reference']} is built for {found['architecture']}, wanted {architecture}; "
            f"docker image rm {found['reference']}, and set image to one for linux/{architecture}"
        )


def layers_held(runner: Runner, wanted: Sequence[str]) -> int:
    """How many of the lowest layers of ``wanted`` this engine holds in one of its images.

    An engine knows a layer by all that is below it, so equal layers above different ones do not count.
    """
    listed = runner(["docker", "images", "--quiet", "--no-trunc"], timeout=60)
    ids = sorted(set(listed.out.split())) if listed.ok else []
    if not ids:
        return 0
    done = runner(["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", *ids], timeout=120)
    most = 0
    for line in done.out.splitlines():
        layers = json.loads(line) or []
        same = 0
        while same < min(len(wanted), len(layers)) and wanted[same] == layers[same]:
            same += 1
        most = max(most, same)
    return most
