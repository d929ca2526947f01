"""Body of the module ``spark_memory``: argument spec, one call, plain result."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from . import containers
from .memory import drop_caches, kib
from .runner import run


def spark_memory() -> None:
    """Drop this rank's page cache, unless an engine of ours runs."""
    module = AnsibleModule(argument_spec={"timeout": {"type": "float", "default": 60.0}}, supports_check_mode=True)
    try:
        runs = any(c.status not in {"created", "exited", "dead"} for c in containers.find(run))
    except containers.DockerError as error:
        module.fail_json(msg=str(error))
    before = kib().get("MemFree", 0)
    if runs or module.check_mode:
        module.exit_json(changed=not runs, free_before=before, free_after=before, problems=[])
    problems = drop_caches(run, module.params["timeout"])
    for problem in problems:
        module.warn(f"the page cache was not dropped: {problem}")
    module.exit_json(changed=not problems, free_before=before, free_after=kib().get("MemFree", 0), problems=problems)
