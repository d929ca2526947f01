"""Body of the module ``spark_image``: argument spec, one call per state, plain result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from . import image_build, image_job, image_transfer, images
from .image_stream import Route
from .images import ImageError, Login, Wanted
from .noting import Note, unnoted
from .runner import Runner, run


def spark_image() -> None:
    """Look at the engine image of this rank, prepare it here, or send or receive it."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["seen", "prepared", "sent", "received"], "required": True},
            "reference": {"type": "str", "required": True},
            "source": {"type": "str", "required": True},
            "inputs": {"type": "str", "default": ""},
            "ray": {"type": "str", "default": ""},
            "architecture": {"type": "str", "default": ""},
            "pull": {"type": "bool", "default": True},
            "user": {"type": "str", "default": ""},
            "password": {"type": "str", "default": "", "no_log": True},
            "files": {"type": "dict", "default": {}},
            "wheels": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 7200.0},
            "address": {"type": "str", "default": ""},
            "own": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 29530},
            "secret": {"type": "str", "default": "", "no_log": True},
            "ranks": {"type": "int", "default": 1},
            "wait": {"type": "float", "default": 60.0},
            "job": {"type": "str", "default": ""},
            "hold": {"type": "float", "default": 10.0},
        },
        required_if=[
            ("state", "sent", ("address", "secret")),
            ("state", "received", ("address", "own", "secret")),
        ],
        supports_check_mode=True,
    )
    params = module.params
    body = {"seen": _see, "prepared": prepare, "sent": _send, "received": _receive}[params["state"]]
    try:
        if params["state"] == "seen" or module.check_mode:
            result = body(params, run, unnoted, check=module.check_mode)
        else:
            result = _watched(params, lambda note: body(params, run, note, check=False))
    except ImageError as error:
        result = {"failed": True, "msg": str(error)}
    if result.get("failed"):
        module.fail_json(msg=result["msg"], sparkpair_report={"messages": result["msg"].splitlines()})
    module.exit_json(**result)


def _watched(params: Mapping[str, Any], work: Callable[[Note], dict[str, Any]]) -> dict[str, Any]:
    """The result of the job, or how far it is after ``hold`` seconds. Raises ImageError."""
    folder = Path(params["job"]) if params["job"] else image_job.begin(work)
    result, note = image_job.look(folder, params["hold"])
    return {"changed": False, "working": True, "job": str(folder), "note": note} if result is None else result


def _wanted(params: Mapping[str, Any]) -> Wanted:
    return Wanted(
        params["reference"], params["source"], params["inputs"], params["ray"], architecture=params["architecture"]
    )


def _route(params: Mapping[str, Any]) -> Route:
    return Route(params["address"], params["port"], params["own"], params["secret"], wait=params["wait"])


def _see(params: Mapping[str, Any], runner: Runner, note: Note, *, check: bool) -> dict[str, Any]:  # noqa: ARG001
    return {"changed": False, "image": images.see(runner, _wanted(params))}


def prepare(params: Mapping[str, Any], runner: Runner, note: Note, *, check: bool) -> dict[str, Any]:
    """Have the image under its reference on this rank: pull the source, build on it, or name it. Raises ImageError.

    Returns ``changed``, ``steps`` (what was done, or would be) and ``image`` (what is there then).
    """
    wanted = _wanted(params)
    found = images.see(runner, wanted)
    if found["ready"]:
        return {"changed": False, "steps": [], "image": found}
    steps: list[str] = []
    if found["source"] is None:
        if not params["pull"]:
            raise ImageError(f"{wanted.source} is not on this rank, and image_transfer none forbids to fetch it")
        steps.append(f"pull {wanted.source}")
        if check:
            return {"changed": True, "steps": steps, "image": found}
        login = Login(params["user"], params["password"]) if params["user"] else None
        images.pull(runner, wanted.source, login, params["timeout"], note=note)
        found = images.see(runner, wanted)
        if found["source"] is None:
            raise ImageError(f"docker pull {wanted.source} ended well, but the image is not there")
    images.fit(wanted, found["source"])
    if wanted.ray:
        have, why = images.ray_in(runner, wanted.source)
        if why:
            raise ImageError(f"the python3 of {wanted.source} does not answer: {why}")
        if have != wanted.ray:
            steps.append(f"build {wanted.reference} with Ray {wanted.ray} (the source has {have or 'none'})")
            if not check:
                image_build.build(runner, wanted, params["files"], params["wheels"], params["timeout"], note=note)
            return {"changed": True, "steps": steps, "image": images.see(runner, wanted)}
    if wanted.reference != wanted.source:
        steps.append(f"name {wanted.source} {wanted.reference}")
        if not check:
            images.tag(runner, wanted.source, wanted.reference)
    return {"changed": True, "steps": steps, "image": images.see(runner, wanted)}


def _send(params: Mapping[str, Any], runner: Runner, note: Note, *, check: bool) -> dict[str, Any]:
    if check:
        return {"changed": False, "moved": []}
    moved = image_transfer.send(runner, params["reference"], _route(params), params["ranks"], note)
    return {"changed": False, "moved": [m.as_dict() for m in moved]}


def _receive(params: Mapping[str, Any], runner: Runner, note: Note, *, check: bool) -> dict[str, Any]:
    if check:
        return {"changed": True, "steps": [f"receive {params['reference']} from the head"]}
    moved = image_transfer.receive(runner, params["reference"], _route(params), note)
    return {"changed": True, "moved": moved.as_dict(), "image": images.see(runner, _wanted(params))}
