#!/usr/bin/python
"""Module ``spark_state``."""

DOCUMENTATION = r"""
module: spark_state
short_description: Read everything about one rank in one call
description:
  - Reads the current release and verifies it by content, lists releases and leftovers, inspects the engine containers,
    reads the memory, and on request asks Ray and sends API requests.
  - Changes nothing.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  release:
    description: Release to verify by content. The current one when not given.
    type: str
  ray:
    description: Ask Ray, inside the running engine container, which nodes are alive.
    type: bool
    default: false
  host:
    description: Also read temperatures, and what the kernel said about GPU and memory since the engine was started.
    type: bool
    default: false
  cool:
    description: Wait first while a sensor of the rank is at O(cool_celsius) or above. Never in check mode.
    type: bool
    default: false
  cool_celsius:
    description: Degrees Celsius; 0 for no wait.
    type: float
    default: 90.0
  cool_seconds:
    description: The longest wait, in seconds.
    type: float
    default: 600.0
  records:
    description: Also read the history, and verify every release that is there.
    type: bool
    default: false
  compose:
    description: Also ask for Docker Compose. Where it does not answer, Docker counts as one that does not.
    type: bool
    default: false
  probe:
    description: Send the few API requests that show whether the current release serves, when an engine runs.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reads in check mode as well.
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
- name: Read the state of every rank
  spark_state:
    ray: true
  register: read
"""

RETURN = r"""
state:
  description:
    - C(hostname), C(time), C(memory) in KiB, C(current), C(releases), C(leftovers), C(release) with its damage.
    - With O(records), C(history), C(checks), C(plans), C(lock), and C(images), a digest over the layers of each image
      that a release names.
    - C(plan) of the current release, C(docker) (null, or why it does not answer), C(containers), C(ray), C(responses).
    - C(cooled), the seconds that were waited because of O(cool).
  returned: always
  type: dict
"""

from ansible.module_utils.sparkpair.modules import spark_state

if __name__ == "__main__":
    spark_state()
