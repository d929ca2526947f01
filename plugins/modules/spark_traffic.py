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
    description: File on the rank with the bearer token. Missing or empty means none.
    type: path
  deadline:
    description: Seconds for everything.
    type: float
    default: 300.0
  groups:
    description: Groups with C(name), C(mode) (sequential or concurrent) and C(requests).
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
  description: One answer per request.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.sparkpair.modules import spark_traffic

if __name__ == "__main__":
    spark_traffic()
