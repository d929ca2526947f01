#!/usr/bin/python
"""Documentation of the action ``spark_weights_verdict``, which runs on the controller only."""

DOCUMENTATION = r"""
module: spark_weights_verdict
short_description: Join the weights of all ranks
description:
  - Compares what M(spark_weights) found on every rank, shows a table, and says what is to be brought where.
options:
  plan:
    description: The plan.
    type: dict
    required: true
  results:
    description: Names of the variables that hold results of M(spark_weights); the first that a host has counts.
    type: list
    elements: str
    required: true
  transfer:
    description: C(fabric), or C(none) when nothing may be copied.
    type: str
    choices: [fabric, none]
    default: fabric
  final:
    description: Nothing more will be brought, so that weights that are not complete end the run.
    type: bool
    default: false
  show:
    description: Print the table.
    type: bool
    default: true
attributes:
  action:
    description: Runs on the controller only.
    support: full
  check_mode:
    description: Gives the same result in check mode, worded as what would be done.
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
- name: Judge the weights of the pair
  spark_weights_verdict:
    results: [__weights]
    plan: "{{ planned.plan }}"
  run_once: true
"""

RETURN = r"""
complete:
  description: Whether every rank holds the head's files.
  returned: always
  type: bool
head:
  description: Whether the head lacks files.
  returned: always
  type: bool
compare:
  description: Hosts that must be compared with the head's manifest.
  returned: always
  type: list
  elements: str
receivers:
  description: Hosts that lack files of it.
  returned: always
  type: list
  elements: str
lines:
  description: The table.
  returned: always
  type: list
  elements: str
"""
