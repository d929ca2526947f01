"""Body of the module ``spark_weights``: one rank's weights are checked, downloaded, served, copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .memory import gib
from .weights import Cache, Hashes, Manifest, Manifests, Model, Survey, WeightsError, survey
from .weights_cache import (
    alone,
    barred,
    describe,
    free_bytes,
    hash_all,
    keeping,
    nearest,
    odd_owner,
    repair_ref,
    seal,
    stored_bytes,
)
from .weights_copy import Bringing, Folder, Remote, Server, Source, clear, lacking_bytes, servable, serve_apart
from .weights_hub import Hub, NoImageError

SHOWN_FILES = 3
HARD = 3
"""A file that is on its way is cut off after this many times ``hold``."""


@dataclass
class State:
    """What is known of one model on this rank."""

    model: Model
    manifest: Manifest | None = None
    found: Survey = field(default_factory=Survey)
    lacking: int = 0

    @property
    def complete(self) -> bool:
        """Whether all files are there and right."""
        return self.manifest is not None and self.found.complete

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the controller."""
        files = [f"{e.path} {why}" for e, why in self.found.bring[:SHOWN_FILES]]
        return {
            "setting": self.model.setting,
            "repository": self.model.repository,
            "revision": self.model.revision,
            "manifest": self.manifest.digest if self.manifest else "",
            "source": self.manifest.source if self.manifest else "",
            "files": len(self.manifest.entries) if self.manifest else 0,
            "bytes": self.manifest.size if self.manifest else 0,
            "lacking_files": len(self.found.bring),
            "lacking_bytes": self.lacking,
            "lacking": files,
            "unlinked": len(self.found.link),
            "unknown_bytes": sum(self.found.unknown.values()),
            "complete": self.complete,
        }


