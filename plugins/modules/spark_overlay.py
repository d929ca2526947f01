#!/usr/bin/python
"""Module ``spark_overlay``; the action of the same name ships the overlay folders of the checkout to it."""

DOCUMENTATION = r"""
module: spark_overlay
short_description: Put checksum-pinned overlays on the files of an image
description:
  - Reads the pristine files out of the image (a container that is created and never started), compares their sha256
    with the manifest, applies the pinned diffs in memory, compares again, has the image's own Python parse the results,
    and writes them. All of it or nothing; the image stays as it is.
  - With O(survey=true) it only looks, at an image that need not be known, and proposes pins for a person to accept.
  - With O(prove=true) it runs the self-checks of the overlays inside the running engine.
options:
  overlays:
    description: Overlays by C(name), with the C(digest) of the plan. With O(survey=true) none means all of them.
    type: list
    elements: dict
    default: []
  image:
    description: Image on this rank. It is never pulled.
    type: str
  source:
    description:
      - Where O(image) comes from. Check mode and O(survey=true) look at it while O(image) is not on this rank.
    type: str
    default: ""
  package_root:
    description: Directory in the image that holds the Python packages.
    type: path
  destination:
    description:
      - Directory on the rank for the results, as C(<destination>/<overlay>/<path in the package>).
      - Anything else in it is removed. Without overlays the directory itself is removed.
    type: path
  docker_cli:
    description: Docker client.
    type: str
    default: docker
  python:
    description: Python inside the image.
    type: str
    default: python3
  survey:
    description: Look at the image and propose pins.
    type: bool
    default: false
  engine:
    description: Label under which O(survey=true) proposes pins, such as a release or a build hash.
    type: str
  accept:
    description: Write what O(survey=true) proposed into the overlay folders of the checkout.
    type: bool
    default: false
  prove:
    description: Run the self-checks in the running engine.
    type: bool
    default: false
  container:
    description: Container of the engine, for O(prove=true).
    type: str
    default: sparkpair-engine
  pins:
    description: Entries as RV(overlays), or of a release's overlays.json. They say what O(prove=true) must find.
    type: list
    elements: dict
    default: []
attributes:
  action:
    description: The action part runs on the controller.
    support: full
  check_mode:
    description:
      - Verifies everything and reports truthfully what would change; writes nothing.
      - RV(unchecked) says so when the image is still to come.
    support: full
  diff_mode:
    description: Shows each file as the image has it and as the container is to see it.
    support: full
  idempotent:
    description: Results that are there with the pinned content are left alone.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Write the overlays of the plan
  spark_overlay:
    image: "{{ plan.image }}"
    package_root: "{{ plan.package_root }}"
    overlays: "{{ plan.overlays }}"
    destination: /opt/sparkpair/staging/overlays
  register: overlaid

- name: Stage the release with them
  spark_release:
    plan: "{{ plan }}"
    rank: "{{ spark_rank }}"
    overlays: "{{ overlaid.mounts }}"
    overlay_root: /opt/sparkpair/staging

- name: Prove them in the running engine
  spark_overlay:
    prove: true
    package_root: "{{ plan.package_root }}"
    overlays: "{{ plan.overlays }}"
    pins: "{{ overlaid.overlays }}"
"""

RETURN = r"""
overlays:
  description:
    - One entry for each target, with C(name), C(path) in the package, C(target) in the container, C(source) below the
      parent of the destination, C(sha256_before), C(sha256_after), C(engine) (releases with this text), C(pin) (tested
      or expected) and C(state) (applied or already_present).
  returned: neither survey nor prove
  type: list
  elements: dict
mounts:
  description: The entries that need a mount.
  returned: neither survey nor prove
  type: list
  elements: dict
unchecked:
  description: What check mode could not verify, because the image is not on this rank yet; empty when it could.
  returned: neither survey nor prove
  type: str
looks:
  description: What each target looks like in the image, the diffs tried, and a proposed pin.
  returned: survey
  type: list
  elements: dict
proposal:
  description: The proposed pins as a diff of the checkout; empty when there is nothing to pin.
  returned: survey
  type: str
proofs:
  description: What each self-check proved.
  returned: survey or prove
  type: list
  elements: dict
"""

from ansible.module_utils.sparkpair.overlay_module import spark_overlay

if __name__ == "__main__":
    spark_overlay()
