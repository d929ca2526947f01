"""The diagnostics of a rank: everything that explains a failure, and no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sparkpair import diagnose
from sparkpair.engine import Watch
from sparkpair.runner import Completed

TOKEN = "f00d" * 16
INSPECTED = {
    "Id": "1" * 64,
    "Name": "/sparkpair-engine",
    "Image": "sha256:" + "2" * 64,
    "Config": {
        "Image": "engine:1",
        "Env": ["PORT=8888", "HF_TOKEN=hf_secret"],
        "Labels": {"sparkpair.release": "a" * 12},
    },
    "State": {"Status": "running", "Running": True, "ExitCode": 0, "StartedAt": "2026-03-01T00:00:00Z"},
}
KERNEL = (
    "[1] usb 1-1: new device\n[2] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus\n[3] oom-kill:constraint\n"
)


def runner(argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60.0) -> Completed:
    """A host with one engine whose log and process list show the Ray token."""
    told = {
        "docker ps": "1" * 64,
        "docker inspect": json.dumps([INSPECTED]),
        "docker logs": f"2026-03-01T00:00:01Z started with {TOKEN}",
        "docker exec": "Healthy: 2 nodes",
        "dmesg --ctime": KERNEL,
        "ps -eo": f"1 ray --token {TOKEN}",
        "cat /proc/meminfo": "MemFree: 1 kB",
        "df -h": "/dev/sda 100%",
    }
    out = told.get(" ".join(argv[:2]))
    return Completed(0, out, "") if out is not None else Completed(127, "", f"{argv[0]}: not found")


def collected(tmp_path: Path) -> dict[str, str]:
    """Texts of that host, whose release holds the token."""
    secrets = tmp_path / "releases" / ("a" * 12) / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "ray_token").write_text(TOKEN)
    (secrets / "api_key").write_text("")
    return diagnose.collect(tmp_path, runner)


def test_logs_containers_memory_ray_and_disk_are_there(tmp_path: Path) -> None:
    texts = collected(tmp_path)
    assert texts["sparkpair-engine-ray.txt"] == "Healthy: 2 nodes"
    assert texts["memory.txt"] == "MemFree: 1 kB"
    assert texts["disk.txt"] == "/dev/sda 100%"
    assert json.loads(texts["sparkpair-engine.json"])["environment"]["PORT"] == "8888"


def test_no_secret_leaves_the_rank(tmp_path: Path) -> None:
    texts = collected(tmp_path)
    everything = "\n".join(texts.values())
    assert TOKEN not in everything
    assert "hf_secret" not in everything
    assert texts["sparkpair-engine.log"] == "2026-03-01T00:00:01Z started with (hidden)\n"
    assert "--token (hidden)" in texts["processes.txt"]


def test_an_engine_that_prints_its_environment_shows_no_secret_while_it_starts(tmp_path: Path) -> None:
    collected(tmp_path)
    seen = Watch("exited", "load", f"last: {TOKEN}", f"died with {TOKEN}", "c", 2, [f"TOKEN={TOKEN}", "Traceback"])
    shown = diagnose.discreet(tmp_path, seen.as_dict())
    assert TOKEN not in json.dumps(shown)
    assert shown["lines"] == ["TOKEN=(hidden)", "Traceback"]
    assert (shown["state"], shown["cursor"], shown["log_growth"]) == ("exited", "c", 2)
    plain = Watch("starting", "load", "weights", "", "c", 1, ["loading"]).as_dict()
    assert diagnose.discreet(tmp_path, plain) == plain


@pytest.mark.parametrize("printed", [str, json.dumps, repr])
def test_a_key_that_is_printed_with_its_marks_escaped_is_hidden_too(
    tmp_path: Path, printed: Callable[[str], str]
) -> None:
    key = "a\\b\"c'd" + "-0123456789"
    secrets = tmp_path / "releases" / ("a" * 12) / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "api_key").write_text(key)
    seen = Watch("exited", "load", "", "", "c", 1, [f"VLLM_API_KEY={printed(key)} and more"])
    (line,) = diagnose.discreet(tmp_path, seen.as_dict())["lines"]
    assert line.replace('"', "").replace("'", "") == "VLLM_API_KEY=(hidden) and more"


def test_of_the_kernel_only_what_concerns_the_engine_is_kept(tmp_path: Path) -> None:
    assert collected(tmp_path)["kernel.txt"].splitlines() == KERNEL.splitlines()[1:]


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert collected(tmp_path)["gpu.txt"] == "nvidia-smi -q -d MEMORY,TEMPERATURE,PIDS: nvidia-smi: not found\n"
