"""Bodies of the modules that run on a Spark: argument specs, calls of the typed functions, plain results."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from . import containers, diagnose, engine, history, images, lock, memory, probe, room, sensors, state, traffic
from .runner import run
from .store import File, Store, StoreError

ROOT: dict[str, Any] = {"type": "path", "default": "/opt/sparkpair"}
ASKING: dict[str, Any] = {name: {"type": "str", "default": ""} for name in ("run", "session")}
"""The run that must hold the lock of this rank, and the start of ansible-playbook in which it goes on."""


def _need_lock(module: AnsibleModule, instead: str) -> None:
    """Fail when a run is named that does not hold the lock: a controller may have slept since it took it."""
    asking = lock.Holder(module.params["run"], module.params["session"])
    if not asking.run or module.check_mode:
        return
    try:
        held = lock.read(Path(module.params["root"]))
    except lock.LockError:
        # A disk that does not tell is no sign of another run, and an engine can be stopped all the same.
        return
    if not asking.holds(held):
        module.fail_json(msg=f"the lock is not this run's any more, so {instead}: it is {held.text()}")


def spark_state() -> None:
    """Module ``spark_state``: read everything about this rank, and optionally send API requests to it."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "release": {"type": "str"},
            "ray": {"type": "bool", "default": False},
            "records": {"type": "bool", "default": False},
            "compose": {"type": "bool", "default": False},
            "host": {"type": "bool", "default": False},
            "probe": {"type": "bool", "default": False},
            "cool": {"type": "bool", "default": False},
            "cool_celsius": {"type": "float", "default": sensors.PAUSE_CELSIUS},
            "cool_seconds": {"type": "float", "default": sensors.PAUSE_SECONDS},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    wanted = {key: module.params[key] for key in ("release", "ray", "records", "compose", "host")}
    if module.params["cool"] and not module.check_mode:
        wanted["cool"] = (module.params["cool_celsius"], module.params["cool_seconds"])
    found = state.read(root, run, **wanted)
    if module.params["probe"] and found["plan"] and any(c["running"] for c in found["containers"]):
        asked = probe.requests(found["plan"])
        found["responses"] = traffic.run_groups(**asked, api_key_file=str(root / "current" / "secrets" / "api_key"))
    module.exit_json(changed=False, state=found)


