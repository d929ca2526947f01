#!/usr/bin/python
"""Module ``spark_weights``."""

DOCUMENTATION = r"""
module: spark_weights
short_description: Check, bring and serve the weights of one rank, by content
description:
  - Compares the pinned snapshots of a Hugging Face cache with their manifests (name, size and sha256 of every file).
    Hashes are kept by inode, size, mtime and ctime in C(<root>/weights/hashes.json), so that unchanged files are not
    read again. Manifests are kept in C(<root>/weights).
  - Runs as an action that takes paths, models and addresses out of a plan, calls the module until its work is done, and
    shows bytes, rate and time left. One call is enough when nothing must be hashed or brought.
  - Once a snapshot is complete, C(refs/main) is made to name the pin. Other snapshots are left alone.
options:
  state:
    description:
      - C(checked) compares, and hashes what was never hashed. The head makes a manifest that it has not got,
        makes it anew when O(exclude) has changed, and with O(source=hub) asks the hub again as long as its manifest is
        not the hub's.
      - C(downloaded) has the head bring what it lacks, from O(source).
      - C(served) has the head serve its complete snapshots to the other ranks, on its fabric address, until C(ended).
      - C(copied) has another rank fetch from the head what it lacks.
    type: str
    choices: [checked, downloaded, served, copied, ended]
    required: true
  plan:
    description: The plan. The action reads it; the module gets the options below from the action.
    type: dict
    required: true
  rank:
    description: Number of this rank in the plan.
    type: int
    required: true
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  transfer:
    description: C(none) has every rank but the head only verify its cache, and write nothing into it.
    type: str
    choices: [fabric, none]
    default: fabric
  verify_only:
    description: Whether this rank writes nothing into its cache. Set by the action.
    type: bool
    default: false
  source:
    description:
      - C(hub), C(cache) (only the head's own files, nothing is downloaded), or an absolute path of a folder on the head
        that holds a Hugging Face cache with the pinned snapshots.
    type: str
    default: hub
  exclude:
    description: Patterns of files that are not wanted.
    type: list
    elements: str
    default: []
  manifests:
    description: Manifests to compare with instead of the stored ones, as the head's result has them.
    type: list
    elements: dict
    default: []
  hub_away:
    description: The hub did not answer an earlier call of this run, so it is not asked again. Set by the action.
    type: bool
    default: false
  awaited:
    description: Revision whose download an earlier call of this run began or found at work. Set by the action.
    type: str
    default: ""
  rehash:
    description: Forget the hashes of earlier runs.
    type: bool
    default: false
  threads:
    description: Files that are hashed at once.
    type: int
    default: 8
  streams:
    description: Files that are copied at once.
    type: int
    default: 4
  hold:
    description: Seconds after which a call of the module begins no further file.
    type: float
    default: 10.0
  environment:
    description: Variables of the download, such as C(HF_ENDPOINT) or C(HTTPS_PROXY). No place for secrets.
    type: dict
    default: {}
  token:
    description:
      - Token for the hub. Handed over in a file of mode 0600. Without it the library reads C(token) in the cache.
    type: str
  port:
    description: Port of the head's server; 0 takes a free one when serving.
    type: int
    default: 0
  hf_home:
    description: Hugging Face cache of this rank. Set by the action.
    type: path
  models:
    description: Models of the plan (setting, repository, revision, folder). Set by the action.
    type: list
    elements: dict
  head:
    description: Whether this rank is the head. Set by the action.
    type: bool
    default: false
  image:
    description: Image that holds the hub's library. Set by the action.
    type: str
    default: ""
  script:
    description: Program that uses it. Set by the action.
    type: str
    default: ""
  address:
    description: Fabric address of the head. Set by the action.
    type: str
  own:
    description: Fabric address of this rank. Set by the action.
    type: str
  peers:
    description: Fabric addresses that the head serves. Set by the action.
    type: list
    elements: str
    default: []
  secret:
    description: Token between the ranks for this run. Set by the action.
    type: str
  idle:
    description: Seconds without a request after which the head's server ends.
    type: float
    default: 120.0
  lifetime:
    description: Seconds after which the head's server ends in any case.
    type: float
    default: 21600.0
attributes:
  action:
    description: Runs as an action that composes the module's options and repeats its calls.
    support: full
  check_mode:
    description:
      - Nothing is written, hashed, downloaded or copied; the result says what would be. The head may start a container
        that asks the hub for the list of files and is removed at once.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Complete weights are compared by size and time, and nothing is changed.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Check the weights of every rank
  spark_weights:
    state: checked
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"
  become: true
  register: __weights
"""

RETURN = r"""
weights:
  description:
    - By model C(repository), C(revision), C(manifest) (a digest, equal on ranks that must hold equal files), C(source),
      C(files), C(bytes), C(lacking_files), C(lacking_bytes), C(lacking) (first files, and why), C(unlinked),
      C(unknown_bytes) (not hashed yet), C(complete).
  returned: state checked, downloaded or copied
  type: list
  elements: dict
manifests:
  description: The head's manifests.
  returned: on the head
  type: list
  elements: dict
obstacles:
  description: What stands in the way of bringing what is lacking (owner, room, links), and what to do.
  returned: state checked
  type: list
  elements: str
hashed_bytes:
  description: Bytes that were read to hash them.
  returned: state checked, downloaded or copied
  type: int
port:
  description: Port of the head's server.
  returned: state served
  type: int
"""

from ansible.module_utils.sparkpair.weights_module import spark_weights

if __name__ == "__main__":
    spark_weights()
