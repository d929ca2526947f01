#!/usr/bin/python
"""Documentation of the action ``spark_image_choice``."""

DOCUMENTATION = r"""
module: spark_image_choice
short_description: Choose how every rank gets the head's image
description:
  - Compares what M(spark_image) saw on every rank by content, and chooses what each rank still needs.
  - Runs on the controller and opens no connection. Use it with C(run_once).
options:
  plan:
    description: The plan, as M(spark_plan) returns it.
    type: dict
    required: true
  results:
    description: Names of variables that hold results of M(spark_image) on each rank, the latest last.
    type: list
    elements: str
    required: true
  final:
    description: Choose nothing; fail unless all ranks hold the head's image.
    type: bool
    default: false
attributes:
  action:
    description: This is an action.
    support: full
  check_mode:
    description: Gives the same result in check mode; what cannot be known before the head's pull is said so.
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
- name: Choose how the other ranks get it
  spark_image_choice:
    plan: "{{ planned.plan }}"
    results: [__seen, __prepared]
  run_once: true
  register: __choice
"""

RETURN = r"""
prepare:
  description: Host to the C(source) that it takes its image from and the C(reference) that it gets.
  returned: unless final
  type: dict
stream:
  description: Hosts that receive it from the head.
  returned: unless final
  type: list
  elements: str
lines:
  description: What is done, one line for each step.
  returned: unless final
  type: list
  elements: str
problems:
  description: Why a rank cannot have the head's image.
  returned: always
  type: list
  elements: str
"""