def spark_release() -> None:
    """Module ``spark_release``: stage a release, point ``current`` at it, or remove releases."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "state": {
                "choices": ["staged", "prepared", "unprepared", "current", "none", "pruned"],
                "default": "staged",
            },
            "release": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "default": []},
            "secrets": {"type": "dict", "no_log": True, "default": {}},
            "keep_secrets": {"type": "list", "elements": "str", "no_log": False, "default": []},
            "keep": {"type": "list", "elements": "str", "default": []},
            "spend": {"type": "bool", "default": False},
            **ASKING,
        },
        required_if=[
            ("state", "staged", ("release", "files")),
            ("state", "prepared", ("release",)),
            ("state", "unprepared", ("release",)),
            ("state", "current", ("release",)),
        ],
        supports_check_mode=True,
    )
    store = Store(Path(module.params["root"]))
    _need_lock(module, "nothing was changed")
    try:
        bodies = {
            "staged": _stage,
            "prepared": _prepare,
            "unprepared": _unprepare,
            "current": _switch,
            "none": _switch,
            "pruned": _prune,
        }
        result = bodies[module.params["state"]](module, store)
    except StoreError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


def _files(module: AnsibleModule) -> list[File]:
    return [_file(f, check=module.check_mode) for f in module.params["files"]]


def _file(given: dict[str, Any], *, check: bool) -> File:
    mode = int(given["mode"], 8)
    if "from" not in given:
        return File(given["path"], base64.b64decode(given["content"]), mode)
    # An overlay result was verified and written on this rank by spark_overlay, which writes nothing in check mode.
    source = Path(given["from"])
    if check and not source.exists():
        return File(given["path"], b"", mode, pinned=given["sha256"])
    return File(given["path"], source.read_bytes(), mode)


def _stage(module: AnsibleModule, store: Store) -> dict[str, Any]:
    release = module.params["release"]
    try:
        files = _files(module)
    except OSError as error:
        raise StoreError(f"a file of release {release} is gone: {error}") from error
    same = store.matches(release, files)
    result: dict[str, Any] = {"changed": not same, "release": release, "damage": store.check(release).damage}
    if module._diff and not same:
        result["diff"] = [_diff(store, release, f) for f in files if not f.pinned]
    if not module.check_mode and not same:
        store.stage(release, files)
    return result


def _diff(store: Store, release: str, file: File) -> dict[str, str]:
    against = store.current() or release
    return {
        "before_header": f"{against}/{file.path}",
        "after_header": f"{release}/{file.path}",
        "before": store.read(against, file.path) or "",
        "after": file.content.decode(errors="replace"),
    }


def _prepare(module: AnsibleModule, store: Store) -> dict[str, Any]:
    release = module.params["release"]

    def lay_ready() -> None:
        store.prepare(release)
        store.arm(release, module.params["secrets"], keep=module.params["keep_secrets"])

    if not module.check_mode:
        try:
            lay_ready()
        except StoreError as error:
            if not (module.params["spend"] and room.full(error) and lock.spend(store.root)):
                raise
            lay_ready()
    return {"changed": False, "release": release, "before": store.current()}


def _unprepare(module: AnsibleModule, store: Store) -> dict[str, Any]:
    release = module.params["release"]
    taken = store.unprepare(release) if not module.check_mode else False
    return {"changed": taken, "release": release}


def _switch(module: AnsibleModule, store: Store) -> dict[str, Any]:
    wanted = module.params["release"] if module.params["state"] == "current" else None
    before = store.current()
    if not module.check_mode:
        store.switch(wanted)
    return {"changed": before != wanted, "before": before, "current": wanted}


def _prune(module: AnsibleModule, store: Store) -> dict[str, Any]:
    keep = {*module.params["keep"], store.current()}
    removed = [release for release in store.ids() if release not in keep]
    leftovers = store.leftovers()
    if not module.check_mode:
        for release in removed:
            store.remove(release)
        store.clear()
    return {"changed": bool(removed or leftovers), "removed": removed, "leftovers": leftovers}


def _settle(module: AnsibleModule) -> None:
    params = module.params
    total = memory.kib().get("MemTotal", 0) * 1024
    wanted = int(params["free_gib"] * memory.GIB) or memory.need(params["share"], total)
    settled = engine.settle(wanted, 0.0 if module.check_mode else params["timeout"])
    figures = {"free": settled.free, "wanted": settled.wanted, "seconds": settled.seconds}
    if not settled.ok and not module.check_mode:
        message = (
            f"the memory did not settle: {memory.gib(settled.free)} of {memory.gib(total)} are free after "
            f"{settled.seconds:.0f} s, wanted {memory.gib(wanted)} before the engine starts (settle_free_gib, "
            "settle_timeout)"
        )
        module.fail_json(msg=message, **figures)
    module.exit_json(changed=False, **figures)


def spark_engine() -> None:
    """Module ``spark_engine``: drain or stop the engine of this rank, wait for memory, or watch one that starts."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "state": {"choices": ["drained", "stopped", "settled", "watched"], "required": True},
            "grace": {"type": "int", "default": 60},
            **ASKING,
            "metrics_url": {"type": "str"},
            "free_gib": {"type": "float", "default": 0.0},
            "share": {"type": "float", "default": 0.0},
            "timeout": {"type": "float", "default": 0.0},
            "release": {"type": "str"},
            "health_url": {"type": "str"},
            "cursor": {"type": "str", "default": ""},
            "phase": {"type": "str", "default": ""},
            "hold": {"type": "float", "default": 10.0},
        },
        required_if=[("state", "watched", ("release",)), ("state", "drained", ("metrics_url",))],
        supports_check_mode=True,
    )
    params = module.params
    if params["state"] == "drained":
        drained = engine.drain(params["metrics_url"], 0.0 if module.check_mode else params["timeout"])
        module.exit_json(changed=False, requests=drained.requests, seconds=drained.seconds)
    if params["state"] == "settled":
        _settle(module)
    if params["state"] == "watched":
        seen = engine.watch(
            run,
            params["release"],
            health_url=params["health_url"],
            cursor=params["cursor"],
            phase=params["phase"],
            hold=params["hold"],
        )
        module.exit_json(changed=False, watch=diagnose.discreet(Path(params["root"]), seen.as_dict()))
    _need_lock(module, "nothing was stopped")
    try:
        stopped = engine.stop(run, params["grace"], dry=module.check_mode, patience=engine.STOP_PATIENCE)
    except engine.EngineError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=stopped.changed, removed=stopped.removed)


def spark_traffic() -> None:
    """Module ``spark_traffic``: send API requests from this rank."""
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "api_key_file": {"type": "path", "no_log": False},
            "deadline": {"type": "float", "default": 300.0},
            "groups": {"type": "list", "elements": "dict", "required": True},
            "pause_celsius": {"type": "float", "default": 0.0},
            "pause_seconds": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, responses=[])
    params = dict(module.params)
    limit, patience = params.pop("pause_celsius"), params.pop("pause_seconds")
    pauses: list[float] = []

    def cool() -> float:
        pauses.append(sensors.cool_down(run, limit, patience - sum(pauses)) if limit else 0.0)
        return pauses[-1]

    try:
        responses = traffic.run_groups(**params, before=cool)
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, responses=responses, paused=sum(pauses))


