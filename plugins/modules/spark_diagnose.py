#!/usr/bin/python
"""Module ``spark_diagnose``."""

DOCUMENTATION = r"""
module: spark_diagnose
short_description: Collect what explains a failure on a rank
description:
  - Reads container logs and settings, kernel lines about GPU, RDMA and memory, memory, disk, processes and Ray. The
    texts are written below the report of the run. Secrets are hidden on the rank, before anything leaves it.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  name:
    description: Name of the rank; the folder of its texts in the report.
    type: str
    required: true
attributes:
  action:
    description: The action part runs on the controller.
    support: full
  check_mode:
    description: Only reads.
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
- name: Collect diagnostics
  spark_diagnose:
    name: "{{ inventory_hostname }}"
"""

RETURN = r"""
collected:
  description: Names of the texts.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.sparkpair.modules import spark_diagnose

if __name__ == "__main__":
    spark_diagnose()
