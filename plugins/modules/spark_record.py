#!/usr/bin/python
"""Module ``spark_record``."""

DOCUMENTATION = r"""
module: spark_record
short_description: Append an entry to a rank's history
description:
  - The history is one JSON object per line and is never rewritten.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  entry:
    description: The entry, with at least C(run), C(release) and C(outcome).
    type: dict
    required: true
attributes:
  check_mode:
    description: Reports that it would append, and appends nothing.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: An entry with the same run and outcome is not added again.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Record the accepted release
  spark_record:
    entry:
      run: 20260829T120000Z-3f9c2a51b7e0
      release: 3f9c2a51b7e0
      outcome: accepted
"""

RETURN = r"""
"""

from ansible.module_utils.sparkpair.modules import spark_record

if __name__ == "__main__":
    spark_record()
