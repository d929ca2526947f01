"""Preflight checks of content: disk, the image and what is in it, and the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import history, images
from .memory import gib
from .preflight_host import Context, Finding, Skipped
from .weights import HF_TARGET, repository_folder
from .weights_cache import stored_bytes

FLAG = re.compile(r"(?<![\w-])--[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Weights:
    """A model of the plan: its repository directory in the cache (or "" for a plain path) and its snapshot."""

    name: str
    repository: str
    snapshot: str
    need: int


@dataclass
class _Disk:
    free: int
    place: str
    need: int = 0
    uses: list[str] = field(default_factory=list)


def models(ctx: Context) -> list[Weights]:
    """Target and draft of the plan, with their places on this host."""
    found = []
    wanted = [("model", "model_revision", ctx.thresholds.weights_bytes)]
    if ctx.plan["spec_method"] == "dflash":
        wanted.append(("dflash_model", "dflash_revision", ctx.thresholds.draft_bytes))
    for setting, pin, need in wanted:
        name, revision = str(ctx.setting(setting) or ""), ctx.setting(pin)
        if name.startswith("/"):
            found.append(Weights(name, "", _on_host(ctx, name), 0))
        elif name and ctx.hf_home:
            folder = repository_folder(name, str(ctx.setting(setting.removesuffix("_model") + "_cache_name") or ""))
            repository = f"{ctx.hf_home}/hub/{folder}"
            found.append(Weights(name, repository, f"{repository}/snapshots/{revision}", need))
    return found


def _on_host(ctx: Context, inside: str) -> str:
    for mount in ctx.rank["mounts"]:
        target = str(mount["target"]).rstrip("/")
        if inside == target or inside.startswith(target + "/"):
            return str(mount["source"]) + inside[len(target) :]
    return ""


def disk(ctx: Context) -> Iterator[Finding]:
    """Room for image, weights and releases; what is already there is credited."""
    needs: list[tuple[str, str, int]] = [(ctx.options.root, "releases", ctx.thresholds.release_bytes)]
    info, why = ctx.docker
    if not why and not (ctx.image_data or ctx.source_data):
        containerd = "io.containerd.snapshotter" in str(info.get("DriverStatus") or "")
        store = "/var/lib/containerd" if containerd else str(info.get("DockerRootDir") or "/var/lib/docker")
        needs.append((store, "the image", ctx.thresholds.image_bytes))
        if not containerd and ctx.setting("image_transfer") == "stream":
            # Docker's older store keeps the whole archive while it saves or loads one.
            needs.append((store, "its archive while it is sent", ctx.thresholds.image_bytes))
    for model in models(ctx):
        if model.repository:
            lacking = max(0, model.need - stored_bytes(ctx.host.path(model.repository)))
            needs.append((model.repository, model.name, lacking))
    disks: dict[int, _Disk] = {}
    for path, use, size in needs:
        near = ctx.host.nearest(path)
        on = disks.setdefault(ctx.host.device(near), _Disk(ctx.host.free_bytes(near), path))
        on.need += size
        if size:
            on.uses.append(f"{gib(size)} for {use}")
    ctx.facts["disk_free"] = {d.place: d.free for d in disks.values()}
    for on in disks.values():
        if on.free < on.need + ctx.thresholds.disk_margin_bytes:
            yield ctx.finding(
                "disk",
                "blocked" if on.free < on.need else "degraded",
                observed=f"{gib(on.free)} free where {on.place} is",
                wanted=f"{' + '.join(on.uses)}, and {gib(ctx.thresholds.disk_margin_bytes)} left",
                remedy="remove what is not needed (docker image prune, old snapshots in the Hugging Face cache)",
            )


def image(ctx: Context) -> Iterator[Finding]:
    """The image is there, built for this machine. Its content, not its local id, is reported for parity."""
    data = ctx.image_data or ctx.source_data
    reference = ctx.image if ctx.image_data else ctx.source
    ctx.facts["image"] = images.content(data, reference) if data else None
    if not ctx.image_data:
        yield ctx.finding(
            "image",
            "blocked" if ctx.options.staged else "info",
            observed=f"{ctx.image} is not on this host"
            + (f", but {ctx.source}, which it comes from, is" if data else ""),
            wanted="the image on every rank",
            remedy="deploy.yml brings it, unless image_transfer is none: then docker pull or docker load it here",
        )
    if not data:
        return
    wanted = images.DOCKER_ARCHITECTURE.get(ctx.options.wanted_architecture, ctx.options.wanted_architecture)
    if data.get("Architecture") not in (wanted, "", None):
        yield ctx.finding(
            "image",
            "blocked",
            observed=f"{reference} is built for {data['Architecture']}",
            wanted=wanted,
            remedy=f"docker image rm {reference}, then pull it again for linux/{wanted}",
        )
    was = _accepted_image(ctx)
    if ctx.image_data and was and was != ctx.image_data.get("Id"):
        # Degraded only: Docker's two image stores give the same image different ids.
        yield ctx.finding(
            "image",
            "degraded",
            observed=f"{ctx.image} names {ctx.image_data.get('Id')}",
            wanted=f"{was}, which release {ctx.plan['release']} ran when it was accepted",
            remedy="pin the image by digest, so that a tag that moves cannot change what a release runs",
        )


def _accepted_image(ctx: Context) -> str:
    """Id of the image with which this host accepted the plan's release last, or ""."""
    entries = history.read(ctx.host.path(ctx.options.root)).entries
    taken = [e for e in entries if e["outcome"] == history.ACCEPTED and e["release"] == ctx.plan["release"]]
    return str(taken[-1].get("image_id") or "") if taken else ""


