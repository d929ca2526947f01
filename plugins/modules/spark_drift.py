#!/usr/bin/python
"""Documentation of the action ``spark_drift``."""

DOCUMENTATION = r"""
module: spark_drift
short_description: Compare the live pair with the record of its acceptance
description:
  - Compares release, files, container arguments, environment, mounts, image and overlay bytes of every rank with the
    last accepted entry of its history, and these entries with each other. Fails on a difference. Runs on the controller
    and opens no connection. Use it with C(run_once).
options:
  states:
    description: Name of the variable in which every host registered the result of M(spark_state), read with records.
    type: str
    required: true
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
- name: Compare the pair with its record
  spark_drift:
    states: __spark_drift_read
  run_once: true
"""

RETURN = r"""
drift:
  description: One sentence for each difference.
  returned: always
  type: list
  elements: str
"""
