"""An image with the stand-in in vLLM's place: one more layer, the same bytes wherever it is made."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLACE = "opt/standin"
COMMAND = "/opt/venv/bin/vllm"


def standin_files(vllm: str = COMMAND) -> dict[str, bytes]:
    """Path in the image to content; ``vllm`` is the path of the command that the stand-in replaces."""
    files = {f"{PLACE}/{name}": (HERE / name).read_bytes() for name in ("engine.py", "vllm.py")}
    files[vllm.lstrip("/")] = f'#!/bin/sh\nexec python3 /{PLACE}/vllm.py "$@"\n'.encode()
    return files


def tag() -> str:
    """Reference of the image; it changes with the stand-in."""
    total = hashlib.sha256(b"".join(standin_files().values()))
    return f"sparkpair-lab/standin:{total.hexdigest()[:12]}"


def loadable(base: Mapping[str, Any], files: Mapping[str, bytes], reference: str) -> bytes:
    """A tar for ``docker load`` on a host that holds the base image: its layers are named, not contained.

    Args:
        base: ``docker image inspect`` of the base image.
        files: what the new layer holds.
        reference: name and tag of the new image.
    """
    layer = _tar({name: (content, 0o755) for name, content in files.items()})
    known = [*base["RootFS"]["Layers"], f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    config = {
        "architecture": base["Architecture"],
        "os": base["Os"],
        "created": "2000-01-01T00:00:00Z",
        "config": {key: base["Config"].get(key) for key in ("Env", "Cmd", "Entrypoint", "WorkingDir", "Labels")},
        "rootfs": {"type": "layers", "diff_ids": known},
        "history": [{"created": "2000-01-01T00:00:00Z", "created_by": "stand-in"} for _ in known],
    }
    raw = json.dumps(config, sort_keys=True).encode()
    name = f"{hashlib.sha256(raw).hexdigest()}.json"
    # Docker takes a layer from its store by the chain of digests and never opens the file that is named here.
    layers = [*(f"held-{number}/layer.tar" for number in range(len(known) - 1)), "new/layer.tar"]
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": layers}]).encode()
    return _tar({name: (raw, 0o644), "new/layer.tar": (layer, 0o644), "manifest.json": (manifest, 0o644)})


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()