def ray(ctx: Context) -> Iterator[Finding]:
    """Ray can be imported in the image; official vLLM images no longer ship it."""
    if ctx.plan["executor"] != "ray":
        raise Skipped("the plan does not use Ray")
    if not ctx.options.probe_image:
        raise Skipped("starts a container of the image, and was not asked for")
    if not ctx.image_data:
        raise Skipped("the image is not on this host")
    seen, why = images.ray_in(ctx.host.run, ctx.image, timeout=ctx.thresholds.probe_seconds)
    ctx.facts["ray"] = seen
    if not seen:
        yield ctx.finding(
            "ray",
            "blocked",
            observed=f"the image's python3 does not answer: {why}" if why else "no Ray in the image",
            wanted="an image with Ray",
            remedy="use an image with Ray in it, or set executor: mp",
        )


def engine_flags(ctx: Context) -> Iterator[Finding]:
    """The image's ``vllm serve`` knows every flag of the plan; an unknown one would only end the start."""
    if not ctx.options.probe_image:
        raise Skipped("starts a container of the image, and was not asked for")
    if not ctx.image_data:
        raise Skipped("the image is not on this host")
    if ctx.rank["role"] != "head":
        raise Skipped("read on the head; ranks run the same image")
    given = ctx.options.engine_flags or [a for r in ctx.plan["ranks"] for a in r["arguments"] if a.startswith("--")]
    wanted = sorted({_flag(f) for f in given})
    # Recent versions print only groups for a plain --help, older ones do not know --help=all.
    ask, patience = (ctx.host.run, ctx.image, "vllm", "serve"), ctx.thresholds.probe_seconds
    ok, out, why = images.inside(*ask, "--help=all", timeout=patience)
    if not ok or not FLAG.search(out):
        ok, out, why = images.inside(*ask, "--help", timeout=patience)
    known = {_flag(f) for f in FLAG.findall(out)} if ok else set()
    if not known:
        raise Skipped(f"the image does not print its flags: {why}")
    # argparse's BooleanOptionalAction prints --x, --no-x; an image that prints --x only still takes --no-x.
    unknown = [f for f in wanted if f not in known and f.replace("--no-", "--", 1) not in known]
    if unknown:
        yield ctx.finding(
            "engine_flags",
            "blocked",
            observed=f"the image's vllm serve does not know {', '.join(unknown)}",
            wanted="flags that the image knows",
            remedy="take them out of extra_args, or use the image that the plan was made for",
        )


def _flag(text: str) -> str:
    """Normal form of a flag: no value, no dotted part, dashes for underscores, as vLLM's own parser reads it."""
    return "--" + re.split(r"[=.]", text.removeprefix("--"), maxsplit=1)[0].replace("_", "-")


def weights(ctx: Context) -> Iterator[Finding]:
    """The pinned snapshots are there with a readable config.json. Their bytes are not read."""
    if not ctx.hf_home:
        raise Skipped(f"the rank mounts nothing at {HF_TARGET}")
    for model in models(ctx):
        config = ctx.host.read(f"{model.snapshot}/config.json") if model.snapshot else None
        if config is not None and _is_object(config):
            continue
        there = bool(model.snapshot) and ctx.host.path(model.snapshot).is_dir()
        plain = not model.repository
        yield ctx.finding(
            "weights",
            "blocked" if ctx.options.staged or plain else "degraded" if there else "info",
            observed=(
                f"{model.snapshot} has no usable config.json" if there else f"{model.name} is not at {model.snapshot}"
            )
            if model.snapshot
            else f"{model.name} is a path in the container that no mount provides",
            wanted=f"the pinned snapshot of {model.name}",
            remedy="put the model at that path" if plain else "playbooks/weights.yml brings it",
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
