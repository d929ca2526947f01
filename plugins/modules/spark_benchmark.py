#!/usr/bin/python
"""Documentation of the action ``spark_benchmark``."""

DOCUMENTATION = r"""
module: spark_benchmark
short_description: Measure one workload in one arm of a benchmark
description:
  - Lets the head send the workload's requests with M(spark_traffic), one call per run, prints a line for each with the
    time that is left, and writes what was measured into the run's results.json.
  - A request that fails is a result (the workload becomes inconclusive), not a failure of the task.
options:
  reports:
    description: Folder of reports on the controller.
    type: path
    required: true
  run:
    description: Id of the run that M(spark_benchmark_run) opened.
    type: str
    required: true
  arm:
    description: Label of the arm, such as A1.
    type: str
    required: true
  workload:
    description: Name of the workload.
    type: str
    required: true
  plan:
    description: The plan that serves.
    type: dict
    required: true
  opened:
    description: C(opened) of M(spark_benchmark_run), for the time that is left.
    type: dict
    required: true
  deploys:
    description: Seconds that each rollout of an arm has taken so far, for the time that is left.
    type: list
    elements: float
    default: []
  base_url:
    description: Where the head reaches its own API. Its port on the loopback address when not given.
    type: str
  api_key_file:
    description: File on the head with the API key.
    type: path
attributes:
  action:
    description: Runs as an action on the controller; the requests are sent by the host.
    support: full
  check_mode:
    description: Sends nothing and is skipped.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Changes nothing on the rank; a workload that was measured is measured again.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Measure
  spark_benchmark:
    reports: reports
    run: "{{ opened.run }}"
    arm: A1
    workload: count
    plan: "{{ opened.arms[0].plan }}"
    opened: "{{ opened.opened }}"
"""

RETURN = r"""
measured:
  description: What was measured, as in results.json.
  returned: unless skipped
  type: dict
"""
