#!/usr/bin/python
"""Module ``spark_engine``."""

DOCUMENTATION = r"""
module: spark_engine
short_description: Drain or stop the engine of a rank, wait for memory, or watch one that starts
description:
  - With C(state=drained) the head waits until the engine has no running or waiting request, at most C(timeout) seconds.
  - With C(state=settled) the rank waits until enough memory is free for the next engine, and fails after C(timeout).
  - With C(state=stopped) every container with sparkpair's label or name is stopped gracefully and removed, and the rank
    verifies that none is left.
  - With C(state=watched) the rank follows the container's log until the phase changes, the engine is ready or has
    failed, or C(hold) seconds have passed. The action M(spark_wait) calls it again and again.
options:
  root:
    description: Directory of releases on the rank. The secrets in it are hidden in what C(state=watched) shows.
    type: path
    default: /opt/sparkpair
  state:
    description: What is wanted.
    type: str
    choices: [drained, stopped, settled, watched]
    required: true
  grace:
    description: Seconds that the engine gets to finish before it is killed.
    type: int
    default: 60
  run:
    description: With C(state=stopped), the run that must hold the rollout lock of the rank. Empty does not ask.
    type: str
    default: ""
  session:
    description: The start of ansible-playbook that must hold it. The action fills it in.
    type: str
    default: ""
  metrics_url:
    description: URL of the engine's metrics. Required with C(state=drained).
    type: str
  free_gib:
    description: GiB that must be free with C(state=settled). 0 takes the engine's C(share).
    type: float
    default: 0.0
  share:
    description: Share of the memory that the next engine takes; that and 1.5 GiB must be free. 0 waits for nothing.
    type: float
    default: 0.0
  timeout:
    description: Seconds to wait with C(state=drained) and C(state=settled).
    type: float
    default: 0.0
  release:
    description: Release that must run. Required with C(state=watched).
    type: str
  health_url:
    description: URL whose status 200 means ready. Without it the rank is ready when its log says that it joined.
    type: str
  cursor:
    description: Where the last look ended, as it returned it.
    type: str
    default: ""
  phase:
    description: Phase that the caller knows.
    type: str
    default: ""
  hold:
    description: Seconds to wait on the rank for a change.
    type: float
    default: 10.0
attributes:
  action:
    description: An action of the same name says which start of ansible-playbook asks.
    support: full
  check_mode:
    description: Reports what would be stopped, and neither stops nor waits.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Stopping a stopped engine changes nothing.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Stop the engine
  spark_engine:
    state: stopped
"""

RETURN = r"""
requests:
  description: Requests that the engine still had, or null when it did not answer.
  returned: state is drained
  type: int
free:
  description: Free memory in bytes.
  returned: state is settled
  type: int
wanted:
  description: Memory that had to be free, in bytes.
  returned: state is settled
  type: int
seconds:
  description: How long it took.
  returned: state is drained or settled
  type: float
removed:
  description: Containers that were removed, with the release they belonged to.
  returned: state is stopped
  type: list
  elements: dict
watch:
  description: C(state), C(phase), C(detail), C(reason), C(cursor), C(log_growth), C(lines).
  returned: state is watched
  type: dict
"""

from ansible.module_utils.sparkpair.modules import spark_engine

if __name__ == "__main__":
    spark_engine()
