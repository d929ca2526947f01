#!/usr/bin/python
"""Module ``spark_sensors``."""

DOCUMENTATION = r"""
module: spark_sensors
short_description: Read the temperatures of a rank
description:
  - Reads the GPU's temperature from C(nvidia-smi) and every thermal zone of the kernel, once. Changes nothing.
options: {}
attributes:
  check_mode:
    description: Gives the same result in check mode.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Never changes anything.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Read the temperatures
  spark_sensors:
  register: read
"""

RETURN = r"""
readings:
  description: C(sensor) and C(celsius) of each sensor that gives a believable value.
  returned: always
  type: list
  elements: dict
hottest:
  description: The hottest of them, or null.
  returned: always
  type: dict
missing:
  description: Why there is no reading, or null.
  returned: always
  type: str
"""

from ansible.module_utils.sparkpair.modules import spark_sensors

if __name__ == "__main__":
    spark_sensors()