def _running_image() -> str:
    try:
        running = [c.image_id for c in containers.find(run) if c.running]
    except containers.DockerError:
        return ""
    return running[0] if running else ""


def spark_sensors() -> None:
    """Module ``spark_sensors``: read this rank's temperatures."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, **sensors.read(run))


def spark_record() -> None:
    """Module ``spark_record``: append an entry to this rank's history."""
    module = AnsibleModule(
        argument_spec={"root": ROOT, "entry": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        image = _running_image()
        found = {"image_id": image, "image_layers": (images.layers(run, image) if image else "") or ""}
        added = history.append(Path(module.params["root"]), module.params["entry"] | found)
    except OSError as error:
        module.fail_json(msg=f"the history cannot be written: {error}")
    module.exit_json(changed=added)


def _remember_interruption(root: Path, found: lock.Lock, params: dict[str, Any]) -> None:
    # A run that kept its lock with a reason has recorded its end; one that was killed has not.
    if found.holder.get("reason"):
        return
    noted = {key: str(found.holder.get(key) or "") for key in ("run", "release", "verb", "phase", "who", "controller")}
    history.append(
        root,
        {
            **noted,
            "schema": 1,
            "run": noted["run"] or f"without-a-note-{int(time.time())}",
            "outcome": history.INTERRUPTED,
            "reason": params["reason"],
            "released_by": f"{params['note'].get('who', '?')} on {params['note'].get('controller', '?')}",
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    )


def _hold(module: AnsibleModule, root: Path, found: lock.Lock, note: dict[str, Any]) -> bool:
    if module.check_mode:
        if found.held:
            lock.refuse(found, note)
        return False
    try:
        return lock.take(root, note)
    except lock.UnwritableError as error:
        if not module.params["optional"]:
            raise
        module.warn(f"{error}; nobody else can have it either, so this goes on")
        return False


def spark_lock() -> None:
    """Module ``spark_lock``: take, keep with a reason, release or show this rank's rollout lock."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "state": {"choices": ["held", "advanced", "kept", "released", "shown"], "required": True},
            "run": {"type": "str"},
            "reason": {"type": "str", "default": ""},
            "force": {"type": "bool", "default": False},
            "optional": {"type": "bool", "default": False},
            "phase": {"type": "str", "default": ""},
            "session": {"type": "str", "default": ""},
            "note": {"type": "dict", "default": {}},
        },
        required_if=[
            ("state", "held", ("run",)),
            ("state", "kept", ("run", "reason")),
            ("state", "advanced", ("run", "phase")),
        ],
        supports_check_mode=True,
    )
    params, root = module.params, Path(module.params["root"])
    holder = lock.Holder(params["run"] or "", params["session"])
    try:
        found = lock.read(root)
    except lock.LockError as error:
        module.fail_json(msg=str(error), sparkpair_report={"messages": [str(error)]})
    before = {"text": found.text(), "holder": found.holder, "ours": holder.holds(found)}
    note = {**params["note"], "run": holder.run, "session": holder.session, "time": time.time()}
    if params["state"] == "shown" or (module.check_mode and params["state"] != "held"):
        module.exit_json(changed=False, held=found.held, **before)
    if params["state"] == "released" and not params["run"] and not (params["force"] and params["reason"]):
        module.fail_json(msg="releasing a lock of another run needs force and a reason")
    try:
        if params["state"] == "held":
            changed = _hold(module, root, found, note)
        elif params["state"] == "advanced":
            unnoted = lock.advance(root, holder, params["phase"])
            if unnoted:
                module.warn(unnoted)
            changed = False
        elif params["state"] == "kept":
            changed = lock.keep(root, holder, params["reason"])
        else:
            changed = lock.release(root, None if params["force"] else holder)
            before["text"] = f"released; it was {found.text()}" if changed else before["text"]
            if changed and params["force"]:
                try:
                    _remember_interruption(root, found, params)
                except OSError as error:
                    module.warn(f"the lock is released, but the history cannot tell of it: {error}")
    except (lock.LockError, OSError) as error:
        # Only a lock that is not given keeps a run from the pair; any later failure may find a pair that was touched.
        refused = {"outcome": "refused"} if params["state"] == "held" else {}
        module.fail_json(msg=str(error), sparkpair_report={**refused, "messages": [str(error)]})
    module.exit_json(changed=changed, held=lock.read(root).held, **before)


def spark_diagnose() -> None:
    """Module ``spark_diagnose``: collect what explains a failure on this rank."""
    module = AnsibleModule(
        argument_spec={"root": ROOT, "name": {"type": "str", "required": True}}, supports_check_mode=True
    )
    texts = diagnose.collect(Path(module.params["root"]), run)
    files = {f"diagnostics/{module.params['name']}/{name}": text for name, text in texts.items()}
    module.exit_json(changed=False, collected=sorted(texts), sparkpair_report={"files": files})
