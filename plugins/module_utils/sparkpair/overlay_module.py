"""Body of the module ``spark_overlay``: argument spec, one call per purpose, plain result."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from . import overlay_store
from .overlay import ALREADY, APPLIED, ImageError, Look, Overlay, OverlayError, Result, resolve, sha256, survey
from .overlay_image import BinaryRunner, Image, held, prove_live, run_binary, unpack


def spark_overlay() -> None:
    """Put overlays on an image's files, survey an image, or prove overlays in the running engine."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str"},
            "source": {"type": "str", "default": ""},
            "package_root": {"type": "path"},
            "overlays": {"type": "list", "elements": "dict", "default": []},
            "destination": {"type": "path"},
            "docker_cli": {"type": "str", "default": "docker"},
            "python": {"type": "str", "default": "python3"},
            "survey": {"type": "bool", "default": False},
            "engine": {"type": "str"},
            "prove": {"type": "bool", "default": False},
            "container": {"type": "str", "default": "sparkpair-engine"},
            "pins": {"type": "list", "elements": "dict", "default": []},
        },
        mutually_exclusive=[["survey", "prove"]],
        required_if=[("survey", True, ("image", "package_root", "engine")), ("prove", True, ("package_root",))],
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["prove"]:
            result = prove(params, run_binary)
        elif params["survey"]:
            result = look(params, run_binary)
        else:
            if not params["destination"]:
                module.fail_json(msg="destination is needed")
            result = put(params, run_binary, check=module.check_mode, diff=module._diff)
    except OverlayError as error:
        module.fail_json(
            msg=str(error), sparkpair_report={"outcome": "refused", "messages": error.messages}, changed=False
        )
    except OSError as error:
        message = f"overlay files cannot be written below {params['destination']}: {error}"
        module.fail_json(msg=message, sparkpair_report={"messages": [message]}, changed=False)
    if not all(p["ok"] for p in result.get("proofs", [])) and params["prove"]:
        messages = [f"overlay {p['overlay']}: {p['problem']}" for p in result["proofs"] if not p["ok"]]
        module.fail_json(msg="\n".join(messages), sparkpair_report={"messages": messages}, **result)
    module.exit_json(**result)


def _image(params: Mapping[str, Any], run: BinaryRunner, name: str) -> Image:
    return Image(name, params["package_root"], docker=params["docker_cli"], python=params["python"], run=run)


def _held(params: Mapping[str, Any], run: BinaryRunner) -> tuple[str, str]:
    """The name under which the image is here ("" for none), and the words for that it is not.

    Before the first deploy an image that gets a name of ours lies here under its source's name only. The files that
    overlays edit are the same in both: what is added is Ray.
    """
    names = [params["image"], *([params["source"]] if params["source"] not in ("", params["image"]) else [])]
    try:
        name = held(run, params["docker_cli"], names)
    except ImageError as error:
        raise OverlayError([f"image {params['image']} cannot be read: {error}"]) from error
    more = f", nor is {names[1]}, which it comes from" if names[1:] else ""
    return name, f"image {names[0]} is not on this rank{more}"


def _overlays(params: Mapping[str, Any]) -> list[Overlay]:
    return [Overlay.from_data(e["manifest"], unpack(e), e.get("selfcheck", "")) for e in params["overlays"]]


def put(params: Mapping[str, Any], run: BinaryRunner, *, check: bool, diff: bool) -> dict[str, Any]:
    """Resolve all overlays and write the results below ``destination``. Raises OverlayError and OSError.

    Returns ``changed``, ``overlays`` (an entry for each target), ``mounts`` (those that the container needs), and
    ``unchecked``: what check mode could not look at, because the image is still to come ("" when it could).
    """
    destination = Path(params["destination"])
    overlays = _overlays(params)
    results: list[Result] = []
    if overlays:
        if not params["image"] or not params["package_root"]:
            raise OverlayError(["overlays need image and package_root"])
        name = params["image"]
        if check:
            name, absent = _held(params, run)
            if not name:
                told = f"overlays {', '.join(o.name for o in overlays)} were not checked: {absent}"
                return {"changed": True, "overlays": [], "mounts": [], "unchecked": told}
        image = _image(params, run, name)
        results = resolve(overlays, image.name, image.read, image.judge)
    files = {f"{r.overlay}/{r.path}": r.after for r in results if r.state == APPLIED}
    changed = not overlay_store.same(destination, files)
    entries = [_entry(r, params["package_root"], destination) for r in results]
    result: dict[str, Any] = {
        "changed": changed,
        "overlays": entries,
        "mounts": [e for e in entries if e["state"] == APPLIED],
        "unchecked": "",
    }
    if diff and changed:
        result["diff"] = [
            {
                "before_header": f"{params['image']}:{r.path}",
                "after_header": f"{destination}/{r.overlay}/{r.path}",
                "before": r.before.decode(errors="replace"),
                "after": r.after.decode(errors="replace"),
            }
            for r in results
            if r.state == APPLIED
        ]
    if changed and not check:
        overlay_store.place(destination, files)
    return result


