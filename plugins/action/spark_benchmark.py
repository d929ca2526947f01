"""Action ``spark_benchmark``: measures one workload in one arm; the head sends the requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's own name for it
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import bench_runs
from sparkpair.bench_measure import READERS, WARMUP, Step, calls_left, left, shown, steps, too_wide
from sparkpair.bench_results import FILE, ArmResult, Attempt, Burst, Measured, Results, Run, load
from sparkpair.bench_summary import heading
from sparkpair.bench_workloads import Workload
from sparkpair.gatekit import PATIENCE, Situation
from sparkpair.inputs import plain

display = Display()


class ActionModule(ActionBase):
    """Send the calls of a workload one by one, so that each result is on the screen when it is known."""

    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write what was measured into results.json; fail when the head cannot send, not when a request fails."""
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "nothing is measured in check mode"}
        folder = bench_runs.path_of(Path(args["reports"]), args["run"])
        found = load(folder / FILE)
        since = bench_runs.stamp()
        arm, work = found.arm(args["arm"]), found.workload(args["workload"])
        situation = Situation(args["plan"], {})
        measured = Measured(left_out=too_wide(situation, work))
        further = sum(1 for other in found.arms if other.id != arm.id and found.missing(other))
        opened = args["opened"]
        before = int(opened["calls"]) - calls_left(situation, found)
        for number, step in enumerate(steps(situation, work, found.id, ignore_eos=found.ignore_eos)):
            if self._stopped():
                return result | self._failed(f"stopped on request before {work.title} of {heading(arm)} was measured")
            sent = self._execute_module(
                module_name="spark_traffic",
                module_args={
                    "base_url": args.get("base_url") or f"http://127.0.0.1:{situation.plan['port']}",
                    "api_key_file": args.get("api_key_file"),
                    "deadline": 2 * PATIENCE,
                    "groups": step.groups,
                },
                task_vars=task_vars,
            )
            if "responses" not in sent:
                why = sent.get("msg", "no reason")
                return result | self._failed(f"{heading(arm)}, {work.title}: the head could not send: {why}")
            seen = READERS[work.kind](situation, step, sent["responses"])
            rest = left(
                time.time() - float(opened["time"]),
                args.get("deploys") or [],
                calls=(before + number + 1, int(opened["calls"])),
                further=further,
            )
            self._show(found, arm, work, step, f"{shown(work, seen)}, {rest}")
            if step.number != WARMUP:
                self._keep(measured, seen)
        arm.measured[work.name] = measured
        arm.started, arm.finished = arm.started or since, bench_runs.stamp()
        found.save(folder)
        if self._stopped() and any(map(found.missing, found.arms)):
            # Said here, since the next arm would be deployed before anybody asks again.
            return result | self._failed(f"stopped on request after {work.title} of {heading(arm)}")
        return result | {"changed": False, "measured": measured.model_dump(mode="json")}

    @staticmethod
    def _stopped() -> bool:
        return (Path(C.DEFAULT_LOCAL_TMP) / bench_runs.STOP).exists()

    @staticmethod
    def _failed(message: str) -> dict[str, Any]:
        return {"failed": True, "msg": message, "sparkpair_report": {"messages": [message]}}

    @staticmethod
    def _keep(measured: Measured, seen: Run | Burst | Attempt) -> None:
        if isinstance(seen, Burst):
            measured.bursts.append(seen)
        elif isinstance(seen, Attempt):
            measured.attempts.append(seen)
        else:
            measured.runs.append(seen)

    @staticmethod
    def _show(found: Results, arm: ArmResult, work: Workload, step: Step, text: str) -> None:
        arms, works = [a.id for a in found.arms], [w.name for w in found.workloads]
        where = f"arm {heading(arm)} ({arms.index(arm.id) + 1}/{len(arms)}), "
        where += f"{work.title} ({works.index(work.name) + 1}/{len(works)}), {step.label}"
        display.display(f"  {where}: {text}")
