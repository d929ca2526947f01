#!/usr/bin/python
"""Module ``spark_lock``; the action of the same name adds who and where to the note."""

DOCUMENTATION = r"""
module: spark_lock
short_description: Take, advance, keep, release or show the rollout lock of a rank
description:
  - The lock is a directory, so taking it is atomic. It is never taken over; a lock of another run is reported with its
    holder and age.
  - The note names the phase that the run is in. A lock that is released with C(force) leaves an entry with outcome
    C(interrupted) in the rank's history, so the next run knows how far the killed one came.
options:
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  state:
    description: C(held) takes it, C(advanced) notes the run's phase, C(kept) notes why it stays, C(released) gives it
      back, C(shown) only reads it.
    type: str
    choices: [held, advanced, kept, released, shown]
    required: true
  run:
    description: Id of the run that takes, keeps or gives back the lock.
    type: str
  release:
    description: Release that the run deploys, for the note.
    type: str
  verb:
    description: The verb that runs, for the note.
    type: str
  reason:
    description: Why the lock stays, or why the lock of another run is released.
    type: str
    default: ""
  optional:
    description: With O(state=held), go on with a warning where the rank takes no file, so that nobody can hold it.
    type: bool
    default: false
  phase:
    description: Phase that the run enters, or begins with. Required with C(state=advanced).
    type: str
    default: ""
  force:
    description: Release the lock whoever holds it. Needs a reason.
    type: bool
    default: false
  session:
    description: The start of ansible-playbook that asks, given by the action. The same run in another one is refused.
    type: str
    default: ""
  note:
    description: The note, made by the action. Not for use in a playbook.
    type: dict
    default: {}
attributes:
  action:
    description: The action part runs on the controller.
    support: full
  check_mode:
    description: Reads the lock and changes nothing. C(state=held) fails where the lock would not be given.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Taking a lock that the same run holds in the same start of ansible-playbook, and releasing one that is
      not held, change nothing. A new phase is no change.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Take the lock
  spark_lock:
    state: held
    run: 20260829T120000Z-3f9c2a51b7e0
    release: 3f9c2a51b7e0
    verb: deploy
"""

RETURN = r"""
held:
  description: Whether the lock is held now.
  returned: always
  type: bool
text:
  description: One sentence about the holder before this task.
  returned: always
  type: str
ours:
  description: Whether C(run) held the lock before this task, in this start of ansible-playbook.
  returned: always
  type: bool
holder:
  description: The holder's note before this task.
  returned: always
  type: dict
"""

from ansible.module_utils.sparkpair.modules import spark_lock

if __name__ == "__main__":
    spark_lock()
