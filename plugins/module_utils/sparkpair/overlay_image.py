"""Files of an image: read through a container that never starts, and judged by the image's own Python."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .overlay import Found, ImageError
from .runner import last_word

# A Python source of an engine is some hundred kilobytes at most; a directory that stands in its place may be large.
SIZE_LIMIT = 8 * 1024 * 1024
_KINDS = {
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "link",
    tarfile.DIRTYPE: "directory",
    tarfile.FIFOTYPE: "fifo",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
}
# Runs inside the image, with -I so that nothing but its standard library is imported. realpath tells a link anywhere on
# the way; a root that is a link itself is fine, since mounts go to what it points to.
_JUDGE = """
import base64, json, os, sys
asked = json.load(sys.stdin)
root = os.path.realpath(asked["root"])
answer = {}
for path, text in asked["files"].items():
    real = os.path.realpath(os.path.join(asked["root"], path))
    if real != os.path.join(root, path):
        answer[path] = "is reached through a link and really is " + real + ", so it cannot be replaced where it stands"
    elif text is not None:
        try:
            compile(base64.b64decode(text), path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            version = ".".join(map(str, sys.version_info[:3]))
            answer[path] = "the result does not parse with the Python " + version + " of the image: " + str(error)
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class Output:
    """A finished command: exit code, raw output, last part of the error text; ``cut`` when output passed the limit."""

    rc: int
    out: bytes
    err: str
    cut: bool = False

    def why(self) -> str:
        """The last line that explains a failure."""
        return last_word(self.err) or f"exit code {self.rc}"


class BinaryRunner(Protocol):
    """Runs ``argv`` without a shell and returns raw output; never raises for a command that fails."""

    def __call__(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Output:
        """Run and wait, ``timeout`` in seconds."""


def run_binary(argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Output:
    """Run and keep at most SIZE_LIMIT bytes of output; rc 127 for a missing program, 124 for a timeout."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(list(argv), stdin=given, stdout=subprocess.PIPE, stderr=err)
        except OSError as error:
            return Output(127, b"", f"{argv[0]}: {error.strerror}")
        late = threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            with process:
                assert process.stdout is not None  # noqa: S101 - asked for above
                out = process.stdout.read(SIZE_LIMIT + 1)
                cut = len(out) > SIZE_LIMIT
                if cut:
                    process.kill()
        finally:
            timer.cancel()
        if late.is_set():
            return Output(124, b"", f"{argv[0]}: no answer within {timeout:.0f} s")
        err.seek(0)
        return Output(process.returncode, out[:SIZE_LIMIT], err.read()[-20000:].decode(errors="replace"), cut)


def held(run: BinaryRunner, docker: str, names: Sequence[str]) -> str:
    """The first of ``names`` that this engine has an image of; "" for none. Raises ImageError without an answer."""
    for name in names:
        seen = run([docker, "image", "inspect", name])
        if not seen.rc:
            return name
        if "no such image" not in seen.err.lower():
            raise ImageError(seen.why())
    return ""


class Image:
    """One image on this host, seen through the Docker CLI. It is never pulled: preflight put it here."""

    def __init__(
        self, name: str, package_root: str, *, docker: str = "docker", python: str = "python3", run: BinaryRunner
    ) -> None:
        self.name = name
        self.root = package_root.rstrip("/")
        self._docker = docker
        self._python = python
        self._run = run

    def read(self, paths: Sequence[str]) -> dict[str, Found]:
        """Read ``paths`` (below the package root). Raises ImageError when the image as a whole is not readable."""
        made = self._run(
            [self._docker, "create", "--pull", "never", "--network", "none", "--entrypoint", "true", self.name]
        )
        if made.rc:
            raise ImageError(made.why())
        container = made.out.decode(errors="replace").strip()
        try:
            return {path: self._copy(container, path) for path in paths}
        finally:
            self._run([self._docker, "rm", "-f", "-v", container])

    def _copy(self, container: str, path: str) -> Found:
        copied = self._run([self._docker, "cp", f"{container}:{self.root}/{path}", "-"])
        if copied.cut:
            return Found("directory, or a file beyond the limit of 8 MiB")
        if copied.rc:
            reason = copied.why()
            if any(text in reason.lower() for text in ("could not find the file", "no such file")):
                return Found("missing")
            raise ImageError(f"{path}: {reason}")
        try:
            with tarfile.open(fileobj=io.BytesIO(copied.out), mode="r:") as archive:
                first = archive.next()
                if first is None:
                    raise ImageError(f"{path}: Docker sent an empty archive")
                if not first.isreg():
                    return Found(_KINDS.get(first.type, "special file"), detail=first.linkname)
                stream = archive.extractfile(first)
                content = stream.read() if stream else b""
        except tarfile.TarError as error:
            raise ImageError(f"{path}: Docker sent no valid archive ({error})") from error
        if len(content) != first.size:
            raise ImageError(f"{path}: Docker sent {len(content)} of {first.size} bytes")
        return Found("file", content)

    def judge(self, files: Mapping[str, bytes | None]) -> dict[str, str]:
        """Reasons against ``files``, from the image's Python: links on the way, texts that do not compile."""
        if not files:
            return {}
        texts = {p: None if c is None else base64.b64encode(c).decode() for p, c in files.items()}
        asked = {"root": self.root, "files": texts}
        done = self._run(
            [*self._start(), self.name, "-I", "-c", _JUDGE], stdin=json.dumps(asked).encode(), timeout=120.0
        )
        if done.rc:
            raise ImageError(f"its {self._python} does not run: {done.why()}")
        try:
            answer = json.loads(done.out)
            return {str(path): str(reason) for path, reason in answer.items()}
        except (ValueError, AttributeError) as error:
            raise ImageError(f"its {self._python} gave no answer that can be read: {done.out[:200]!r}") from error

    def prove(self, selfcheck: str, expected: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
        """Run a self-check in a fresh container that sees ``files`` in place of the image's own.

        Returns the proof (``ok``, and ``proved`` or ``problem``).
        """
        with tempfile.TemporaryDirectory(prefix="sparkpair-overlay-") as name:
            mounts: list[str] = []
            for number, (path, content) in enumerate(sorted(files.items())):
                here = Path(name) / f"{number}.py"
                here.write_bytes(content)
                here.chmod(0o644)
                mounts += ["-v", f"{here}:{self.root}/{path}:ro"]
            done = self._run(
                [*self._start(), *mounts, "-e", f"SPARKPAIR_EXPECT={json.dumps(expected)}", self.name, "-"],
                stdin=selfcheck.encode(),
                timeout=300.0,
            )
        return proof(done)

    def _start(self) -> list[str]:
        return [
            *(self._docker, "run", "--rm", "--pull", "never", "--network", "none", "-i"),
            *("--entrypoint", self._python),
        ]


def prove_live(
    run: BinaryRunner,
    selfcheck: str,
    expected: Mapping[str, Any],
    *,
    container: str,
    docker: str = "docker",
    python: str = "python3",
) -> dict[str, Any]:
    """Run a self-check inside a running container; returns the proof as ``Image.prove`` does."""
    argv = [docker, "exec", "-i", "-e", f"SPARKPAIR_EXPECT={json.dumps(expected)}", container, python, "-"]
    return proof(run(argv, stdin=selfcheck.encode(), timeout=300.0))


def proof(done: Output) -> dict[str, Any]:
    """The JSON line that a self-check printed last, or an entry that says why there is none."""
    for row in reversed(done.out.decode(errors="replace").splitlines()):
        # The engine's own imports may print before it.
        with contextlib.suppress(ValueError):
            answer = json.loads(row)
            if isinstance(answer, dict) and "ok" in answer:
                return answer if done.rc == 0 else answer | {"ok": False}
    return {"ok": False, "proved": [], "problem": f"the self-check gave no result: {done.why()}"}


def unpack(entry: Mapping[str, Any]) -> dict[str, bytes]:
    """Diffs of a shipped overlay, decoded."""
    return {str(name): base64.b64decode(text) for name, text in entry["diffs"].items()}
