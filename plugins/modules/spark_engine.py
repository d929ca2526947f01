#!/usr/bin/python
"""Module ``spark_engine``."""

DOCUMENTATION = r"""
module: spark_engine
short_description: Stop the engine of a rank, or watch one that starts
description:
  - With C(state=stopped) every container with sparkpair's label or name is stopped gracefully and removed, and the rank
    verifies that none is left.
  - With C(state=watched) the rank follows the container's log until the phase changes, the engine is ready or has
    failed, or C(hold) seconds have passed. The action M(spark_wait) calls it again and again.
options:
  state:
    description: What is wanted.
    type: str
    choices: [stopped, watched]
    required: true
  grace:
    description: Seconds that the engine gets to finish before it is killed.
    type: int
    default: 60
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
  check_mode:
    description: Reports what would be stopped, and stops nothing.
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
