"""A Docker CLI whose engine and registry are JSON files, for tests of what moves images. Real archives, real pipes.

Used as a runner inside a test, or as an executable: ``FAKE_ENGINE=FOLDER python tests/fakeengine.py image inspect X``.
An image is a dictionary as ``docker image inspect`` gives it; a layer's content is made from its name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkpair.runner import Completed

ROOT = Path(__file__).resolve().parents[1]


def layer(name: str, size: int = 4096) -> bytes:
    """Content of a layer."""
    return (name.encode() * size)[:size]


def digest(name: str) -> str:
    """Digest of a layer's content."""
    return "sha256:" + hashlib.sha256(layer(name)).hexdigest()


def image(*layers: str, digests: Sequence[str] = (), ray: str | None = None, **more: Any) -> dict[str, Any]:
    """An image of these layers; ``digests`` are ``name@sha256:...``, ``ray`` what its Python imports."""
    made = {
        "Id": "sha256:" + hashlib.sha256("/".join(layers).encode()).hexdigest(),
        "RepoDigests": list(digests),
        "Architecture": "arm64",
        "Os": "linux",
        "Config": {"Labels": {}},
        "RootFS": {"Type": "layers", "Layers": [digest(name) for name in layers]},
        "fake": {"layers": list(layers), "ray": ray},
    }
    return made | more


