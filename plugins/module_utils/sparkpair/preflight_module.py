"""Body of the module ``spark_preflight``: argument spec, one call, plain result."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .preflight import check
from .preflight_fabric import discover
from .preflight_host import Host, Options, Thresholds


def spark_preflight() -> None:
    """Check this rank, propose its inventory variables, or both."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict"},
            "rank": {"type": "int"},
            "only": {"type": "list", "elements": "str", "default": []},
            "skip": {"type": "list", "elements": "str", "default": []},
            "wanted_architecture": {"type": "str", "default": "aarch64"},
            "root": {"type": "path", "default": "/opt/sparkpair"},
            "image": {"type": "str", "default": ""},
            "staged": {"type": "bool", "default": False},
            "probe_image": {"type": "bool", "default": False},
            "engine_flags": {"type": "list", "elements": "str", "default": []},
            "thresholds": {"type": "dict", "default": {}},
            "discover": {"type": "bool", "default": False},
        },
        required_together=[["plan", "rank"]],
        supports_check_mode=True,
    )
    params, host = module.params, Host()
    result: dict[str, Any] = {"changed": False}
    if params["plan"] is None and not params["discover"]:
        module.fail_json(msg="plan and rank, or discover, are needed")
    try:
        options = Options(
            wanted_architecture=params["wanted_architecture"],
            root=params["root"],
            image=params["image"],
            staged=params["staged"],
            probe_image=params["probe_image"],
            engine_flags=tuple(params["engine_flags"]),
            thresholds=Thresholds.read(params["thresholds"]),
        )
        if params["plan"] is not None:
            result |= check(host, params["plan"], params["rank"], options, only=params["only"], skip=params["skip"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    if params["discover"]:
        result["proposal"] = discover(host)
    module.exit_json(**result)