def _entry(result: Result, package_root: str, destination: Path) -> dict[str, Any]:
    written = f"{destination.name}/{result.overlay}/{result.path}"
    return {
        "name": result.overlay,
        "path": result.path,
        "target": f"{package_root.rstrip('/')}/{result.path}",
        "source": written if result.state == APPLIED else "",
        "sha256_before": result.sha256_before,
        "sha256_after": result.source.sha256_after,
        "engine": list(result.source.engine),
        "pin": result.source.pin,
        "state": result.state,
    }


def look(params: Mapping[str, Any], run: BinaryRunner) -> dict[str, Any]:
    """Survey an image: what it has, which diffs apply, what the self-checks say, and what may be pinned."""
    name, absent = _held(params, run)
    if not name:
        raise OverlayError([f"{absent}, so nothing can be read; playbooks/weights.yml brings it, or docker pull"])
    image, overlays = _image(params, run, name), _overlays(params)
    looks = survey(overlays, image.name, params["engine"], image.read, image.judge)
    proofs = [p for o in overlays if (p := _try_selfcheck(image, o, [k for k in looks if k.overlay == o.name]))]
    proved = {p["overlay"] for p in proofs if p["ok"]}
    for seen in looks:
        if seen.proposal and seen.known == "unknown" and seen.overlay not in proved:
            seen.proposal["pin"] = "expected"
    return {"changed": False, "looks": [_plain(seen) for seen in looks], "proofs": proofs}


def _try_selfcheck(image: Image, overlay: Overlay, looks: Sequence[Look]) -> dict[str, Any] | None:
    if not overlay.selfcheck or any(seen.problem for seen in looks):
        return None
    files = {seen.path: seen.after for seen in looks if seen.after}
    pins = {seen.path: sha256(seen.after) if seen.after else seen.sha256 for seen in looks}
    expected = {"overlay": overlay.name, "files": pins}
    return {"overlay": overlay.name, **image.prove(overlay.selfcheck, expected, files)}


def _plain(seen: Look) -> dict[str, Any]:
    return {
        "overlay": seen.overlay,
        "paths": list(seen.paths),
        "path": seen.path,
        "sha256": seen.sha256,
        "known": seen.known,
        "problem": seen.problem,
        "tried": seen.tried,
        "proposal": seen.proposal,
        "diff": base64.b64encode(seen.diff).decode(),
    }


def prove(params: Mapping[str, Any], run: BinaryRunner) -> dict[str, Any]:
    """Run every overlay's self-check inside the running engine.

    ``pins`` are entries as ``put`` returned them: they tell which file must have which sha256.
    """
    root = params["package_root"].rstrip("/") + "/"
    proofs: list[dict[str, Any]] = []
    for entry in params["overlays"]:
        name = str(entry["name"])
        files = {
            str(p["target"]).removeprefix(root): str(p["sha256_after"])
            for p in params["pins"]
            if p["name"] == name and p.get("state", APPLIED) in (APPLIED, ALREADY)
        }
        if not files:
            proofs.append({"overlay": name, "ok": False, "proved": [], "problem": "no pinned file of it is planned"})
            continue
        answer = prove_live(
            run,
            entry["selfcheck"],
            {"overlay": name, "files": files},
            container=params["container"],
            docker=params["docker_cli"],
            python=params["python"],
        )
        proofs.append({"problem": "", **answer, "overlay": name})
    return {"changed": False, "proofs": proofs}
