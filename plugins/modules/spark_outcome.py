#!/usr/bin/python
"""Documentation of the action ``spark_outcome``."""

DOCUMENTATION = r"""
module: spark_outcome
short_description: State in the report how a run ended
description:
  - Puts outcome and message into the report of the run, and the message on the screen. Runs on the controller.
options:
  outcome:
    description: Such as rolled_back or not_restored.
    type: str
    required: true
  message:
    description: One sentence for the operator.
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
    description: Changes nothing on the ranks.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: State the outcome
  spark_outcome:
    outcome: rolled_back
    message: rolled back to 3f9c2a51b7e0
"""

RETURN = r"""
"""
