#!/usr/bin/python
"""Documentation of the action ``spark_gate``."""

DOCUMENTATION = r"""
module: spark_gate
short_description: Let a started pair pass the acceptance gates
description:
  - Runs the gates in order on the head (ranks, ray, health, models, auth, completion, warmup, width, canary, json,
    tool, mixed), prints a line for each, and stops at the first that fails.
options:
  plan:
    description: The plan of the release that was started.
    type: dict
    required: true
  states:
    description: State of each rank as M(spark_verdict) joined them, by rank.
    type: dict
    default: {}
  base_url:
    description: Where the head reaches its own API. Its port on the loopback address when not given.
    type: str
  api_key_file:
    description: File on the head with the API key.
    type: path
  only:
    description: Names of the gates to run. All when empty.
    type: list
    elements: str
    default: []
  skip:
    description: Names of gates to leave out.
    type: list
    elements: str
    default: []
  deadlines:
    description: Seconds by name of a gate, where its own deadline does not fit.
    type: dict
    default: {}
attributes:
  action:
    description: Runs as an action on the controller.
    support: full
  check_mode:
    description: Sends nothing and is skipped.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Changes nothing on the ranks.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Pass every gate
  spark_gate:
    plan: "{{ planned.plan }}"
    states: "{{ joined.states }}"
"""

RETURN = r"""
gates:
  description: C(name), C(ok), C(seen), C(wanted) and C(seconds) of each gate that ran.
  returned: always
  type: list
  elements: dict
"""
