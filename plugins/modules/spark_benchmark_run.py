#!/usr/bin/python
"""Documentation of the action ``spark_benchmark_run``."""

DOCUMENTATION = r"""
module: spark_benchmark_run
short_description: Open a benchmark, note what happened to it, write its report
description:
  - Keeps C(benchmark/runs/<id>/results.json) below the folder of reports. With C(state=opened) it plans every arm (the
    operator's settings with the arm's on top), checks every prompt's sha256, and decides whether an interrupted run
    goes on. Refuses whatever is wrong before anything is deployed.
  - Runs on the controller and opens no connection. Use it with C(run_once).
options:
  state:
    description:
      - C(opened) begins or continues a run. C(noted) adds temperatures to a workload. C(failed) adds why
        the ranks' last task failed. C(restored) notes that what served before serves again. C(closed) writes
        C(report.html) and C(report.md).
    type: str
    choices: [opened, noted, failed, restored, closed]
    required: true
  reports:
    description: Folder of reports on the controller.
    type: path
    required: true
  run:
    description: Id of the run, for every state but C(opened).
    type: str
  arms:
    description: Arms, a list or text with commas. Each is stock, off, current or proposal/verify such as 7/3.
    type: raw
  workloads:
    description: Names of workloads, a list or text with commas. All of the manifest when empty.
    type: raw
  prompts:
    description: Prompt files, a list or text with commas. Each becomes a workload.
    type: raw
  runs:
    description: Measured runs of every workload. The manifest's when 0.
    type: int
    default: 0
  tokens:
    description: Tokens of every answer. The manifest's when 0.
    type: int
    default: 0
  ignore_eos:
    description: Let the engine write on after the end of its text.
    type: bool
    default: false
  drift_bound:
    description: Largest drift of the controls, as a share, with which anything may be concluded.
    type: float
    default: 0.02
  resume:
    description:
      - C(auto) continues an interrupted run of the same request and refuses when there is one of another request.
        C(true) also refuses when there is none. C(false) abandons it, keeps its note of what served before, and begins
        anew.
    type: raw
    default: auto
  before:
    description: What serves now. C(serving), and the C(release) that can be put back or null.
    type: dict
  theirs:
    description: Whether another verb brought what serves now, for C(opened). Then that is what a run which goes on puts
      back.
    type: bool
    default: false
  reasons:
    description: Why nothing serves.
    type: list
    elements: str
    default: []
  live:
    description: Plan of the release that serves, for the arm C(current).
    type: dict
  arm:
    description: Label of the arm, for C(noted).
    type: str
  workload:
    description: Name of the workload, for C(noted).
    type: str
  temperatures:
    description: Name of the variable in which every host registered M(spark_sensors), for C(noted).
    type: str
  left:
    description: Release of another run that serves now and was left as it is, for C(restored).
    type: str
attributes:
  action:
    description: Runs as an action on the controller.
    support: full
  check_mode:
    description: Plans and checks everything, and writes nothing.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: A run that is complete stays as it is; only its report is written again.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Open a run
  spark_benchmark_run:
    state: opened
    reports: reports
    arms: [stock, 7/3, stock]
    before:
      serving: true
      release: 3f9c2a51b7e0
  run_once: true
  register: opened
"""

RETURN = r"""
run:
  description: Id of the run.
  returned: with opened and closed
  type: str
deploys:
  description: Whether an arm is deployed.
  returned: with opened
  type: bool
before:
  description: What served before the first arm, from the interrupted run where one goes on.
  returned: with opened
  type: dict
restore:
  description: Whether C(before.release) has to be put back at the end.
  returned: with opened
  type: bool
arms:
  description: C(id), C(spec), C(plan) and the C(workloads) that it has not measured yet.
  returned: with opened
  type: list
  elements: dict
opened:
  description: When the run was opened (C(time), epoch seconds) and how many C(calls) were left then.
  returned: with opened
  type: dict
status:
  description: C(complete), or C(unfinished) when something is not measured or not put back.
  returned: with closed
  type: str
results:
  description: Path of results.json.
  returned: with closed
  type: str
html:
  description: Path of the page.
  returned: with closed
  type: str
markdown:
  description: Path of the Markdown summary.
  returned: with closed
  type: str
sentence:
  description: The recommendation.
  returned: with closed
  type: str
"""
