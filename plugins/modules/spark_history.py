#!/usr/bin/python
"""Documentation of the action ``spark_history``."""

DOCUMENTATION = r"""
module: spark_history
short_description: Print the joined record of all ranks
description:
  - Joins the histories that M(spark_state) read with records, prints the latest runs, and says in what the ranks'
    records differ. Runs on the controller and opens no connection. Use it with C(run_once).
options:
  states:
    description: Name of the variable in which every host registered the result of M(spark_state), read with records.
    type: str
    required: true
  limit:
    description: How many runs to print.
    type: int
    default: 20
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
- name: Print the record
  spark_history:
    states: __spark_history_read
    limit: 10
  run_once: true
"""

RETURN = r"""
entries:
  description: The runs, the latest last, each with the numbers of the C(ranks) that hold it.
  returned: always
  type: list
  elements: dict
"""
