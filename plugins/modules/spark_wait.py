#!/usr/bin/python
"""Documentation of the action ``spark_wait``."""

DOCUMENTATION = r"""
module: spark_wait
short_description: Follow a starting pair until it serves
description:
  - Asks each rank for changes, waiting on the rank, and shows what the engine does (joining Ray, loading, capturing).
  - Ends early on every rank when one rank's engine exits, logs a line that cannot be recovered from, disappears, or
    logs nothing for C(stall) seconds. Each rank then fails with its own last log lines.
options:
  root:
    description: Directory of releases on the rank. The secrets in it are hidden in log lines that are shown.
    type: path
    default: /opt/sparkpair
  plan:
    description: The plan, or the plan of the release that starts.
    type: dict
    required: true
  rank:
    description: Number of this rank.
    type: int
    required: true
  timeout:
    description: Seconds until the pair must serve.
    type: float
    required: true
  stall:
    description: Seconds without any log line of the head after which the start counts as stuck.
    type: float
    required: true
  attempt:
    description: A word that tells two waits of one run apart.
    type: str
    required: true
attributes:
  action:
    description: Runs as an action on the controller.
    support: full
  check_mode:
    description: Skipped in check mode, where nothing was started.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Changes nothing; with a serving pair it returns at once.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Wait until the pair serves
  spark_wait:
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"
    timeout: 3600
    stall: 900
    attempt: deploy
"""

RETURN = r"""
seconds:
  description: How long the rank waited.
  returned: always
  type: float
phases:
  description: Seconds after which each phase was reached.
  returned: always
  type: dict
lines:
  description: The last log lines of the rank's engine.
  returned: always
  type: list
  elements: str
"""
