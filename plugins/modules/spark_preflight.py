#!/usr/bin/python
"""Module ``spark_preflight``."""

DOCUMENTATION = r"""
module: spark_preflight
short_description: Check one Spark against its rank of the plan, without changing it
description:
  - Runs all checks of a host in one call and collects every finding. M(spark_preflight_verdict) joins the ranks.
  - Reads /sys, /proc and Docker. Needs neither ibv_devinfo nor ethtool.
  - Checks are C(become), C(architecture), C(kernel), C(docker), C(compose), C(nvidia_runtime), C(gpu), C(foreign_gpu),
    C(fabric_interface), C(fabric_route), C(fabric_mtu), C(fabric_speed), C(rdma), C(gid), C(names), C(ports), C(disk),
    C(memory), C(swap), C(limits), C(caches), C(image), C(ray), C(engine_flags), C(self_check)
    and C(weights).
  - A check that depends on a blocked one is not judged, so that one fault gives one finding.
options:
  plan:
    description: The plan, as M(spark_plan) returns it. Required unless O(discover=true).
    type: dict
  rank:
    description: Number of this rank in the plan. Required together with O(plan).
    type: int
  only:
    description: Run these checks only.
    type: list
    elements: str
    default: []
  skip:
    description: Leave these checks out.
    type: list
    elements: str
    default: []
  wanted_architecture:
    description: Machine name that the kernel should report.
    type: str
    default: aarch64
  root:
    description: Directory of releases on the rank.
    type: path
    default: /opt/sparkpair
  image:
    description: Look at this image instead of the plan's, for instance a derived one.
    type: str
    default: ""
  staged:
    description: Image and weights were put in place, so that what is missing of them blocks. Otherwise it only informs.
    type: bool
    default: false
  probe_image:
    description:
      - Start containers of the image, without network and removed when they end, to ask for the version of Ray (every
        rank), for the flags of C(vllm serve) (head), and to run the image's self-check of its EXL3 engine (every rank).
      - The self-check gets the GPUs of the plan unless an engine of ours runs. C(vllm serve) gets them when it prints
        no flags without.
    type: bool
    default: false
  engine_flags:
    description: Flags that C(vllm serve) must know, instead of those in the plan.
    type: list
    elements: str
    default: []
  thresholds:
    description:
      - Numbers to judge by, on top of the defaults. Sizes in bytes, times in seconds.
      - C(gpu_name) (GB10), C(docker_min) (24.0), C(compose_min) (2.20), C(mtu_min) (9000), C(speed_min_mbps) (100000),
        C(image_bytes) (40 GiB), C(weights_bytes) (164 GiB), C(draft_bytes) (3 GiB), C(release_bytes) (100 MiB),
        C(disk_margin_bytes) (5 GiB), C(memory_bytes) (0, which means C(gpu_mem_util) of the total plus the margin),
        C(memory_margin_bytes) (1.5 GiB), C(swappiness_max) (10), C(nofile_min) (65536), C(name_lookup_seconds) (2),
        C(clock_warn_seconds) (2), C(clock_max_seconds) (60), C(probe_seconds) (300), C(self_check_seconds)
        (900), C(bad_kernels) (a list).
    type: dict
    default: {}
  discover:
    description: Also propose inventory variables from the interfaces that are up and have an ACTIVE RDMA device.
    type: bool
    default: false
attributes:
  action:
    description: Runs as an action that stamps the exchange and turns a failed login into a result.
    support: full
  check_mode:
    description: Gives the same result in check mode.
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
- name: Check every rank
  spark_preflight:
    plan: "{{ planned.plan }}"
    rank: "{{ spark_rank }}"
    thresholds:
      mtu_min: 1500
  become: true
  register: __preflight

- name: See what the hosts offer
  spark_preflight:
    discover: true
  register: __offers
"""

RETURN = r"""
reached:
  description: Whether the module ran on the host. Otherwise C(msg) says why it did not.
  returned: always
  type: bool
verdict:
  description: C(blocked), C(degraded) or C(ready).
  returned: with plan
  type: str
findings:
  description: C(check), C(level) (C(blocked), C(degraded) or C(info)), C(rank), C(observed), C(wanted), C(remedy).
  returned: with plan
  type: list
  elements: dict
checks:
  description: C(ok), a level, C(not judged), or C(skipped) and why, by check.
  returned: with plan
  type: dict
facts:
  description: What ranks are compared by, such as kernel, driver, docker, storage_driver, mtu, gid, image and ray.
  returned: with plan
  type: dict
time:
  description: C(wall), epoch seconds on the host when the call began, and C(elapsed) seconds.
  returned: with plan
  type: dict
clock:
  description: C(sent) and C(received), epoch seconds on the controller.
  returned: when the host was reached
  type: dict
proposal:
  description: C(hostname), C(candidates), and C(host_vars) made of them.
  returned: with discover
  type: dict
"""

from ansible.module_utils.sparkpair.preflight_module import spark_preflight

if __name__ == "__main__":
    spark_preflight()