class Rank:
    """The weights of this rank, for one call of the module."""

    def __init__(self, params: dict[str, Any], *, dry: bool) -> None:
        self.params, self.dry = params, dry
        self.root = Path(params["root"])
        self.cache = Cache.at(params["hf_home"])
        self.manifests = Manifests(self.root)
        self.hashes = Hashes(self.root, fresh=params["rehash"])
        self.given = {(m.repository, m.revision): m for m in map(Manifest.read, params["manifests"])}
        self.models = [Model.read(given) for given in params["models"]]
        self.changed, self.received = False, 0
        self.downloading = ""
        self.warnings: list[str] = []
        self.hub_failed = bool(params["hub_away"])

    @property
    def hub(self) -> Hub:
        """The hub, as the parameters tell to reach it."""
        p = self.params
        work, note = self.root / "weights", self.warnings.append
        return Hub(p["image"], p["script"], work, p["environment"], p["token"] or "", note=note)

    def examine(self) -> list[State]:
        """Compare every snapshot with its manifest, hash what is unknown for some seconds, and settle what is whole.

        A rank that only verifies settles nothing in its cache, which may be another rank's, or a share it only reads.
        """
        states = [self._look(model) for model in self.models]
        unknown = {real: size for s in states for real, size in s.found.unknown.items()}
        if unknown and not self.dry:
            hash_all(unknown, self.hashes, threads=self.params["threads"], seconds=self.params["hold"])
            self.hashes.save()
            states = [self._look(model) for model in self.models]
        for state in states:
            if state.complete:
                self._settle(state)
            elif state.manifest and not state.found.unknown:
                state.lacking = lacking_bytes(self.cache, state.model, state.found)
        return states

    def _look(self, model: Model) -> State:
        manifest = self.given.get((model.repository, model.revision)) or self.manifests.load(model)
        if self._outdated(manifest):
            manifest, unknown = self._make(model, manifest)
            if manifest is None:
                return State(model, None, Survey(unknown=unknown))
            if not self.dry:
                self.changed |= self.manifests.store(model, manifest)
        if manifest is None:
            return State(model)
        return State(model, manifest, survey(self.cache, model, manifest, self.hashes))

    def _outdated(self, stored: Manifest | None) -> bool:
        """Whether the head has to make a manifest.

        It has none, or one of other patterns, or only one of its own files while the hub can be asked.
        """
        p = self.params
        if not p["head"] or p["state"] not in ("checked", "downloaded"):
            return False
        if stored is None or not self._same_patterns(stored):
            return True
        return p["source"] == "hub" and stored.source != "hub" and not self.hub_failed

    def _same_patterns(self, stored: Manifest) -> bool:
        return set(stored.exclude) == set(self.params["exclude"])

    def _make(self, model: Model, stored: Manifest | None) -> tuple[Manifest | None, dict[str, int]]:
        if self.params["source"] == "hub" and not self.hub_failed:
            try:
                return self.hub.list(model, self.params["exclude"]), {}
            except WeightsError as error:
                if stored is None and not self.cache.snapshot(model).is_dir():
                    if self.dry and isinstance(error, NoImageError):
                        # A deploy brings the image before it asks.
                        self.warnings.append(f"{model.repository} was not checked: {error}")
                        return None, {}
                    raise
                self.hub_failed = True
                self.warnings.append(
                    f"{error}; the head's own files are taken as right, and the next run asks again "
                    "(with spark_weights_source cache none does)"
                )
                if stored is not None and self._same_patterns(stored):
                    return stored, {}
                try:
                    return self._described(model, stored)
                except WeightsError as lacking:
                    raise WeightsError(f"{error}; and {lacking}") from lacking
        return self._described(model, stored)

    def _described(self, model: Model, stored: Manifest | None) -> tuple[Manifest | None, dict[str, int]]:
        source = self.params["source"]
        cache = self.cache if source in ("hub", "cache") else Cache.anywhere(source)
        made, unknown = describe(cache, model, self.params["exclude"], self.hashes)
        return keeping(made, stored) if made and stored else made, unknown

    def _settle(self, state: State) -> None:
        assert state.manifest is not None  # noqa: S101 - complete says so
        ref_is_wrong = not (self.params["verify_only"] or self.cache.ref_is_right(state.model))
        if self.dry:
            self.changed |= ref_is_wrong
            return
        if self.params["head"] and self.hub.left(state.model):
            self.hub.stop(state.model)
        if not state.manifest.sealed:
            state.manifest = seal(self.cache, state.model, state.manifest, self.hashes)
            self.hashes.save()
        self.changed |= self.manifests.store(state.model, state.manifest)
        if ref_is_wrong:
            repair_ref(self.cache, state.model)
            self.changed = True

    def obstacles(self, states: list[State]) -> list[str]:
        """Say what stands in the way of bringing what is lacking: owners, links, room. [] where nothing is brought."""
        if self.params["verify_only"]:
            return []
        found: list[str] = []
        needs: dict[int, tuple[Path, int]] = {}
        for state in states:
            why = barred(self.cache, state.model)
            if why and not state.complete:
                found.append(why)
            elif why:
                self.warnings.append(why)
            place = nearest(self.cache.repository(state.model))
            device = place.stat().st_dev
            needs[device] = (place, needs.get(device, (place, 0))[1] + self._to_come(state))
        for place, need in needs.values():
            free = free_bytes(place)
            if need > free:
                found.append(
                    f"{place} has {gib(free)} free ({free} bytes), but {gib(need)} of weights are to come ({need})"
                )
        odd = odd_owner(self.cache)
        self.warnings += [odd] if odd else []
        return sorted(set(found))

    def _to_come(self, state: State) -> int:
        """Bytes for which there must be room; a download that goes on was checked when it began, and has taken some."""
        model, head = state.model, self.params["head"]
        if head and state.lacking and (model.revision == self.params["awaited"] or self.hub.works(model)):
            return 0
        return state.lacking

    def bring(self, states: list[State]) -> list[State]:
        """Bring for some seconds what is lacking, and compare again. Raises WeightsError."""
        hindered = self.obstacles(states)
        if hindered:
            raise WeightsError("; ".join(hindered))
        from_hub = self.params["state"] == "downloaded" and self.params["source"] in ("hub", "cache")
        for state in states:
            if state.complete or state.found.unknown or state.manifest is None or self.downloading:
                continue
            self.changed = True
            if from_hub:
                self._download(state)
                continue
            worker = Bringing(
                self.cache,
                state.model,
                self.hashes,
                self._source(state),
                self.params["hold"],
                HARD * self.params["hold"],
            )
            try:
                worker.run(state.found, self.params["streams"])
            finally:
                self.hashes.save()
                self.received += worker.received
        after = states if self.downloading else self.examine()
        for state in after:
            if state.complete:
                clear(self.cache, state.model)
        return after

    def _source(self, state: State) -> Source:
        if self.params["state"] == "copied":
            return _remote(self.params)
        return Folder(Cache.anywhere(self.params["source"]).snapshot(state.model))

    def _download(self, state: State) -> None:
        if self.params["source"] == "cache":
            files = ", ".join(f"{e.path} {why}" for e, why in state.found.bring[:SHOWN_FILES])
            raise WeightsError(f"{self.cache.snapshot(state.model)}: {files}; nothing is downloaded with source cache")
        model = state.model
        awaited = model.revision == self.params["awaited"]
        ended = self.hub.download(
            self.cache,
            model,
            self.params["exclude"],
            self.params["hold"],
            awaited=awaited,
            ready=lambda: self._unlink_wrong(state),
        )
        self.downloading = "" if ended else model.revision

    def _unlink_wrong(self, state: State) -> None:
        """Make way for what is to be downloaded: the hub's library takes a file that is there for right.

        Only before a download begins, and by a look of that moment: a running one brings files meanwhile.
        """
        assert state.manifest is not None  # noqa: S101 - else nothing is known to be wrong
        found = survey(self.cache, state.model, state.manifest, self.hashes)
        for entry in found.link:
            # Its content is there; the library makes the link where there is none.
            (self.cache.snapshot(state.model) / entry.path).unlink(missing_ok=True)
        for entry, _ in found.bring:
            path = self.cache.snapshot(state.model) / entry.path
            real = path.resolve()
            if real.is_relative_to(self.cache.repository(state.model).resolve()):
                real.unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def serve(self, states: list[State]) -> int:
        """Serve the complete snapshots from a process of its own; returns its port. Raises WeightsError, OSError."""
        files: dict[str, Path] = {}
        for state in states:
            if not state.complete or state.manifest is None:
                raise WeightsError(
                    f"{state.model.repository} is not complete on the head, so it cannot be copied from it"
                )
            files |= servable(self.cache, state.model, state.manifest)
        p = self.params
        try:
            server = Server(
                (p["address"], p["port"]),
                files,
                token=p["secret"],
                peers=p["peers"],
                idle=p["idle"],
                lifetime=p["lifetime"],
            )
        except OSError as error:
            raise WeightsError(f"cannot listen on {p['address']} port {p['port']}: {error.strerror}") from error
        port = int(server.server_address[1])
        serve_apart(server)
        return port


