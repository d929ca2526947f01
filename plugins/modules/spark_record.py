#!/usr/bin/python
"""Module ``spark_record``."""

DOCUMENTATION = r"""
module: spark_record
short_description: Append an entry to a rank's history
description:
  - The history is one JSON object per line and is never rewritten. The action adds who ran it, where and when,
    and the rank adds the id of the image that its engine runs.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  plan:
    description: The plan of the release that the entry is about.
    type: dict
    required: true
  run:
    description: Id of the run.
    type: str
    required: true
  verb:
    description: The verb that ran.
    type: str
    required: true
  outcome:
    description: Such as accepted, rolled_back or not_restored.
    type: str
    required: true
  previous:
    description: Release that was current before.
    type: str
  returned_to:
    description: Release that serves again after this run failed.
    type: str
  reason:
    description: Why, when the outcome is not accepted.
    type: str
  gates:
    description: Results of the gates.
    type: list
    elements: dict
  gate_settings:
    description: With which gates, limits and deadlines it was accepted, as M(spark_gate) returned them.
    type: dict
  phases:
    description: Seconds after which each phase of the start was reached.
    type: dict
  start_seconds:
    description: Seconds that the start took until the pair served; 0 when nothing was started.
    type: float
    default: 0
  figures:
    description: Figures that the gates measured, by name.
    type: dict
  advisory:
    description: What the operator was told before the start.
    type: list
    elements: str
  entry:
    description: The complete entry, made by the action. Not for use in a playbook.
    type: dict
attributes:
  action:
    description: The action part runs on the controller.
    support: full
  check_mode:
    description: Reports that it would append, and appends nothing.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: An entry with the run and outcome of the last one is not added again.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Record the accepted release
  spark_record:
    plan: "{{ planned.plan }}"
    run: "{{ run }}"
    verb: deploy
    outcome: accepted
"""

RETURN = r"""
"""

from ansible.module_utils.sparkpair.modules import spark_record

if __name__ == "__main__":
    spark_record()
