"""A Docker CLI for downloads of weights: containers are processes of this Python, with the mounts as real paths.

As an executable (``python tests/standin/weightsdocker.py ...``, state below ``STANDIN_DOCKER``) or as a runner in a
test. It knows ``run``, ``container inspect``, ``logs`` and ``rm``, and one image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkpair.runner import Completed

IMAGE = "lab/engine:1"


class WeightsDocker:
    """Runs what the engine image would run; ``folder`` holds containers, and ``calls`` one line per command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def calls(self) -> list[list[str]]:
        """Every command so far."""
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def containers(self) -> list[str]:
        """Names of containers that were not removed."""
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir())

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:  # noqa: ARG002
        """Run one command."""
        with (self.folder / "calls").open("a") as log:
            log.write(json.dumps(list(argv[1:])) + "\n")
        verb = argv[1]
        if verb == "run":
            return self._run(list(argv[2:]))
        name = argv[-1]
        there = (self.folder / name).is_dir()
        if verb == "rm":
            subprocess.run(["rm", "-rf", self.folder / name], check=True)
            return Completed(0, name, "")
        if not there:
            return Completed(1, "", f"Error response from daemon: No such container: {name}")
        if verb == "logs":
            return Completed(0, (self.folder / name / "log").read_text(), "")
        code = self.folder / name / "code"
        return Completed(0, f"exited {code.read_text()}\n" if code.exists() else "running 0\n", "")

    def _run(self, args: list[str]) -> Completed:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        mounts: dict[str, str] = {}
        image, command, options = args.index(IMAGE) if IMAGE in args else -1, [], {}
        if image < 0:
            return Completed(
                125, "", "docker: Error response from daemon: No such image: x\nSee 'docker run --help'.\n"
            )
        command = args[image + 1 :]
        for at, option in enumerate(args[:image]):
            if option == "--volume":
                source, target, *_ = args[at + 1].split(":")
                mounts[target] = source
            elif option == "--env":
                key, _, value = args[at + 1].partition("=")
                environment[key] = value
            elif option == "--env-file":
                lines = Path(args[at + 1]).read_text().splitlines()
                environment |= dict(line.partition("=")[::2] for line in lines)
            elif option == "--name":
                options["name"] = args[at + 1]
        environment = {k: mounts.get(v, v) for k, v in environment.items()}
        # The xet protocol needs a server of its own, which the stand-in hub is not.
        environment["HF_HUB_DISABLE_XET"] = "1"
        program = [sys.executable, *command]
        if "name" not in options:
            done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
            return Completed(done.returncode, done.stdout, done.stderr)
        folder = self.folder / options["name"]
        folder.mkdir()
        script = '"$@" > "$0/log" 2>&1; echo -n $? > "$0/code.new"; mv "$0/code.new" "$0/code"'
        null = subprocess.DEVNULL
        argv = ["sh", "-c", script, folder, *program]
        subprocess.Popen(argv, env=environment, start_new_session=True, stdin=null, stdout=null, stderr=null)
        return Completed(0, "id\n", "")


if __name__ == "__main__":
    answer = WeightsDocker(Path(os.environ["STANDIN_DOCKER"]))(["docker", *sys.argv[1:]])
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.exit(answer.rc)
