#!/usr/bin/python
"""Module ``spark_traffic``."""

DOCUMENTATION = r"""
module: spark_traffic
short_description: Send API requests from a rank and return timed answers
description:
  - Runs groups of requests, one after the other or all at once, streams included. A request that fails is data, not a
    failure of the task.
options:
  base_url:
    description: Such as C(http://127.0.0.1:8888).
    type: str
    required: true
  api_key_file:
    description: File on the rank with the bearer token. Missing or empty means none. The token is never returned.
    type: path
  deadline:
    description: Seconds for everything but the pauses for the sake of the temperature.
    type: float
    default: 300.0
  pause_celsius:
    description: Wait before a group while a sensor of this rank is at this temperature or above; 0 for never.
    type: float
    default: 0.0
  pause_seconds:
    description: How long all of these pauses may be together. After that, the requests are sent.
    type: float
    default: 0.0
  groups:
    description:
      - Groups with C(name), C(mode) (sequential, or concurrent for all at once) and C(requests).
      - A request has C(id) and C(path), and may have C(method) (GET), C(body) (sent as JSON), C(stream) (read
        server-sent events), C(timeout) (60 seconds), C(auth) (send the token, true), C(keep_lines) (a pattern; other
        lines of a text body are dropped), C(max_body) (characters of a text body to keep) and C(pause) (seconds to
        wait before it).
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    description: Sends nothing in check mode, and returns no answers.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Changes nothing on the rank.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Ask for the health
  spark_traffic:
    base_url: http://127.0.0.1:8888
    groups:
      - name: one
        requests:
          - id: health
            path: /health
"""

RETURN = r"""
responses:
  description:
    - One answer per request, in their order, with C(id), C(group), C(status) or null, C(error) or null, C(json) or
      C(text), C(started), C(first_token), C(ended) and C(events) (arrival of each piece of a stream) in seconds of one
      clock, C(content), C(reasoning_content), C(finish_reason), C(usage) and C(tool_calls).
    - A stream that breaks keeps what came before it broke. Empty in check mode.
  returned: always
  type: list
  elements: dict
paused:
  description: Seconds that were waited for the rank to cool down.
  returned: not in check mode
  type: float
"""

from ansible.module_utils.sparkpair.modules import spark_traffic

if __name__ == "__main__":
    spark_traffic()
