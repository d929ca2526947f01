#!/usr/bin/python
"""Module ``spark_release``; the action of the same name renders the files and calls it."""

DOCUMENTATION = r"""
module: spark_release
short_description: Stage a release on a rank, prepare it, switch to it, or prune
description:
  - With C(state=staged) the action renders the plan on the controller and ships all files of the rank in one call. The
    rank writes them beside the live release and moves the directory into place when it is whole.
  - With C(state=prepared) a release that is complete gets its secrets for the coming start, and the link that will
    become C(current) lies ready. A release that is damaged or missing is refused. C(state=unprepared) takes that link
    away again.
  - With C(state=current) the link C(current) moves by rename. With C(state=none) it is removed.
  - With C(state=pruned) every release is removed but C(keep) and the current one, and so is what interrupted runs left.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  state:
    description: What is wanted.
    type: str
    choices: [staged, prepared, unprepared, current, none, pruned]
    default: staged
  plan:
    description: The plan that M(spark_plan) returned. Required with C(state=staged).
    type: dict
  rank:
    description: Number of this rank in the plan. Required with C(state=staged).
    type: int
  overlays:
    description: Overlay files to mount, as M(spark_overlay) returned them.
    type: list
    elements: dict
    default: []
  overlay_root:
    description: Directory on the rank below which M(spark_overlay) wrote the files.
    type: path
  release:
    description: Release id. Taken from the plan with C(state=staged).
    type: str
  files:
    description: Files that the action rendered. Not for use in a playbook.
    type: list
    elements: dict
    default: []
  secrets:
    description: Secret files that the action made. Not for use in a playbook.
    type: dict
    default: {}
  api_key_set:
    description: Whether the release asks clients for the API key. Used with C(state=prepared).
    type: bool
    default: false
  own_key:
    description: Whether the release keeps the key that it has on the rank, where it has one, whatever the settings say.
      Used with C(state=prepared).
    type: bool
    default: false
  spend:
    description: With O(state=prepared), give up the room that the lock keeps in reserve when the disk is full.
    type: bool
    default: false
  keep_secrets:
    description: Secrets that stay as they are. Set by the action; not for use in a playbook.
    type: list
    elements: str
    default: []
  keep:
    description: Releases that C(state=pruned) must not remove.
    type: list
    elements: str
    default: []
attributes:
  action:
    description: The action part runs on the controller.
    support: full
  check_mode:
    description: Reports what would be written, switched or removed, and touches nothing.
    support: full
  diff_mode:
    description: Shows each file against the current release. Secrets are never part of it.
    support: full
  idempotent:
    description: A release that is there with the same content is left alone. Secrets are renewed with each
      C(state=prepared) and do not count as a change.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Stage the release on every rank
  spark_release:
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"

- name: Prepare it, so that the switch is a rename
  spark_release:
    state: prepared
    release: "{{ planned.plan.release }}"

- name: Switch to it
  spark_release:
    state: current
    release: "{{ planned.plan.release }}"
"""

RETURN = r"""
release:
  description: Id of the release.
  returned: state is staged, prepared or unprepared
  type: str
damage:
  description: What was wrong with an older copy of the same release.
  returned: state is staged
  type: list
  elements: str
before:
  description: Id that C(current) pointed to.
  returned: state is prepared, current or none
  type: str
removed:
  description: Ids of the removed releases.
  returned: state is pruned
  type: list
  elements: str
leftovers:
  description: Half-written directories and links of interrupted runs that were removed.
  returned: state is pruned
  type: list
  elements: str
"""

from ansible.module_utils.sparkpair.modules import spark_release

if __name__ == "__main__":
    spark_release()
