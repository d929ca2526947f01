#!/usr/bin/python
"""Documentation of the action ``spark_plan``, which runs on the controller."""

DOCUMENTATION = r"""
module: spark_plan
short_description: Turn the settings of a pair into a plan
description:
  - Resolves every setting with its origin, strongest first C(-e), the caller's environment, the operator's C(.env)
    file, variables of the play, the inventory, the default.
  - Validates all of them and all ranks of the play, and reports every problem together.
  - Runs on the controller, opens no connection to any host, and changes nothing. Use it with C(run_once).
options:
  env_file:
    description:
      - Operator's C(.env) file. Without it, the variable C(spark_env_file) names the file.
      - Without either, C(.env) in the inventory's folder is read when it exists.
    type: path
  stock:
    description:
      - Plan the stock width. Width settings are not read, and malformed speculation settings fall back to their
        defaults, so that bad tuning never blocks a rollback.
    type: bool
    default: false
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
  connection:
    description: Opens no connection to the hosts.
    support: none
author:
  - sparkpair contributors
"""

EXAMPLES = r"""
- name: Plan the pair
  spark_plan:
  run_once: true
  register: planned

- name: Plan the stock pair, whatever the width settings say
  spark_plan:
    stock: true
  run_once: true
  register: planned
"""

RETURN = r"""
plan:
  description: The plan as docs/architecture.md describes it; holds no secret.
  returned: success
  type: dict
origins:
  description: Where each setting comes from, by setting name.
  returned: success
  type: dict
  sample: {"verify_tokens": "-e", "port": "default"}
notes:
  description: Settings that a stock plan leaves out, and why.
  returned: success
  type: list
  elements: str
errors:
  description: One line for each refused input, with setting, value, origin and what is allowed.
  returned: failure
  type: list
  elements: str
sparkpair_report:
  description: The part that belongs in the run's report.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Fail: the work is done by the action of the same name."""
    module = AnsibleModule(
        argument_spec={"env_file": {"type": "path"}, "stock": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    module.fail_json(msg="spark_plan runs on the controller as an action plugin; action_plugins does not find it")


if __name__ == "__main__":
    main()
