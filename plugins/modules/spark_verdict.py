#!/usr/bin/python
"""Documentation of the action ``spark_verdict``."""

DOCUMENTATION = r"""
module: spark_verdict
short_description: Judge the whole pair from the states of its ranks
description:
  - Joins what M(spark_state) read on every host of the play, and says whether the pair serves exactly one release, and
    if not, why not. Runs on the controller and opens no connection. Use it with C(run_once).
options:
  states:
    description: Name of the variable in which every host registered the result of M(spark_state).
    type: str
    required: true
  plan:
    description: The wanted plan. The plan of the head's current release when not given.
    type: dict
  run:
    description: Id of the run, returned as it is. A templated one is resolved once here, for all ranks and tasks.
    type: str
  show:
    description: Print a short table.
    type: bool
    default: false
  keep_states:
    description: Return the joined states, by rank.
    type: bool
    default: false
  keep:
    description: How many accepted releases stay when the wanted one is accepted and older ones are pruned, beside it,
      the one before it and the last stock release.
    type: int
    default: 0
attributes:
  action:
    description: Runs as an action on the controller.
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
- name: Judge the pair
  spark_verdict:
    states: __spark_rollout_read
    plan: "{{ planned.plan }}"
  run_once: true
  register: verdict
"""

RETURN = r"""
serving:
  description: Whether the pair serves exactly the wanted release.
  returned: always
  type: bool
reasons:
  description: Why it does not, one sentence each.
  returned: always
  type: list
  elements: str
probe:
  description: What the API answered.
  returned: always
  type: dict
plan:
  description: The plan that was compared with.
  returned: always
  type: dict
accepted:
  description: Whether every rank has recorded the release as accepted. Needs states that were read with records.
  returned: always
  type: bool
accepted_by:
  description: The verb with which the release was last accepted, null when it was not.
  returned: always
  type: str
stopped:
  description: Whether nothing of ours is left on any rank and nobody holds a lock, as after a stop.
  returned: always
  type: bool
done:
  description: Whether the pair serves the release and has accepted it.
  returned: always
  type: bool
leftovers:
  description: Whether an interrupted run left something on a rank.
  returned: always
  type: bool
run:
  description: Id of the run, as given.
  returned: always
  type: str
advisory:
  description: What the operator should know before this plan starts.
  returned: always
  type: list
  elements: str
fallback:
  description: The plan of the release to return to when the wanted one fails (accepted and complete on every rank,
    the current one first), or null.
  returned: always
  type: dict
fallback_gates:
  description: C(skip), C(also), C(limits) and C(deadlines) with which RV(fallback) was accepted, or null.
  returned: always
  type: dict
plan_gates:
  description: The same of the plan's release.
  returned: always
  type: dict
no_way_back:
  description: Why a pair that runs an accepted release could not come back to it, and must not be stopped; else empty.
  returned: always
  type: str
standing:
  description: Whether the pair serves the plan's release, and a rank has accepted it before.
  returned: always
  type: bool
untried:
  description: Whether the plan has an image or an engine flag that RV(fallback) has not.
  returned: always
  type: bool
notes:
  description: What interrupted runs left, a rollout lock that another run holds, and in what the ranks' records differ.
    Needs states read with records.
  returned: always
  type: list
  elements: str
outlook:
  description: How long the pair will not serve, judged by earlier starts.
  returned: always
  type: str
keep:
  description: Releases that pruning must leave, by rank. Needs states that were read with records.
  returned: always
  type: dict
states:
  description: States by rank, when asked for.
  returned: always
  type: dict
"""