class FakeEngine:
    """One engine: ``images`` by name, and the ``registry`` that it can reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _file(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def images(self) -> dict[str, Any]:
        """Images by name."""
        return self._file("images.json")

    def put(self, **files: dict[str, Any]) -> None:
        """Write ``images``, ``registry`` or ``broken`` (verb to the error that it gives)."""
        for name, content in files.items():
            (self.folder / f"{name}.json").write_text(json.dumps(content))

    @property
    def calls(self) -> list[list[str]]:
        """Every command so far, without the program."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def did(self, verb: str) -> bool:
        """Tell whether a verb was used."""
        return any(verb in call for call in self.calls)

    def __call__(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:  # noqa: ARG002 - as the real one
        """Act as the project's runner, in this process."""
        return self.act(list(argv[1:]), stdin or "")

    def program(self) -> Path:
        """A program ``docker`` in front of this engine, in a folder of its own."""
        path = self.folder / "bin" / "docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!/bin/sh\nFAKE_ENGINE={self.folder} PYTHONPATH={ROOT}/plugins/module_utils:{ROOT} "
            f'exec {sys.executable} {__file__} "$@"\n'
        )
        path.chmod(0o755)
        return path

    # --- the executable ---------------------------------------------------------------------------------------------

    def act(self, argv: list[str], stdin: str) -> Completed:
        """Answer one command as Docker would. Archives go through the program's own input and output."""
        with (self.folder / "calls").open("a") as log:
            log.write(json.dumps(argv) + "\n")
        config = ""
        if argv[0] == "--config":
            config, argv = argv[1], argv[2:]
        verb, rest = argv[0], argv[1:]
        if verb in self._file("broken.json"):
            return self._fail(self._file("broken.json")[verb])
        if verb == "login":
            return self.login(rest, config, stdin)
        if verb == "pull":
            return self.pull(rest, config)
        verbs = {
            **{"image": self.inspect, "images": self.list_ids, "info": self.info, "version": self.version},
            **{"tag": self.tag, "rmi": self.remove, "run": self.run, "build": self.build},
            **{"save": self.save, "load": self.load, "ps": self.containers, "inspect": self.containers},
        }
        return verbs[verb](rest)

    @staticmethod
    def _fail(why: str, out: str = "") -> Completed:
        return Completed(1, out, why + "\n")

    def inspect(self, rest: list[str]) -> Completed:
        if rest[1] == "--format":
            found = [i["RootFS"]["Layers"] for i in self.images.values() if i["Id"] in rest]
            return _done("\n".join(json.dumps(layers) for layers in found))
        if rest[1] not in self.images:
            return self._fail(f"Error response from daemon: No such image: {rest[1]}", "[]")
        return _done(json.dumps([self.images[rest[1]]]))

    def list_ids(self, _rest: list[str]) -> Completed:
        return _done("\n".join(i["Id"] for i in self.images.values()))

    def info(self, _rest: list[str]) -> Completed:
        return _done(
            json.dumps([["driver-type", "io.containerd.snapshotter.v1"]] if self._file("store.json") else None)
        )

    def containers(self, rest: list[str]) -> Completed:
        running = self._file("containers.json").get("all", [])
        if "--type" in rest:
            return _done(json.dumps(running))
        ours = any("sparkpair" in word for word in rest)
        return _done("" if ours else "\n".join(c["Id"] for c in running))

    def version(self, _rest: list[str]) -> Completed:
        return _done(" ".join([self._file("api.json").get("version", "1.45")] * 2))

    def login(self, rest: list[str], config: str, stdin: str) -> Completed:
        wanted = self._file("accounts.json").get(rest[0])
        if wanted != [rest[2], stdin]:
            return self._fail("Error response from daemon: Get https://x/v2/: unauthorized")
        (Path(config) / "config.json").write_text(json.dumps({"auths": {rest[0]: {}}}))
        return _done()

    def pull(self, rest: list[str], config: str) -> Completed:
        reference = rest[-1]
        closed = self._file("accounts.json")
        if closed and not (config and (Path(config) / "config.json").exists()):
            return self._fail("Error response from daemon: pull access denied")
        found = self._file("registry.json").get(reference)
        if found is None:
            return self._fail(f"Error response from daemon: manifest for {reference} not found: manifest unknown")
        lines = ["9: Pulling from engine", *(f"{name}: Pulling fs layer" for name in found["fake"]["layers"])]
        lines += [
            f"{name}: {state}" for name in found["fake"]["layers"] for state in ("Download complete", "Pull complete")
        ]
        for line in lines if "slow" in found["fake"] else []:
            print(line, flush=True)
            time.sleep(found["fake"]["slow"])
        self.put(images={**self.images, reference: found})
        return _done("\n".join(lines))

    def tag(self, rest: list[str]) -> Completed:
        self.put(images={**self.images, rest[1]: self.images[rest[0]]})
        return _done()

    def remove(self, rest: list[str]) -> Completed:
        self.put(images={k: v for k, v in self.images.items() if k != rest[-1]})
        return _done()

    def run(self, rest: list[str]) -> Completed:
        found = self.images[rest[rest.index("--entrypoint") + 2]]
        return _done("== banner ==\nSPARKPAIR_PROBE " + json.dumps(found["fake"]["ray"]))

    def build(self, rest: list[str]) -> Completed:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as context:
            self.put(context={m.name: m.size for m in context})
        options = dict(rest[at + 1].split("=", 1) for at, word in enumerate(rest) if word == "--build-arg")
        base = self.images[options["BASE"]]
        made = image(*base["fake"]["layers"], f"ray-{options['RAY']}", ray=options["RAY"])
        made["Config"] = {"Labels": {"sparkpair.image.inputs": options["INPUTS"]}}
        self.put(images={**self.images, rest[rest.index("--tag") + 1]: made})
        return _done("Successfully built")

    def save(self, rest: list[str]) -> Completed:
        if dies := self._file("dies.json"):
            return Completed(dies["code"], "", dies["says"])
        found = self.images[rest[-1]]
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            for name in found["fake"]["layers"]:
                self._add(archive, "blobs/" + digest(name).replace(":", "/"), layer(name))
                if self._file("cut.json"):
                    sys.stdout.flush()
                    return self._fail("Error response from daemon: write: broken")
            self._add(archive, "manifest.json", json.dumps({rest[-1]: found}).encode())
        return _done()

    @staticmethod
    def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))

    def load(self, _rest: list[str]) -> Completed:
        held = {name for i in self.images.values() for name in i["RootFS"]["Layers"]}
        came: set[str] = set()
        loaded: dict[str, Any] = {}
        try:
            with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    data = content.read() if content else b""
                    if member.name == "manifest.json":
                        loaded = json.loads(data)
                    else:
                        came.add("sha256:" + hashlib.sha256(data).hexdigest())
        except tarfile.TarError:
            return self._fail("unexpected EOF")
        (self.folder / "came.json").write_text(json.dumps(sorted(came)))
        for name, found in loaded.items():
            if lacking := set(found["RootFS"]["Layers"]) - came - held:
                return self._fail(f"open blobs/{sorted(lacking)[0]}: no such file")
            # A loaded image has no registry digest, and another image store gives it another id.
            self.put(images={**self.images, name: {**found, "RepoDigests": [], "Id": "sha256:" + "f" * 64}})
        return _done() if loaded else self._fail("unexpected EOF")


def _done(out: str = "") -> Completed:
    return Completed(0, out + "\n", "")


def main() -> int:
    """Act as the executable."""
    asks = "--password-stdin" in sys.argv
    done = FakeEngine(Path(os.environ["FAKE_ENGINE"])).act(sys.argv[1:], sys.stdin.read() if asks else "")
    if sys.argv[1] != "save":
        sys.stdout.write(done.out)
    sys.stderr.write(done.err)
    return done.rc


if __name__ == "__main__":
    sys.exit(main())
