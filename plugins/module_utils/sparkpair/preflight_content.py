"""Preflight checks of content: disk, the image and what is in it, and the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import history, images
from .memory import gib
from .preflight_host import NOT_ASKED, Context, Finding, Skipped, container_name, ours
from .weights import HF_TARGET, repository_folder
from .weights_cache import credited_bytes

SELF_CHECK = "/opt/glm53/test_exl3_overlay.py"
"""Where the recipe's image keeps the self-check of its EXL3 engine; EXL3_SELFCHECK_GPU=1 has it use the GPU."""
LAST_LINES = 5
ARCHIVE = "the image's archive while it is sent to a rank that lacks it"
"""What the head may need room for; whether it does is seen when the ranks are compared."""
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
    archive: int = 0
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
    archive: tuple[str, int] | None = None
    info, why = ctx.docker
    containerd = "io.containerd.snapshotter" in str(info.get("DriverStatus") or "")
    store = "/var/lib/containerd" if containerd else str(info.get("DockerRootDir") or "/var/lib/docker")
    # Docker's older store keeps the whole archive while it saves or loads one.
    streams = not containerd and ctx.setting("image_transfer") == "stream"
    held = ctx.image_data or ctx.source_data
    if not why and not held:
        needs.append((store, "the image", ctx.thresholds.image_bytes))
        if streams:
            needs.append((store, "its archive while it is sent", ctx.thresholds.image_bytes))
    elif not why and streams and ctx.rank["role"] == "head" and len(ctx.plan["ranks"]) > 1 and not ctx.options.staged:
        archive = store, int(held.get("Size") or 0) or ctx.thresholds.image_bytes
    for model in models(ctx):
        if model.repository:
            credit = credited_bytes(ctx.host.path(model.repository), ctx.host.path(model.snapshot))
            needs.append((model.repository, model.name, max(0, model.need - credit)))
    disks: dict[int, _Disk] = {}

    def on(path: str) -> _Disk:
        near = ctx.host.nearest(path)
        return disks.setdefault(ctx.host.device(near), _Disk(ctx.host.free_bytes(near), path))

    for path, use, size in needs:
        there = on(path)
        there.need += size
        if size:
            there.uses.append(f"{gib(size)} for {use}")
    if archive:
        on(archive[0]).archive = archive[1]
    ctx.facts["disk_free"] = {d.place: d.free for d in disks.values()}
    for each in disks.values():
        yield from _room(ctx, each)


def _room(ctx: Context, disk: _Disk) -> Iterator[Finding]:
    margin = ctx.thresholds.disk_margin_bytes
    if disk.free >= disk.need + disk.archive + margin:
        return
    short = disk.free < disk.need + margin
    # One host does not know whether another one lacks the image; the comparison of the ranks does.
    uses = disk.uses if short else [*disk.uses, f"{gib(disk.archive)} for {ARCHIVE}"]
    yield ctx.finding(
        "disk",
        "blocked" if disk.free < disk.need else "degraded",
        observed=f"{gib(disk.free)} free where {disk.place} is",
        wanted=f"{' + '.join(uses)}, and {gib(margin)} left",
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


def _may_ask(ctx: Context) -> None:
    """Raise Skipped when the image must not be asked, or is not there to be asked."""
    if not ctx.options.probe_image:
        raise Skipped(NOT_ASKED)
    if not ctx.image_data:
        raise Skipped("the image is not on this host")


def ray(ctx: Context) -> Iterator[Finding]:
    """Ray can be imported in the image; official vLLM images no longer ship it."""
    if ctx.plan["executor"] != "ray":
        raise Skipped("the plan does not use Ray")
    _may_ask(ctx)
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
    if ctx.rank["role"] != "head":
        raise Skipped("read on the head; ranks run the same image")
    _may_ask(ctx)
    given = ctx.options.engine_flags or [a for r in ctx.plan["ranks"] for a in r["arguments"] if a.startswith("--")]
    wanted = sorted({_flag(f) for f in given})
    known, why = _known_flags(ctx)
    if not known:
        yield ctx.finding(
            "engine_flags",
            "degraded",
            observed=f"the image does not print its flags ({why}), so those of the plan were not judged",
            wanted="a vllm serve --help=all or --help that lists them",
            remedy="read the image's flags yourself; a flag that it does not know ends the start, and the log names it",
        )
        return
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


def _known_flags(ctx: Context) -> tuple[set[str], str]:
    """Flags that the image's ``vllm serve`` prints, and why there are none ("" when there are)."""
    why = ""
    # Some builds import a library of the driver before they print anything, so they are asked again with a GPU.
    for options in ((), ("--gpus", "all")) if ctx.gpus else ((),):
        # Recent versions print only groups for a plain --help, older ones do not know --help=all.
        for wanted in ("--help=all", "--help"):
            done = images.inside(
                *(ctx.host.run, ctx.image, "vllm", "serve", wanted),
                timeout=ctx.thresholds.probe_seconds,
                options=options,
            )
            known = {_flag(f) for f in FLAG.findall(done.out)} if done.ok else set()
            if known:
                return known, ""
            why = done.why()
    return set(), why


def _flag(text: str) -> str:
    """Normal form of a flag: no value, no dotted part, dashes for underscores, as vLLM's own parser reads it."""
    return "--" + re.split(r"[=.]", text.removeprefix("--"), maxsplit=1)[0].replace("_", "-")


def self_check(ctx: Context) -> Iterator[Finding]:
    """The image's own self-check of its EXL3 engine passes, on the GPU where the plan has one.

    Under a serving engine it runs without the GPU: unified memory has no room for two, and the one that serves goes on.
    """
    _may_ask(ctx)
    there, why = images.has_file(ctx.host.run, ctx.image, SELF_CHECK, timeout=ctx.thresholds.probe_seconds)
    if why:
        yield ctx.finding(
            "self_check",
            "degraded",
            observed=f"the image's python3 does not answer ({why}), so its self-check was not run",
            wanted=f"an answer whether the image holds {SELF_CHECK}",
            remedy="use an image with python3 in its PATH, or run the self-check yourself",
        )
        return
    if not there:
        raise Skipped(f"the image has no {SELF_CHECK}")
    serving = sorted(container_name(c) for c in ctx.containers.values() if ours(c))
    on_gpu = ctx.gpus and not serving
    done = images.inside(
        *(ctx.host.run, ctx.image, "python3", SELF_CHECK),
        timeout=ctx.thresholds.self_check_seconds,
        options=("--gpus", "all", "--env", "EXL3_SELFCHECK_GPU=1") if on_gpu else (),
    )
    where = "on the GPU" if on_gpu else "without a GPU"
    if not done.ok:
        said = [line.strip() for line in f"{done.out}\n{done.err}".splitlines() if line.strip()]
        yield ctx.finding(
            "self_check",
            "blocked",
            observed=f"{SELF_CHECK} {where} ended with {done.rc}: {' | '.join(said[-LAST_LINES:]) or 'no output'}",
            wanted="a self-check of the engine in the image that passes",
            remedy="pull the image again or pin another one; if the check itself is wrong for this host, leave it out "
            "with spark_rollout_preflight_skip: [self_check]",
        )
    elif serving and ctx.gpus:
        yield ctx.finding(
            "self_check",
            "info",
            observed=f"{SELF_CHECK} passed without a GPU: {', '.join(serving)} serves and holds its memory",
            wanted="the self-check on the GPU",
            remedy="for that, run playbooks/stop.yml, then playbooks/preflight.yml -e spark_preflight_probe_image=true",
        )


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
