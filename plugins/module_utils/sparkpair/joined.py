"""Joins what every host of the play has registered. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail

from .inputs import left_out, plain


def states(task_vars: Mapping[str, Any], variable: str) -> tuple[dict[int, dict[str, Any] | None], dict[int, str]]:
    """Rank to state (None where the rank was not reached), and rank to inventory name.

    Args:
        task_vars: variables of the task.
        variable: name of the variable in which every host registered the result of ``spark_state``.

    Raises:
        AnsibleActionFail: --limit leaves a rank out.
    """
    missing = [str(problem) for problem in left_out(task_vars)]
    if missing:
        raise AnsibleActionFail(f"half a pair tells nothing of the pair: {'; '.join(missing)}")
    hostvars = task_vars["hostvars"]
    found: dict[int, dict[str, Any] | None] = {}
    names: dict[int, str] = {}
    for host in plain(task_vars["ansible_play_hosts_all"]):
        rank = int(plain(hostvars[host]["spark_rank"]))
        found[rank] = plain(hostvars[host].get(variable, {})).get("state")
        names[rank] = host
    return found, names


def addresses(task_vars: Mapping[str, Any], names: Mapping[int, str]) -> dict[int, str]:
    """Rank to the fabric address that the inventory gives it."""
    hostvars = task_vars["hostvars"]
    return {rank: str(plain(hostvars[name]["spark_fabric_address"])) for rank, name in names.items()}
