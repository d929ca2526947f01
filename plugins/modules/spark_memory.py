#!/usr/bin/python
"""Module ``spark_memory``."""

DOCUMENTATION = r"""
module: spark_memory
short_description: Drop a Spark's page cache before an engine starts
description:
  - Writes dirty pages back (C(sync)) and drops the page cache. CUDA counts the page cache of unified memory as used, so
    a start right after a download or a copy of weights finds too little.
  - Does nothing while an engine of ours runs. A cache that cannot be dropped is a warning, not a failure.
options:
  timeout:
    description: Seconds for all of it; a bad disk or a lost network file system may hang C(sync).
    type: float
    default: 60
attributes:
  check_mode:
    description: Reports that it would drop the cache.
    support: full
  diff_mode:
    description: There is no text to compare.
    support: none
  idempotent:
    description: While an engine of ours runs it does nothing; otherwise it drops the cache each time.
    support: partial
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Drop the page cache
  spark_memory:
    timeout: 30
  become: true
"""

RETURN = r"""
free_before:
  description: MemFree in KiB before.
  returned: always
  type: int
free_after:
  description: MemFree in KiB after.
  returned: always
  type: int
problems:
  description: What could not be done, and why.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.sparkpair.memory_module import spark_memory

if __name__ == "__main__":
    spark_memory()
