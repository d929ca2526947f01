#!/usr/bin/env python3
"""STAND-IN for the command ``vllm``: reads the arguments of ``vllm serve`` and serves ``engine.py`` beside it.

It takes vLLM's place in an image that is otherwise the real engine's (Ray, Python, sources), so that a rollout meets an
engine that misbehaves on demand. ``STANDIN_FAULT`` names what it does wrong: a fault of ``engine.py``, or one below.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time

from engine import FAULTS, Engine

PROCESS_FAULTS = {
    "exits": "ends with an error before it serves",
    "fatal_line": "logs a fatal line and lingers",
    "slow": "takes half a minute until it serves",
    "dies_in_warmup": "ends in the middle of the warm-up",
}
SLOW_SECONDS = 30.0
REQUESTS_BEFORE_DEATH = 12


def say(text: str) -> None:
    """Write a log line in vLLM's place."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """The arguments that shape the answers; all others are vLLM's business."""
    # It does not know the flags of the engine whose place it takes, so it does not claim to list them.
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--speculative-config", type=json.loads, default=None)
    parser.add_argument("--headless", action="store_true")
    return parser.parse_known_args()[0]


def main() -> None:
    """Serve until stopped, as well as ``STANDIN_FAULT`` lets it."""
    given = arguments()
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fault = os.environ.get("STANDIN_FAULT", "")
    if fault and fault not in PROCESS_FAULTS and fault not in FAULTS:
        raise SystemExit(f"STANDIN_FAULT={fault} is not known")
    say("Initializing a V1 LLM engine (STAND-IN)")
    if given.headless:
        threading.Event().wait()
    if fault == "exits":
        raise SystemExit("ValueError: the stand-in was told to end")
    if fault == "fatal_line":
        say("Engine core initialization failed (STAND-IN)")
        threading.Event().wait()
    if fault == "slow":
        time.sleep(SLOW_SECONDS)
    config = given.speculative_config or {}
    proposal = int(config.get("num_speculative_tokens", 7))
    schedule = config.get("num_speculative_tokens_per_batch_size")
    faults = [fault] if fault in FAULTS else []
    behaviour = {
        "model": given.served_model_name,
        "proposal": proposal,
        "verify": int(schedule[0][2]) if schedule else proposal,
        "speculates": bool(config),
        "max_model_len": given.max_model_len,
        "api_key": os.environ.get("VLLM_API_KEY", ""),
        # Long enough for requests that are sent at once to meet.
        "step_seconds": 0.005,
    }
    with Engine(*faults, port=given.port, **behaviour) as engine:
        say("Application startup complete. (STAND-IN)")
        while fault != "dies_in_warmup" or len(engine.seen) < REQUESTS_BEFORE_DEATH:
            time.sleep(0.1)
    raise SystemExit("the stand-in was told to die in the warm-up")


if __name__ == "__main__":
    main()
