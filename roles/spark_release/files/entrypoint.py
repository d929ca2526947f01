#!/usr/bin/env python3
"""First process of an engine container: joins the Ray cluster of the pair, then becomes ``vllm serve``.

Reads ``launch.json`` beside it; its arguments are those of ``vllm serve``. Runs with the image's Python and imports Ray
only where it is needed. With ``--probe URL`` it is the container's health check instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
API_KEY = Path("/run/sparkpair/api_key")
RETRY_SECONDS = 3.0
JOINED_SECONDS = 5.0


def say(text: str) -> None:
    """Write a line that the controller recognises in the container's log."""
    print(f"[sparkpair] {text}", file=sys.stderr, flush=True)


def die(text: str) -> NoReturn:
    """End the container with a line that the controller shows as the reason."""
    say(f"fatal: {text}")
    sys.exit(1)


def probe(url: str) -> NoReturn:
    """Exit with 0 when ``url`` answers 200 within four seconds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=4) as answer:
        sys.exit(0 if answer.status == HTTPStatus.OK else 1)


def ray_start(launch: dict[str, Any], *where: str) -> list[str]:
    """Command line of ``ray start`` on this rank; ``where`` says head or which cluster to join."""
    ray = launch["ray"]
    return [
        "ray",
        "start",
        *where,
        f"--node-ip-address={launch['address']}",
        f"--num-gpus={ray['num_gpus']}",
        f"--object-store-memory={ray['object_store_bytes']}",
        "--disable-usage-stats",
    ]


def wait_for_ranks(launch: dict[str, Any]) -> None:
    """Wait until Ray counts every rank of the pair as alive; end the container when the join timeout passes."""
    import ray  # noqa: PLC0415 - with executor mp the image may hold no Ray

    ray.init(address="auto", logging_level="ERROR", log_to_driver=False, namespace="sparkpair")
    wanted = set(launch["ranks"])
    deadline = time.monotonic() + launch["ray"]["join_timeout"]
    before: set[str] = set()
    while True:
        alive = {n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
        if alive != before:
            say(f"waiting for ranks: {len(alive & wanted)} of {len(wanted)} alive in Ray ({', '.join(sorted(alive))})")
            before = alive
        if wanted <= alive:
            break
        if time.monotonic() > deadline:
            die(f"ranks {sorted(wanted - alive)} did not join Ray within {launch['ray']['join_timeout']} s")
        time.sleep(0.5)
    ray.shutdown()


def serve(arguments: list[str]) -> NoReturn:
    """Become ``vllm serve``; the API key goes into its environment, so that neither argv nor inspect shows it."""
    key = API_KEY.read_text() if API_KEY.exists() else ""
    if key:
        os.environ["VLLM_API_KEY"] = key
    say("exec vllm serve")
    os.execvp("vllm", ["vllm", "serve", *arguments])  # noqa: S606 - no shell is the point


def head(launch: dict[str, Any], arguments: list[str]) -> NoReturn:
    """Start the Ray head bound to the fabric address, wait for every rank, serve."""
    say(f"ray head on {launch['address']}:{launch['ray']['port']}")
    done = subprocess.run(
        ray_start(launch, "--head", f"--port={launch['ray']['port']}", "--include-dashboard=false"), check=False
    )
    if done.returncode:
        die(f"ray start --head ended with {done.returncode}")
    wait_for_ranks(launch)
    serve(arguments)


def worker(launch: dict[str, Any]) -> NoReturn:
    """Join the Ray head, retrying until the join timeout, and stay while the node is part of the cluster."""
    target = f"{launch['head_address']}:{launch['ray']['port']}"
    child: subprocess.Popen[bytes] | None = None

    def leave(number: int, _frame: FrameType | None) -> None:
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    deadline = time.monotonic() + launch["ray"]["join_timeout"]
    while True:
        say(f"ray worker {launch['address']} joins {target}")
        child = subprocess.Popen(ray_start(launch, f"--address={target}", "--block"))
        started = time.monotonic()
        while child.poll() is None and time.monotonic() - started < JOINED_SECONDS:
            time.sleep(0.2)
        if child.poll() is None:
            say("joined as a worker")
            code = child.wait()
            die(f"the Ray node left the cluster (ray start ended with {code})")
        if time.monotonic() > deadline:
            die(f"could not join Ray at {target} within {launch['ray']['join_timeout']} s")
        time.sleep(RETRY_SECONDS)


def main() -> NoReturn:
    """Do what the launch file says."""
    if sys.argv[1:2] == ["--probe"]:
        probe(sys.argv[2])
    launch = json.loads((HERE / "launch.json").read_text())
    if launch["executor"] == "mp":
        serve(sys.argv[1:])
    if launch["role"] == "head":
        head(launch, sys.argv[1:])
    worker(launch)


if __name__ == "__main__":
    main()
