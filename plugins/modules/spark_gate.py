#!/usr/bin/python
"""Documentation of the action ``spark_gate``."""

DOCUMENTATION = r"""
module: spark_gate
short_description: Let a started pair pass the acceptance gates
description:
  - Runs the gates in order on the head (ranks, parity, ray, health, models, auth, completion, warmup, width, canary,
    stream, concurrent, thinking, json, tool, mixed, long, acceptance, kv_pool), prints a line for each, and stops at
    the first that fails.
  - Others run only when they are asked for by name. C(temperature), C(memory) and C(kernel) look at what the traffic
    did to the Sparks, and need states that were read after it. C(soak) watches the pair for a minute. C(quality) asks
    the model to count without a schema, which a random model cannot do.
options:
  plan:
    description: The plan of the release that was started. Required without C(choice_only).
    type: dict
  choice_only:
    description: Refuse names and limits that no gate has, return the rest as C(choice), and look at nothing.
    type: bool
    default: false
  accepted:
    description: With C(choice_only), and only where a failed rollout goes back, the choice with which the release was
      accepted (C(skip), C(also), C(limits), C(deadlines)). C(choice) is that one then, with the more patient deadline
      and the wider limit of then, of today and of the default, and without the gates that are skipped today.
    type: dict
  states:
    description: State of each rank as M(spark_verdict) joined them, by rank.
    type: dict
    default: {}
  before:
    description: States of a look before the traffic. With them C(ranks) fails when an engine was started again since.
    type: dict
    default: {}
  base_url:
    description: Where the head reaches its own API. Its port on the loopback address when not given.
    type: str
  api_key_file:
    description: File on the head with the API key.
    type: path
  only:
    description: Names of the gates to run. All when empty.
    type: list
    elements: str
    default: []
  skip:
    description: Names of gates to leave out. Each stays in the result with that reason.
    type: list
    elements: str
    default: []
  also:
    description: Names of extra gates to run beside the regular ones.
    type: list
    elements: str
    default: []
  history:
    description: Entries of the head's history, for gates that compare with an earlier acceptance.
    type: list
    elements: dict
    default: []
  limits:
    description: Limits that differ from their defaults; C(celsius) (90), C(headroom_gib) (2), C(pause_seconds) (600)
      and C(soak_seconds) (60).
    type: dict
    default: {}
  deadlines:
    description: Seconds by name of a gate, where its own deadline does not fit.
    type: dict
    default: {}
attributes:
  action:
    description: Runs as an action on the controller.
    support: full
  check_mode:
    description: Sends nothing and is skipped.
    support: full
  diff_mode:
    description: There is no configuration to show.
    support: none
  idempotent:
    description: Changes nothing on the ranks.
    support: full
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Pass every gate
  spark_gate:
    plan: "{{ planned.plan }}"
    states: "{{ joined.states }}"
"""

RETURN = r"""
choice:
  description: C(skip), C(also), C(limits) and C(deadlines) to go on with.
  returned: with C(choice_only)
  type: dict
gates:
  description:
    - C(name), C(ok), C(seen), C(wanted), C(seconds) and C(deadline) of each gate so far; C(skipped) says why one was
      left out.
  returned: unless the choice of gates is refused
  type: list
  elements: dict
settings:
  description: C(skip), C(also), C(limits) and C(deadlines), for the record of an acceptance.
  returned: when every gate was passed
  type: dict
draft_tokens_per_step:
  description: Draft tokens per step that the gate C(width) measured.
  returned: when that gate measured them
  type: float
accepted_per_step:
  description: Drafts accepted per step of sampled text, by the gate C(acceptance).
  returned: when that gate measured them
  type: float
first_draft_acceptance:
  description: Share of the steps that accepted the first draft, from 0 to 1, by the gate C(acceptance).
  returned: when that gate measured it
  type: float
first_token_seconds:
  description: Seconds to the first token of a stream, by the gate C(stream).
  returned: when that gate measured it
  type: float
mixed_overlap_seconds:
  description: Seconds in which an ordinary and a guided request were decoded together, by the gate C(mixed).
  returned: when that gate measured it
  type: float
long_prompt_seconds:
  description: Duration of the request with the long prompt, by the gate C(long).
  returned: when that gate measured it
  type: float
"""
