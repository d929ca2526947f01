"""Callback ``sparkpair_report``: writes ``reports/<verb>/<UTC time>/result.json`` at the end of every verb's run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible.utils.vars import load_extra_vars
from sparkpair.inputs import leaves_out, passed_on, plain
from sparkpair.report import KEY, Report
from sparkpair.screen import Unbroken

DOCUMENTATION = r"""
name: sparkpair_report
type: aggregate
short_description: Write a machine-readable result for each verb
description:
  - Merges the key C(sparkpair_report) of task results, times the roles, and writes C(result.json) when the run ends,
    however it ends. Playbooks outside the folder C(playbooks) of this checkout get no report.
requirements:
  - enable in configuration
options:
  reports:
    description: Folder of the reports. C(reports) in the checkout when not set.
    type: path
    env:
      - name: SPARKPAIR_REPORTS
    ini:
      - section: sparkpair
        key: reports
"""

NOTHING = (
    "nothing was done: no task was run on any host of the group sparks; look at -i (without it, the inventory is "
    "inventories/mine)"
)
CUT_OFF = (
    "not restored: no rank can be reached any more, so nothing could be stopped or put back; each rank stays as it is, "
    "and its lock names the phase. Once they are reached again, look with playbooks/status.yml, release the lock, and "
    "deploy or roll back"
)
BROKEN_OFF = (
    "the run broke off while it held the lock, which names the phase: look with playbooks/status.yml, release the "
    "lock, and deploy or roll back"
)
CHECKOUT = Path(__file__).resolve().parents[2]


class CallbackModule(CallbackBase):
    """Collect fragments while the play runs."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "sparkpair_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start without a report; only a verb's playbook gets one."""
        super().__init__(*args, **kwargs)
        self._report: Report | None = None
        self._phase: tuple[str, float] | None = None
        self._locked = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a report when the playbook is one of the verbs."""
        path = Path(playbook._file_name).resolve()
        if path.parent == CHECKOUT / "playbooks":
            sys.stdout, sys.stderr = Unbroken(sys.stdout), Unbroken(sys.stderr)  # type: ignore[assignment]
            self._report = Report(verb=path.stem, check_mode=bool(context.CLIARGS.get("check")))
            for option in leaves_out():
                self._refuse(self._report, f"nothing was done: {option} leaves tasks out, and a verb runs as a whole")
            if internal := passed_on(str(name) for name in load_extra_vars(playbook._loader)):
                self._refuse(
                    self._report,
                    f"nothing was done: {', '.join(internal)} (from -e) would be the same in every role of the verb, "
                    "which passes it on itself; what may be set is in docs/settings.md",
                )

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Charge the time since the last task to the last task's role."""
        self._close_phase()
        role = task._role.get_name() if task._role else ""
        self._phase = (role.removeprefix("spark_") or "play", time.monotonic())

    def _close_phase(self) -> None:
        if self._report and self._phase:
            name, since = self._phase
            self._report.phases[name] = self._report.phases.get(name, 0.0) + time.monotonic() - since
        self._phase = None

    def _take(self, result: Any, *, failed: bool = False) -> None:
        if self._report is None:
            return
        data = result._result if isinstance(result._result, dict) else {}
        self._report.changed |= bool(data.get("changed"))
        if isinstance(data.get(KEY), dict):
            self._report.merge(plain(data[KEY]))
        elif failed:
            lines = str(data.get("msg", "failed")).splitlines() or ["failed"]
            self._report.merge({"messages": [f"{result._host.get_name()}: {lines[0]}"]})

    def v2_runner_on_ok(self, result: Any) -> None:
        """Take the fragment of a result, and note whether the run holds the lock."""
        self._take(result)
        if result._task.action == "spark_lock":
            state = result._task_fields["args"].get("state")
            self._locked = state in {"held", "advanced"} or (self._locked and state != "released")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Take the fragment of a failure, or its message."""
        self._take(result, failed=not ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Take the message of an unreachable host."""
        self._take(result, failed=True)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the report and say where it is."""
        self._close_phase()
        if self._report is None:
            return
        if not stats.processed:
            # Ansible calls it a success when the inventory has none of the play's hosts.
            self._refuse(self._report, NOTHING)
        hosts = [stats.summarize(host) for host in stats.processed]
        failed = any(host["failures"] or host["unreachable"] for host in hosts)
        if self._locked and hosts and all(host["unreachable"] for host in hosts):
            # Ansible has no host left to run the way back with.
            self._end("not_restored", CUT_OFF)
        elif self._locked and not failed and self._report.outcome is None:
            # Ansible ends a play that breaks in itself as one in which no host has failed.
            self._end("failed", BROKEN_OFF)
        self._write(self._report, failed=failed)

    def _end(self, outcome: str, message: str) -> None:
        if self._report:
            self._report.merge({"outcome": outcome, "messages": [message]})
        self._display.error(message)

    def _write(self, report: Report, *, failed: bool) -> None:
        root = self.get_option("reports")
        try:
            path = report.write(Path(root) if root else CHECKOUT / "reports", failed=failed)
        except OSError as error:
            self._display.error(f"no report: {error}; the screen and the exit code tell how the run ended")
            return
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        self._display.display(f"report: {shown}")

    def _refuse(self, report: Report, message: str) -> None:
        report.merge({"outcome": "refused", "messages": [message]})
        self._display.error(message)
        self._write(report, failed=True)
        raise SystemExit(2)
