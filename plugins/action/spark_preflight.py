"""Action ``spark_preflight``: runs the module of that name, stamps the exchange, and turns a failed login into data."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from sparkpair.inputs import plain

TRACEBACK = "Traceback (most recent call last)"


class ActionModule(ActionBase):
    """Ask one host."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result with ``clock`` (``sent``, ``received``: epoch seconds of the controller).

        A host that cannot be asked gives ``reached: false`` and ``msg`` instead of a failure, so that
        ``spark_preflight_verdict`` reports it together with the findings about the others.
        """
        result = super().run(tmp, task_vars)
        sent = time.time()
        try:
            answer = self._execute_module(
                module_name="spark_preflight", module_args=plain(self._task.args), task_vars=task_vars
            )
        except AnsibleError as error:
            return result | {"changed": False, "reached": False, "msg": " ".join(str(error).split())}
        result |= answer | {"clock": {"sent": sent, "received": time.time()}}
        if result.get("failed") and (crash := _crash(answer)):
            # The host was reached and the fault is ours: an address or a key to correct would send people astray.
            message = f"MODULE FAILURE: spark_preflight crashed on this host: {crash}"
            return result | {"msg": message, "sparkpair_report": {"messages": [message]}}
        if result.get("failed") and "invocation" not in result:
            # No invocation means that the module never began: sudo or the interpreter refused, not the module.
            why = " ".join(str(result.get("msg", "the module did not run")).split())
            return {"changed": False, "reached": False, "msg": why}
        return result | {"reached": True}


def _crash(answer: dict[str, Any]) -> str:
    """What ended the module when it crashed; "" for any other failure, and for a host that did not let it run."""
    said = str(answer.get("module_stderr") or "")
    if TRACEBACK in said:
        return [line.strip() for line in said.splitlines() if line.strip()][-1]
    # Ansible's wrapper catches what a module does not, and hands it over as an object where a traceback is off.
    if "invocation" in answer or "exception" not in answer or "module_stderr" in answer:
        return ""
    event = getattr(answer["exception"], "event", None)
    return " ".join(str(getattr(event, "msg", None) or answer["exception"]).split())
