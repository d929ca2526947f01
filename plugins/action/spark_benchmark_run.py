"""Action ``spark_benchmark_run``: opens a benchmark, notes what happened, and writes its report; controller only."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from sparkpair import bench_report, bench_runs
from sparkpair.bench_arms import Arm, RefusedError, parse, words
from sparkpair.bench_measure import calls_left
from sparkpair.bench_results import FILE, ArmResult, Before, Results, Temperature, load
from sparkpair.bench_summary import advice, lines
from sparkpair.bench_workloads import choose
from sparkpair.gatekit import Situation
from sparkpair.inputs import plain, read_inputs
from sparkpair.settings import Given, Refused

display = Display()
KEPT = ("release", "spec_method", "dflash_tokens", "verify_tokens", "structured_width", "expected_width", "image")


ARGUMENTS = {
    "state": {"choices": ["opened", "noted", "failed", "restored", "closed"], "required": True},
    "reports": {"type": "path", "required": True},
    "run": {"type": "str"},
    "arms": {"type": "raw"},
    "workloads": {"type": "raw"},
    "prompts": {"type": "raw"},
    "runs": {"type": "int", "default": 0},
    "tokens": {"type": "int", "default": 0},
    "ignore_eos": {"type": "bool", "default": False},
    "drift_bound": {"type": "float", "default": 0.02},
    "resume": {"type": "raw", "default": "auto"},
    "before": {"type": "dict"},
    "theirs": {"type": "bool", "default": False},
    "reasons": {"type": "list", "elements": "str", "default": []},
    "live": {"type": "dict"},
    "arm": {"type": "str"},
    "workload": {"type": "str"},
    "temperatures": {"type": "str"},
    "left": {"type": "str"},
}


def _refused(messages: list[str]) -> dict[str, Any]:
    said = [f"The benchmark is refused ({len(messages)}); the pair was not touched:", *(f"- {m}" for m in messages)]
    return {
        "failed": True,
        "msg": "\n".join(said),
        "sparkpair_report": {"outcome": "refused", "messages": messages},
    }


class ActionModule(ActionBase):
    """Keep results.json of a run and what is made of it."""

    _requires_connection = False
    _supports_check_mode = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the run and what is left of it, or the report."""
        result = super().run(tmp, task_vars)
        _, checked = self.validate_argument_spec(argument_spec=ARGUMENTS)
        args, variables = plain(checked), task_vars or {}
        if args["state"] == "opened":
            try:
                return result | self._open(args, variables)
            except RefusedError as error:
                return result | _refused([str(error)])
            except Refused as refused:
                return result | _refused([str(problem) for problem in refused.problems])
        if self._task.check_mode:
            return result | {"changed": False, "skipped": True, "msg": "nothing is written in check mode"}
        folder = bench_runs.path_of(Path(args["reports"]), args["run"])
        found = load(folder / FILE)
        if args["state"] == "noted":
            found.arm(args["arm"]).measured[args["workload"]].temperatures = self._temperatures(args, variables)
        if args["state"] == "failed":
            found.messages += self._failures(variables)
        if args["state"] == "restored":
            found.restored, found.left = True, args.get("left") or None
        if args["state"] == "closed":
            return result | self._close(found, folder)
        found.save(folder)
        return result | {"changed": False}

    def _open(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        arms, before = parse(args.get("arms")), Before(**args["before"])
        workloads = choose(
            words(args["workloads"], "workloads") if args.get("workloads") else (),
            words(args["prompts"], "prompts") if args.get("prompts") else (),
            runs=args["runs"] or None,
            tokens=args["tokens"] or None,
        )
        plans = {arm.id: self._plan(arm, args, variables) for arm in arms}
        first, reports = plans[arms[0].id], Path(args["reports"])
        fresh = Results(
            id=bench_runs.free_id(reports, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")),
            started=bench_runs.stamp(),
            procedure_only=first["container"]["gpus"] in {None, "none"},
            endpoint=first["endpoint"],
            model=first["served_model_name"],
            image=first["image"],
            max_num_seqs=first["max_num_seqs"],
            ranks=[r["host"] for r in first["ranks"]],
            ignore_eos=args["ignore_eos"],
            drift_bound=args["drift_bound"],
            workloads=workloads,
            arms=[
                ArmResult(id=a.id, spec=a.spec, control=a.control, plan={k: plans[a.id][k] for k in KEPT}) for a in arms
            ],
            before=before,
        )
        opened = bench_runs.open_run(reports, fresh, str(args["resume"]).lower(), theirs=args["theirs"])
        for path in bench_runs.damaged(reports):
            display.warning(f"{path} cannot be read and is passed over; newer runs are whole")
        if opened.deploys and opened.before.serving and opened.before.release is None:
            raise RefusedError(
                "the release that serves was not accepted and complete on every rank, so it could not be put back; "
                "deploy or roll back first"
            )
        if not self._task.check_mode:
            if opened.id != fresh.id:
                opened.resumed.append(fresh.started)
            bench_runs.begin(reports, opened)
        calls = calls_left(Situation(first, {}), opened)
        begun = "goes on" if opened.id != fresh.id else "begins"
        display.display(f"  run {opened.id} {begun}: {len(arms)} arms, {len(workloads)} workloads, {calls} calls left")
        return {
            "changed": False,
            "run": opened.id,
            "deploys": opened.deploys,
            "before": opened.before.model_dump(),
            "restore": opened.deploys and opened.before.serving,
            "arms": [
                {
                    "id": a.id,
                    "spec": a.spec,
                    "plan": plans[a.id],
                    "workloads": opened.missing(a),
                }
                for a in opened.arms
            ],
            "opened": {"time": time.time(), "calls": calls},
        }

    def _plan(self, arm: Arm, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        if arm.settings is None:
            if not args["before"]["serving"]:
                raise RefusedError(f"arms = 'current': the pair does not serve: {'; '.join(args['reasons'])}")
            return dict(args["live"])
        over = {name: Given(value, f"arm {arm.spec}") for name, value in arm.settings.items()}
        return read_inputs(variables, self._templar, self._loader, over=over).plan().to_json()

    def _temperatures(self, args: dict[str, Any], variables: dict[str, Any]) -> list[Temperature]:
        made = []
        for host in plain(variables["ansible_play_hosts_all"]):
            read = plain(variables["hostvars"][host].get(args["temperatures"], {}))
            hottest = read.get("hottest") or {}
            missing = None if hottest else read.get("missing") or "the rank was not read"
            made.append(
                Temperature(host=host, sensor=hottest.get("sensor"), celsius=hottest.get("celsius"), missing=missing)
            )
        return made

    def _failures(self, variables: dict[str, Any]) -> list[str]:
        """Why every rank's last task failed, once each: the first line, as the report of the verb has it."""
        said = []
        for host in plain(variables["ansible_play_hosts_all"]):
            why = plain(variables["hostvars"][host].get("ansible_failed_result") or {}).get("msg")
            lines_of = str(why or "").strip().splitlines()
            if lines_of and lines_of[0] not in said:
                said.append(lines_of[0])
        return [f"{bench_runs.stamp()}: ended by a failure: {one}" for one in said]

    def _close(self, found: Results, folder: Path) -> dict[str, Any]:
        found.finished = bench_runs.stamp()
        open_arms = [a.id for a in found.arms if found.missing(a)]
        found.status = "unfinished" if open_arms or not found.restored else "complete"
        found.save(folder)
        page, text = bench_report.write(found, folder)
        sentence = advice(found, lines(found)).sentence
        if found.status == "unfinished":
            why = f"not measured: {', '.join(open_arms)}" if open_arms else "what served before is not put back"
            display.display(f"  run {found.id} is not finished ({why}); the same command continues it")
        display.display(f"  {sentence}")
        display.display(f"  report: {page}")
        made = {"run": found.id, "status": found.status, "results": str(folder / FILE), "html": str(page)}
        made |= {"markdown": str(text), "sentence": sentence}
        # As for every verb: a report on the controller is no change of the pair.
        return {"changed": False, **made, "sparkpair_report": {"benchmark": made, "messages": [sentence]}}
