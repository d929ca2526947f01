"""Ends ``make demo``: asks the deployed pair for a completion and prints it with what the deploy measured."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

REPORT = Path(__file__).resolve().parents[1] / "reports" / "deploy" / "latest" / "result.json"
PROMPT = "Two Sparks walk into a rack."


def main() -> int:
    """Print a completion; returns 1 when the pair does not answer with tokens."""
    result = json.loads(REPORT.read_text())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{result['endpoint']}/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 48, "temperature": 0.8}
    request = urllib.request.Request(  # noqa: S310 - the endpoint is an http URL of the report
        f"{result['endpoint']}/v1/chat/completions",
        json.dumps({**body, "seed": 7}).encode(),
        {"Content-Type": "application/json"},
    )
    with opener.open(request, timeout=120) as answer:
        completion = json.load(answer)
    tokens = completion["usage"]["completion_tokens"]
    text = completion["choices"][0]["message"]["content"]
    print()
    print(f"endpoint               {result['endpoint']}  (OpenAI API, model {model})")
    print(f"release                {result['release']}  verify_tokens {result['verify_tokens']}")
    print(f"draft tokens per step  {result['draft_tokens_per_step']}  (measured from /metrics)")
    print(f"prompt                 {PROMPT}")
    print(f"completion             {text!r}  ({tokens} tokens; a tiny random model, so expect noise)")
    return 0 if tokens and text.strip() else 1


if __name__ == "__main__":
    sys.exit(main())
