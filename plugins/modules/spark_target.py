#!/usr/bin/python
"""Documentation of the action ``spark_target``."""

DOCUMENTATION = r"""
module: spark_target
short_description: Choose the release that a rollback goes to
description:
  - Joins the records that M(spark_state) read on every host of the play. Runs on the controller and opens no
    connection. Use it with C(run_once).
options:
  states:
    description: Name of the variable in which every host registered the result of M(spark_state) with records.
    type: str
    required: true
  release:
    description: C(stock) for the last accepted stock release, C(previous) for the accepted release before the current
      one, or a release id.
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
- name: Choose the stock release
  spark_target:
    states: __spark_rollback_read
    release: stock
  run_once: true
  register: target
"""

RETURN = r"""
plan:
  description: Plan of the chosen release, or null when stock must be planned anew.
  returned: always
  type: dict
reason:
  description: Why this release.
  returned: always
  type: str
"""