def spark_weights() -> None:
    """Check this rank's weights, or bring, serve or copy them."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["checked", "downloaded", "served", "copied", "ended"], "required": True},
            "root": {"type": "path", "default": "/opt/sparkpair"},
            "hf_home": {"type": "path", "required": True},
            "models": {"type": "list", "elements": "dict", "required": True},
            "head": {"type": "bool", "default": False},
            "manifests": {"type": "list", "elements": "dict", "default": []},
            "verify_only": {"type": "bool", "default": False},
            "source": {"type": "str", "default": "hub"},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "hub_away": {"type": "bool", "default": False},
            "awaited": {"type": "str", "default": ""},
            "rehash": {"type": "bool", "default": False},
            "threads": {"type": "int", "default": 8},
            "streams": {"type": "int", "default": 4},
            "hold": {"type": "float", "default": 10.0},
            "image": {"type": "str", "default": ""},
            "script": {"type": "str", "default": ""},
            "environment": {"type": "dict", "default": {}},
            "token": {"type": "str", "no_log": True},
            "address": {"type": "str"},
            "own": {"type": "str"},
            "port": {"type": "int", "default": 0},
            "peers": {"type": "list", "elements": "str", "default": []},
            "secret": {"type": "str", "no_log": True},
            "idle": {"type": "float", "default": 120.0},
            "lifetime": {"type": "float", "default": 21600.0},
        },
        required_if=[
            ("state", "served", ("address", "secret")),
            ("state", "copied", ("address", "own", "secret")),
            ("state", "ended", ("address", "own", "secret")),
        ],
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module.params, dry=module.check_mode))
    except WeightsError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'weights'}: {error.strerror or error}")


def _remote(params: dict[str, Any]) -> Remote:
    return Remote(params["address"], params["port"], params["secret"], params["own"])


def run(params: dict[str, Any], *, dry: bool) -> dict[str, Any]:
    """Do what one call of the module asks for, and give its result. Raises WeightsError, OSError."""
    state = params["state"]
    if state == "ended":
        return {"changed": not dry and _remote(params).end()}
    rank = Rank(params, dry=dry)
    states = rank.examine()
    if state == "served":
        return {"changed": not dry, "port": 0 if dry else rank.serve(states)}
    if state in ("downloaded", "copied") and not dry:
        with alone(rank.root):
            states = rank.bring(states)
        hindered = []
    else:
        hindered = rank.obstacles(states)
    result: dict[str, Any] = {
        "changed": rank.changed,
        "weights": [s.as_dict() for s in states],
        "obstacles": hindered,
        "hashed_bytes": rank.hashes.hashed,
        "received_bytes": rank.received,
        "stored_bytes": sum(stored_bytes(rank.cache.repository(s.model)) for s in states) if rank.downloading else 0,
        "working": bool(rank.downloading),
        "downloading": rank.downloading,
        "hub_failed": rank.hub_failed,
        "notes": sorted(set(rank.warnings)),
    }
    if params["head"]:
        result["manifests"] = [s.manifest.to_json() for s in states if s.manifest]
    return result
