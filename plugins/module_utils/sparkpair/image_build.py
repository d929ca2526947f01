"""Builds the engine image with a pinned Ray on the head, from the controller's files and the head's wheels."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from .images import ImageError, Wanted, tag
from .noting import Note, unnoted
from .runner import Completed, Runner

REQUIREMENTS = "requirements.txt"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
TAIL_LINES = 15

FileRunner = Callable[[list[str], IO[bytes], float], Completed]


def run_with_file(argv: list[str], given: IO[bytes], timeout: float) -> Completed:
    """Run a command with a file as its input; output and errors together, as a build mixes them."""
    try:
        done = subprocess.run(
            argv, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
    except FileNotFoundError as error:
        return Completed(127, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Completed(124, "", f"{' '.join(argv[:2])}: not done within {timeout:.0f} s")
    return Completed(done.returncode, done.stdout.decode(errors="replace"), "")


def pins(requirements: str) -> dict[str, set[str]]:
    """``name==version`` of a pip requirements file to the sha256 digests that it allows."""
    found: dict[str, set[str]] = {}
    current = ""
    for line in requirements.splitlines():
        text = line.strip()
        if text.startswith("#"):
            continue
        if pin := _PIN.match(text):
            current = f"{pin.group(1)}=={pin.group(2)}"
            found[current] = set()
        for digest in _HASH.findall(text):
            found[current].add(digest)
    return found


def choose_wheels(folder: Path, requirements: str) -> list[Path]:
    """Wheels of ``folder`` whose sha256 the requirements allow, sorted by name.

    Raises ImageError that names every requirement without a wheel, or a folder that cannot be read.
    """
    try:
        there = {hashlib.sha256(p.read_bytes()).hexdigest(): p for p in sorted(folder.glob("*.whl"))}
    except OSError as error:
        raise ImageError(f"the wheels in {folder} cannot be read: {error}") from error
    wanted = pins(requirements)
    lacking = [pin for pin, digests in wanted.items() if not digests & set(there)]
    if lacking:
        raise ImageError(
            f"{folder} (ray_wheels) has no wheel with an allowed sha256 for {', '.join(lacking)}; it has "
            f"{', '.join(p.name for p in there.values()) or 'no wheel at all'}; put those wheels there, "
            "or leave ray_wheels empty to fetch them from the package index"
        )
    allowed = set().union(*wanted.values())
    return sorted(path for digest, path in there.items() if digest in allowed)


def _context(files: Mapping[str, str], wheels: list[Path], target: IO[bytes]) -> None:
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, text in sorted(files.items()):
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
        for wheel in wheels:
            archive.add(wheel, arcname=f"wheels/{wheel.name}")
    target.seek(0)


def build(
    runner: Runner,
    wanted: Wanted,
    files: Mapping[str, str],
    wheels: str,
    timeout: float,
    *,
    note: Note = unnoted,
    build_runner: FileRunner = run_with_file,
) -> None:
    """Build ``wanted.reference`` from the image ``wanted.source``.

    Args:
        runner: runs docker.
        wanted: the image; its source lies in this engine.
        files: build files by name, with ``Dockerfile`` and ``requirements.txt``.
        wheels: folder on this host with the wheels, and then no network is used; empty for the package index.
        timeout: seconds that the build may take.
        note: is told that it builds.
        build_runner: runs ``docker build`` with the context as its input; replaced in tests.

    Raises ImageError with the last lines of the build.
    """
    base = f"sparkpair/base:{wanted.inputs[:12]}"
    chosen = choose_wheels(Path(wheels), files[REQUIREMENTS]) if wheels else []
    argv = ["docker", "build", "--pull=false", "--force-rm", "--tag", wanted.reference]
    options = {"BASE": base, "RAY": wanted.ray, "INPUTS": wanted.inputs}
    if chosen:
        argv += ["--network", "none"]
        options["PIP_FROM"] = "--no-index --find-links /sparkpair/wheels"
    for key, value in options.items():
        argv += ["--build-arg", f"{key}={value}"]
    # By a local name: a builder asks the registry about a digest, although the image is here.
    tag(runner, wanted.source, base)
    try:
        with tempfile.TemporaryFile() as context:
            _context(files, chosen, context)
            note(f"build {wanted.reference} with Ray {wanted.ray}")
            done = build_runner([*argv, "-"], context, timeout)
    finally:
        runner(["docker", "rmi", "--no-prune", base], timeout=60)
    if not done.ok:
        tail = "\n".join((done.out or done.err).splitlines()[-TAIL_LINES:])
        raise ImageError(f"the image with Ray {wanted.ray} could not be built from {wanted.source}:\n{tail}")
