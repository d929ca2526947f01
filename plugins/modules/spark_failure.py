#!/usr/bin/python
"""Documentation of the action ``spark_failure``."""

DOCUMENTATION = r"""
module: spark_failure
short_description: Join what the ranks of a run have said
description:
  - Says which hosts of the play are lost, whether somebody else has the lock, and why a rollout failed. Runs on the
    controller, on variables that the hosts have set, and opens no connection.
options:
  run:
    description: Id of the run.
    type: str
    required: true
  said:
    description: Name of the fact that a rank which is still there has set to O(run).
    type: str
    required: true
  lock:
    description:
      - Name of the variable in which every rank registered the result of M(spark_lock), read with O(run). Without it
        RV(theirs) is empty.
    type: str
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
    description: Changes nothing.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Say that this rank is still here
  ansible.builtin.set_fact:
    here: 20261203T043306Z-1a2b3c4d

- name: See which rank is not
  spark_failure:
    run: 20261203T043306Z-1a2b3c4d
    said: here
    lock: read
  register: failure
"""

RETURN = r"""
lost:
  description: Inventory names of the hosts that have not said O(run) in O(said).
  returned: always
  type: list
  elements: str
theirs:
  description: Descriptions of locks that are not this run's, of hosts that are there.
  returned: always
  type: list
  elements: str
reason:
  description: Host, task and first line of what failed; or that a host could not be reached.
  returned: always
  type: str
gates:
  description: Results of the gates, empty when none ran.
  returned: always
  type: list
  elements: dict
figures:
  description: What the gates measured.
  returned: always
  type: dict
"""
