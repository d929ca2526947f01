#!/usr/bin/python
"""Documentation of the action ``spark_preflight_verdict``."""

DOCUMENTATION = r"""
module: spark_preflight_verdict
short_description: Judge the pair from the preflight results of its ranks
description:
  - Joins what M(spark_preflight) found on every rank, compares the ranks with each other (checks C(reach), C(clock) and
    C(parity)), prints a table, and fails when the pair is blocked, with all findings in one message. A degraded pair
    proceeds with warnings.
  - Without a plan it prints the inventory variables that M(spark_preflight) proposed.
  - Runs on the controller and opens no connection. Use it with C(run_once).
options:
  results:
    description: Name of the variable in which every host registered the result of M(spark_preflight).
    type: str
    required: true
  plan:
    description: The plan. Its ranks are the hosts that must have a result.
    type: dict
  thresholds:
    description: As in M(spark_preflight).
    type: dict
    default: {}
  skip:
    description: Checks between ranks to leave out.
    type: list
    elements: str
    default: []
  staged:
    description: Images were put in place, so that a difference between ranks blocks.
    type: bool
    default: false
  show:
    description: Print the table and the findings.
    type: bool
    default: true
attributes:
  action:
    description: Runs as an action on the controller.
    support: full
  check_mode:
    description: Gives the same result in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is nothing to show.
    support: none
  idempotent:
    description: Never changes anything.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Judge the pair
  spark_preflight_verdict:
    results: __preflight
    plan: "{{ planned.plan }}"
  run_once: true
  register: verdict
"""

RETURN = r"""
verdict:
  description: C(blocked), C(degraded) or C(ready).
  returned: with plan
  type: str
findings:
  description: Findings of all ranks and between them, worst first.
  returned: with plan
  type: list
  elements: dict
lines:
  description: What is printed.
  returned: always
  type: list
  elements: str
"""
