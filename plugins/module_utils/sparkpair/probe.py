"""The few API requests that show whether a pair serves. Standard library only: a rank sends them itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS = 48
PROMPT = "Count upwards from one, in words:"
METRICS_LINES = "^vllm:(spec_decode_num_|generation_tokens_total)"
SPARE = 20.0


def requests(plan: Mapping[str, Any], deadline: float = 60.0) -> dict[str, Any]:
    """Requests that show whether a pair serves: health, served name, and a completion between two metric readings.

    The completion may take ``deadline`` seconds; the second reading comes after it all the same.
    """
    read_metrics = {"method": "GET", "path": "/metrics", "keep_lines": METRICS_LINES, "timeout": 10}
    completion = {
        "model": plan["served_model_name"],
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    listed = [
        {"id": "health", "method": "GET", "path": "/health", "timeout": 10},
        {"id": "models", "method": "GET", "path": "/v1/models", "timeout": 10},
        {"id": "before", **read_metrics},
        {"id": "completion", "method": "POST", "path": "/v1/completions", "timeout": deadline, "body": completion},
        {"id": "after", **read_metrics},
    ]
    return {
        "base_url": f"http://127.0.0.1:{plan['port']}",
        "deadline": deadline + SPARE,
        "groups": [{"name": "probe", "mode": "sequential", "requests": listed}],
    }
