#!/usr/bin/python
"""Module ``spark_image``; the action of the same name hands it the rank's part of the plan."""

DOCUMENTATION = r"""
module: spark_image
short_description: Have the engine image on a rank, known by its content
description:
  - Looks at the image, pulls it or builds it with a pinned Ray, or sends and receives it between ranks.
  - An image is told by its content (registry digest, else layer digests), never by its local id.
  - Uses the Docker CLI of the rank. A login goes into a configuration that is removed when the pull ends.
options:
  state:
    description:
      - V(seen) only looks.
      - V(prepared) has the image under its name, by pulling, building on the head, or naming what is there.
      - V(sent) serves it to other ranks from the head's fabric address, until each has it.
      - V(received) takes it from the head. Both run at the same time, in one task for all ranks.
    type: str
    choices: [seen, prepared, sent, received]
    required: true
  plan:
    description: The plan, as M(spark_plan) returns it.
    type: dict
    required: true
  rank:
    description: Number of this rank.
    type: int
    required: true
  source:
    description: Take the image from this reference instead of the plan's setting C(image).
    type: str
  reference:
    description: Give it this name instead of the plan's C(image).
    type: str
  architecture:
    description: Machine name of the ranks; an image for another one is refused. Empty accepts any.
    type: str
    default: ""
  timeout:
    description: Seconds that a pull or a build may take.
    type: float
    default: 7200
  port:
    description: Port of the head for V(sent) and V(received).
    type: int
    default: 29530
  ranks:
    description: How many ranks V(sent) serves.
    type: int
    default: 1
  wait:
    description: Seconds that V(sent) and V(received) wait for each other.
    type: float
    default: 60
  hold:
    description: Seconds after which the screen shows how far the work is. Shorter work takes one SSH execution.
    type: float
    default: 10
attributes:
  action:
    description:
      - The action part reads the registry password and makes the secret of a transfer on the controller.
      - It asks the module again until the work is done, which goes on without it should the controller go away.
    support: full
  check_mode:
    description: Says in RV(steps) what would be pulled, built, named or received; changes nothing.
    support: full
  diff_mode:
    description: There is no text to compare; RV(steps) says what changes.
    support: none
  idempotent:
    description: An image that is there by content is left alone.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: See what every rank holds
  spark_image:
    state: seen
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"
  become: true
  register: __seen

- name: Send it from the head to the only other rank
  spark_image:
    state: "{{ 'sent' if spark_rank == 0 else 'received' }}"
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"
  become: true
"""

RETURN = r"""
image:
  description:
    - C(here) and C(source), each null or C(reference), C(digests), C(references), C(layers), C(id), C(architecture) and
      C(inputs); and C(ready), whether C(here) is what the plan wants.
  returned: seen, prepared, received
  type: dict
steps:
  description: What was done, or would be.
  returned: prepared, and received in check mode
  type: list
  elements: str
moved:
  description: C(peer), C(bytes), C(seconds), C(layers), and C(left_out), layers that were there. A list with V(sent).
  returned: sent, received
  type: raw
"""

from ansible.module_utils.sparkpair.image_module import spark_image

if __name__ == "__main__":
    spark_image()
