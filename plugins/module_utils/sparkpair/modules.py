"""Bodies of the modules that run on a Spark: argument specs, calls of the typed functions, plain results."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from . import engine, history, lock, probe, state, traffic
from .runner import run
from .store import File, Store, StoreError

ROOT: dict[str, Any] = {"type": "path", "default": "/opt/sparkpair"}


def spark_state() -> None:
    """Module ``spark_state``: read everything about this rank, and optionally send API requests to it."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "release": {"type": "str"},
            "ray": {"type": "bool", "default": False},
            "records": {"type": "bool", "default": False},
            "probe": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    found = state.read(
        root, run, release=module.params["release"], ray=module.params["ray"], records=module.params["records"]
    )
    if module.params["probe"] and found["plan"] and any(c["running"] for c in found["containers"]):
        wanted = probe.requests(found["plan"])
        found["responses"] = traffic.run_groups(**wanted, api_key_file=str(root / "current" / "secrets" / "api_key"))
    module.exit_json(changed=False, state=found)


def spark_release() -> None:
    """Module ``spark_release``: stage a release, point ``current`` at it, or remove releases."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "state": {"choices": ["staged", "current", "none", "pruned"], "default": "staged"},
            "release": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "default": []},
            "secrets": {"type": "dict", "no_log": True, "default": {}},
            "keep_secrets": {"type": "list", "elements": "str", "no_log": False, "default": []},
            "keep": {"type": "list", "elements": "str", "default": []},
        },
        required_if=[("state", "staged", ("release", "files")), ("state", "current", ("release",))],
        supports_check_mode=True,
    )
    store = Store(Path(module.params["root"]))
    try:
        body = {"staged": _stage, "current": _switch, "none": _switch, "pruned": _prune}[module.params["state"]]
        result = body(module, store)
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


def _switch(module: AnsibleModule, store: Store) -> dict[str, Any]:
    wanted = module.params["release"] if module.params["state"] == "current" else None
    before = store.current()
    if not module.check_mode:
        if wanted is not None:
            store.arm(wanted, module.params["secrets"], keep=module.params["keep_secrets"])
        if before != wanted:
            store.switch(wanted)
    return {"changed": before != wanted, "before": before, "current": wanted}


def _prune(module: AnsibleModule, store: Store) -> dict[str, Any]:
    keep = {*module.params["keep"], store.current()}
    removed = [release for release in store.ids() if release not in keep]
    if not module.check_mode:
        for release in removed:
            store.remove(release)
    return {"changed": bool(removed), "removed": removed}


def spark_engine() -> None:
    """Module ``spark_engine``: stop the engine of this rank, or watch one that starts."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["stopped", "watched"], "required": True},
            "grace": {"type": "int", "default": 60},
            "release": {"type": "str"},
            "health_url": {"type": "str"},
            "cursor": {"type": "str", "default": ""},
            "phase": {"type": "str", "default": ""},
            "hold": {"type": "float", "default": 10.0},
        },
        required_if=[("state", "watched", ("release",))],
        supports_check_mode=True,
    )
    params = module.params
    if params["state"] == "watched":
        seen = engine.watch(
            run,
            params["release"],
            health_url=params["health_url"],
            cursor=params["cursor"],
            phase=params["phase"],
            hold=params["hold"],
        )
        module.exit_json(changed=False, watch=seen.as_dict())
    try:
        stopped = engine.stop(run, params["grace"], dry=module.check_mode)
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
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, responses=[])
    try:
        responses = traffic.run_groups(**module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, responses=responses)


def spark_record() -> None:
    """Module ``spark_record``: append an entry to this rank's history."""
    module = AnsibleModule(
        argument_spec={"root": ROOT, "entry": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        added = history.append(Path(module.params["root"]), module.params["entry"])
    except OSError as error:
        module.fail_json(msg=f"the history cannot be written: {error}")
    module.exit_json(changed=added)


def spark_lock() -> None:
    """Module ``spark_lock``: take, keep with a reason, release or show this rank's rollout lock."""
    module = AnsibleModule(
        argument_spec={
            "root": ROOT,
            "state": {"choices": ["held", "kept", "released", "shown"], "required": True},
            "run": {"type": "str"},
            "reason": {"type": "str", "default": ""},
            "force": {"type": "bool", "default": False},
            "note": {"type": "dict", "default": {}},
        },
        required_if=[("state", "held", ("run",)), ("state", "kept", ("run", "reason"))],
        supports_check_mode=True,
    )
    params, root = module.params, Path(module.params["root"])
    found = lock.read(root)
    if module.check_mode or params["state"] == "shown":
        module.exit_json(changed=False, held=found.held, text=found.text(), holder=found.holder)
    if params["state"] == "released" and not params["run"] and not (params["force"] and params["reason"]):
        module.fail_json(msg="releasing a lock of another run needs force and a reason")
    try:
        if params["state"] == "held":
            changed = lock.take(root, {**params["note"], "run": params["run"], "time": time.time()})
        elif params["state"] == "kept":
            changed = lock.keep(root, params["run"], params["reason"])
        else:
            changed = lock.release(root, None if params["force"] else params["run"])
    except lock.LockError as error:
        module.fail_json(msg=str(error), sparkpair_report={"outcome": "refused", "messages": [str(error)]})
    module.exit_json(changed=changed, held=lock.read(root).held, text=found.text(), holder=found.holder)
