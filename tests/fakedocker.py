"""A Docker CLI that knows a few images, each a directory tree, for tests of what reads images.

Used as a runner inside a test, or as an executable: ``python tests/fakedocker.py TREE`` with the images below TREE.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from sparkpair.overlay_image import SIZE_LIMIT, Output


class FakeDocker:
    """Answers ``create``, ``cp``, ``rm``, ``run``, ``exec`` and ``image`` as Docker does; ``calls`` keeps the commands.

    An image is ``root/<name with / and : as _>``; the paths below it are those inside the image. ``run`` and ``exec``
    start this machine's Python with the paths of the tree, as far as the code in question needs it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[list[str]] = []
        self.containers: dict[str, Path] = {}
        self.broken: dict[str, Output] = {}

    def tree(self, image: str) -> Path:
        """Where an image's files are."""
        return self.root / image.replace("/", "_").replace(":", "_")

    def __call__(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Output:  # noqa: ARG002 - as the real one
        """Run one command."""
        self.calls.append(list(argv))
        verb = argv[1]
        if verb in self.broken:
            return self.broken[verb]
        return {
            "create": self._create,
            "cp": self._cp,
            "rm": self._rm,
            "run": self._run,
            "exec": self._run,
            "image": self._image,
        }[verb](list(argv[2:]), stdin)

    def _image(self, args: list[str], _stdin: bytes) -> Output:
        there = self.tree(args[-1]).is_dir()
        return Output(0, b"sha256:1\n", "") if there else Output(1, b"", f"Error: No such image: {args[-1]}\n")

    def _create(self, args: list[str], _stdin: bytes) -> Output:
        image = args[-1]
        if not self.tree(image).is_dir():
            return Output(1, b"", f"Error response from daemon: No such image: {image}\n")
        name = f"{len(self.calls):064x}"
        self.containers[name] = self.tree(image)
        return Output(0, f"{name}\n".encode(), "")

    def _cp(self, args: list[str], _stdin: bytes) -> Output:
        container, path = args[0].split(":", 1)
        here = self.containers[container] / path.lstrip("/")
        if not os.path.lexists(here):
            return Output(
                1, b"", f"Error response from daemon: Could not find the file {path} in container {container}\n"
            )
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(here, arcname=here.name)
        data = buffer.getvalue()
        return Output(0, data[:SIZE_LIMIT], "", cut=len(data) > SIZE_LIMIT)

    def _rm(self, args: list[str], _stdin: bytes) -> Output:
        self.containers.pop(args[-1], None)
        return Output(0, b"", "")

    def _run(self, args: list[str], stdin: bytes) -> Output:
        environment, images = dict(os.environ), {p.name: p for p in self.root.iterdir()}
        for at, option in enumerate(args):
            if option == "-e":
                name, _, value = args[at + 1].partition("=")
                environment[name] = value
        given = next((a for a in args if a.replace("/", "_").replace(":", "_") in images), None)
        if given is None:
            return Output(125, b"", "docker: Error response from daemon: No such image\nSee 'docker run --help'.\n")
        rest = args[args.index(given) + 1 :]
        if rest and rest[0].startswith("python"):
            rest = rest[1:]  # exec names the program, run has it as the entry point
        if rest and rest[0] == "-I":
            asked = json.loads(stdin)
            asked["root"] = str(self.tree(given) / asked["root"].lstrip("/"))
            stdin = json.dumps(asked).encode()
        done = subprocess.run(
            [sys.executable, *rest], input=stdin, capture_output=True, env=environment, check=False, timeout=60
        )
        return Output(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def main() -> int:
    """Act as the executable: containers live in a file beside the images' tree."""
    root = Path(os.environ["FAKE_DOCKER_ROOT"])
    with (root.parent / "calls").open("a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\n")
    fake = FakeDocker(root)
    state = root.parent / "containers.json"
    if state.exists():
        fake.containers = {name: Path(path) for name, path in json.loads(state.read_text()).items()}
    done = fake(["docker", *sys.argv[1:]], stdin=b"" if sys.stdin.isatty() else sys.stdin.buffer.read())
    state.write_text(json.dumps({name: str(path) for name, path in fake.containers.items()}))
    sys.stdout.buffer.write(done.out)
    sys.stderr.write(done.err)
    return done.rc


if __name__ == "__main__":
    sys.exit(main())
