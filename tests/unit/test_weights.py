"""Snapshots against their manifests, on real caches: what is found, what is not read again, what stands in the way."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from sparkpair import weights_cache
from sparkpair.weights import (
    Cache,
    Entry,
    Hashes,
    Manifest,
    Manifests,
    Model,
    Survey,
    WeightsError,
    models_of,
    survey,
)
from sparkpair.weights_cache import Owner, barred, describe, files_of, gaps, hash_all, odd_owner, repair_ref, seal

from tests.fixtures.hf_cache import MODEL, OTHER_REVISION, REVISION, fill, model, target, tree
from tests.planning import plan
from tests.standin.hub import sha256

FILES = target()


def known(cache: Cache, of: Model, hashes: Hashes) -> Manifest:
    """The manifest of a cache, everything hashed."""
    made, unknown = describe(cache, of, [], hashes)
    if made is None:
        hash_all(unknown, hashes, threads=4, seconds=60)
        made, _ = describe(cache, of, [], hashes)
    assert made is not None
    return made


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Cache, Manifest, Hashes]:
    """A complete snapshot, its manifest, and its hashes."""
    fill(tmp_path / "hf", FILES)
    cache, hashes = Cache.at(str(tmp_path / "hf")), Hashes(tmp_path / "root")
    return cache, known(cache, MODEL, hashes), hashes


def lacking(cache: Cache, manifest: Manifest, hashes: Hashes) -> dict[str, str]:
    """Why each lacking file is, once everything that can be hashed is."""
    found = survey(cache, MODEL, manifest, hashes)
    if found.unknown:
        hash_all(found.unknown, hashes, threads=4, seconds=60)
        found = survey(cache, MODEL, manifest, hashes)
    return {e.path: why for e, why in found.bring}


def first_shard(cache: Cache) -> Path:
    """The first shard in the snapshot."""
    return cache.snapshot(MODEL) / "model-00001-of-00004.safetensors"


# --- names and plans --------------------------------------------------------------------------------------------------


def test_models_of_a_plan_are_target_and_draft_with_their_folders() -> None:
    found = models_of(plan(model="a/b", dflash_model="c/d", dflash_cache_name="mine"))
    assert [(m["setting"], m["repository"], m["folder"]) for m in found] == [
        ("model", "a/b", "models--a--b"),
        ("dflash_model", "c/d", "mine"),
    ]
    assert all(len(m["revision"]) == 40 for m in found)


def test_a_plan_without_dflash_has_no_draft() -> None:
    assert [m["setting"] for m in models_of(plan(spec_method="none"))] == ["model"]


@pytest.mark.parametrize("revision", ["main", "v1.0", "A" * 40, "a" * 39, "a" * 41, ""])
def test_a_branch_as_revision_is_refused_by_name(revision: str) -> None:
    given = {"setting": "model", "repository": "a/b", "revision": revision, "folder": "models--a--b"}
    with pytest.raises(WeightsError, match=r"model: .* is not a commit.*40 lower-case"):
        Model.read(given)
    assert Model.read(given | {"revision": REVISION}).revision == REVISION


@pytest.mark.parametrize("folder", ["../x", "a/b", ""])
def test_a_folder_that_leaves_the_hub_is_refused(folder: str) -> None:
    with pytest.raises(WeightsError, match="is not a repository"):
        Model.read({"setting": "model", "repository": "a/b", "revision": REVISION, "folder": folder})


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../../etc/passwd", "size": 1},
        {"path": "/etc/passwd", "size": 1},
        {"path": "", "size": 1},
        {"path": "x", "size": -1},
        {"path": "x", "size": 1, "sha256": "../x"},
        {"path": "x", "size": 1, "blob": "../x"},
    ],
)
def test_a_manifest_that_leads_out_of_the_snapshot_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(WeightsError):
        Entry.read(entry)
    assert Entry.read({"path": "a/b.json", "size": 1, "sha256": "0" * 64, "blob": "x"}).path == "a/b.json"


def test_the_digest_of_a_manifest_is_of_content_and_not_of_layout() -> None:
    def made(**change: Any) -> str:
        entry = {"path": "x", "size": 1, "sha256": "0" * 64} | change
        return Manifest("a/b", REVISION, change.get("source", "hub"), (Entry.read(entry),)).digest

    assert made() == made(blob="y", git="z", source="cache")
    assert len({made(), made(path="z"), made(size=2), made(sha256="1" * 64)}) == 4


def test_a_manifest_comes_back_from_its_file_and_is_written_once(
    whole: tuple[Cache, Manifest, Hashes], tmp_path: Path
) -> None:
    store = Manifests(tmp_path / "root")
    assert store.load(MODEL) is None
    assert store.store(MODEL, whole[1])
    assert store.load(MODEL) == whole[1]
    assert not store.store(MODEL, whole[1])
    assert store.load(model(revision=OTHER_REVISION)) is None


# --- content ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
def test_a_whole_snapshot_is_complete(tmp_path: Path, plain: bool) -> None:
    fill(tmp_path / "hf", FILES, plain=plain)
    cache, hashes = Cache.at(str(tmp_path / "hf")), Hashes(tmp_path / "root")
    manifest = known(cache, MODEL, hashes)
    assert {e.path: e.sha256 for e in manifest.entries} == {name: sha256(content) for name, content in FILES.items()}
    assert {bool(e.blob) for e in manifest.entries} == {not plain}
    assert survey(cache, MODEL, manifest, hashes).complete


def test_a_truncated_shard_is_found(whole: tuple[Cache, Manifest, Hashes]) -> None:
    shard = first_shard(whole[0]).resolve()
    shard.write_bytes(shard.read_bytes()[:-1])
    assert lacking(*whole) == {"model-00001-of-00004.safetensors": "holds 4999 of 5000 bytes"}


def test_a_changed_byte_is_found_though_size_and_mtime_are_kept(whole: tuple[Cache, Manifest, Hashes]) -> None:
    shard = first_shard(whole[0]).resolve()
    info, content = shard.stat(), shard.read_bytes()
    shard.write_bytes(b"X" + content[1:])
    os.utime(shard, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert list(lacking(*whole)) == ["model-00001-of-00004.safetensors"]


def test_swapped_shards_are_found_without_hashing(whole: tuple[Cache, Manifest, Hashes]) -> None:
    cache, manifest, hashes = whole
    one, two = (cache.snapshot(MODEL) / f"model-0000{n}-of-00004.safetensors" for n in (1, 2))
    targets = one.readlink(), two.readlink()
    one.unlink()
    two.unlink()
    one.symlink_to(targets[1])
    two.symlink_to(targets[0])
    before = hashes.hashed
    found = survey(cache, MODEL, manifest, hashes)
    # Their right blobs are there, so both need nothing but a link.
    assert {e.path for e in found.link} == {one.name, two.name}
    assert (found.bring, found.unknown, hashes.hashed) == ([], {}, before)


def test_swapped_blobs_are_found(whole: tuple[Cache, Manifest, Hashes]) -> None:
    cache = whole[0]
    one, two = ((cache.snapshot(MODEL) / f"model-0000{n}-of-00004.safetensors").resolve() for n in (1, 2))
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)
    assert len(lacking(*whole)) == 2


def test_a_missing_file_and_a_dangling_link_are_found(whole: tuple[Cache, Manifest, Hashes]) -> None:
    cache = whole[0]
    first_shard(cache).resolve().unlink()
    (cache.snapshot(MODEL) / "config.json").unlink()
    assert lacking(*whole) == {"model-00001-of-00004.safetensors": "is missing"}
    assert [e.path for e in survey(cache, MODEL, whole[1], whole[2]).link] == ["config.json"]


def test_a_shard_outside_of_the_mounted_cache_is_found(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    cache = whole[0]
    shard = first_shard(cache)
    blob = shard.resolve()
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    assert "outside of the cache that the engine mounts" in lacking(*whole)[shard.name]


def test_an_unchanged_snapshot_of_120_shards_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "hf", target(shards=120, size=2000))
    cache, hashes = Cache.at(str(tmp_path / "hf")), Hashes(tmp_path / "root")
    manifest = known(cache, MODEL, hashes)
    assert hashes.hashed > 120 * 2000
    hashes.save()
    again = Hashes(tmp_path / "root")

    def read(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Hashes, "make", read)
    begun = time.monotonic()
    assert survey(cache, MODEL, manifest, again).complete
    # Generous for a loaded machine: it takes some ten milliseconds.
    assert time.monotonic() - begun < 1


def test_fresh_hashes_know_nothing(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    cache, manifest, hashes = whole
    hashes.save()
    assert len(survey(cache, MODEL, manifest, Hashes(tmp_path / "root", fresh=True)).unknown) == len(FILES)
    assert survey(cache, MODEL, manifest, Hashes(tmp_path / "root")).unknown == {}


def test_hashes_of_files_that_are_gone_are_forgotten(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    cache, _, hashes = whole
    gone = first_shard(cache).resolve()
    gone.unlink()
    hashes.save()
    assert str(gone) not in json.loads((tmp_path / "root/weights/hashes.json").read_text())


def test_a_damaged_file_of_hashes_only_costs_time(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    whole[2].save()
    (tmp_path / "root/weights/hashes.json").write_text("{")
    assert len(survey(whole[0], MODEL, whole[1], Hashes(tmp_path / "root")).unknown) == len(FILES)


def test_no_file_is_begun_when_the_time_is_over(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    ticks = iter([0.0, 1.0, 20.0])
    hashes = Hashes(tmp_path / "other")
    unknown = survey(whole[0], MODEL, whole[1], hashes).unknown
    hash_all(unknown, hashes, threads=1, seconds=10, clock=lambda: next(ticks))
    assert len(survey(whole[0], MODEL, whole[1], hashes).unknown) == len(unknown) - 2


def test_two_snapshots_side_by_side_are_judged_apart(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    cache, manifest, hashes = whole
    other = model(revision=OTHER_REVISION)
    fill(tmp_path / "hf", FILES | {"config.json": b'{"another": 1}'}, other)
    theirs = known(cache, other, hashes)
    assert theirs.digest != manifest.digest
    (cache.snapshot(other) / "config.json").resolve().unlink()
    assert survey(cache, MODEL, manifest, hashes).complete
    assert [e.path for e, _ in survey(cache, other, theirs, hashes).bring] == ["config.json"]


# --- manifests of what is there ---------------------------------------------------------------------------------------


def test_a_snapshot_without_a_shard_of_its_index_makes_no_manifest(whole: tuple[Cache, Manifest, Hashes]) -> None:
    first_shard(whole[0]).unlink()
    with pytest.raises(WeightsError, match=r"lacks model-00001-of-00004\.safetensors"):
        describe(whole[0], MODEL, [], whole[2])


def test_no_snapshot_makes_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="lacks every file"):
        describe(Cache.at(str(tmp_path)), MODEL, [], Hashes(tmp_path))


def test_what_a_snapshot_needs_to_be_whole(whole: tuple[Cache, Manifest, Hashes]) -> None:
    snapshot = whole[0].snapshot(MODEL)
    present = files_of(snapshot, [])
    assert gaps(snapshot, present) == []
    assert gaps(snapshot, ["config.json"]) == ["any file of weights"]
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("[]")
    assert gaps(snapshot, present) == ["config.json is not an object"]
    (snapshot / "model.safetensors.index.json").resolve().write_text("{")
    assert "model.safetensors.index.json cannot be read" in gaps(snapshot, present)


def test_a_blob_that_is_not_what_its_name_says_is_refused(whole: tuple[Cache, Manifest, Hashes]) -> None:
    shard = first_shard(whole[0]).resolve()
    shard.write_bytes(b"X" * 5000)
    with pytest.raises(WeightsError, match="does not hold what its name says"):
        known(whole[0], MODEL, whole[2])


def test_a_small_blob_is_checked_by_its_git_hash(whole: tuple[Cache, Manifest, Hashes]) -> None:
    config = (whole[0].snapshot(MODEL) / "config.json").resolve()
    config.write_text('{"architectures": ["Wrong!"]}')
    with pytest.raises(WeightsError, match="does not hold what its name says"):
        known(whole[0], MODEL, whole[2])


def test_excluded_files_are_no_part_of_a_manifest(tmp_path: Path) -> None:
    fill(tmp_path / "hf", FILES | {"docs/a/b.md": b"x", "src/x.py": b"y", "documents.md": b"z"})
    found = files_of(Cache.at(str(tmp_path / "hf")).snapshot(MODEL), ["docs/**", "src/"])
    assert found == sorted([*FILES, "documents.md"])


def test_a_list_of_the_hub_is_sealed_with_the_hashes_of_small_files(whole: tuple[Cache, Manifest, Hashes]) -> None:
    cache, manifest, hashes = whole
    entries = [
        {"path": e.path, "size": e.size, "git": e.blob} if len(e.blob) == 40 else e.__dict__ for e in manifest.entries
    ]
    listed = Manifest.read({"repository": "owner/target", "revision": REVISION, "source": "hub", "entries": entries})
    assert (listed.sealed, listed.digest) == (False, "")
    assert survey(cache, MODEL, listed, hashes).complete
    assert seal(cache, MODEL, listed, hashes).digest == manifest.digest
    (cache.snapshot(MODEL) / "config.json").resolve().write_text('{"architectures": ["Wrong!"]}')
    assert [why for _, why in survey(cache, MODEL, listed, hashes).bring] == ["differs from the hub's file"]


# --- refs, owners, room -----------------------------------------------------------------------------------------------


def test_a_ref_that_names_another_commit_is_repaired(tmp_path: Path) -> None:
    fill(tmp_path / "hf", FILES, ref=OTHER_REVISION + "\n")
    cache = Cache.at(str(tmp_path / "hf"))
    assert not cache.ref_is_right(MODEL)
    repair_ref(cache, MODEL)
    assert cache.ref_is_right(MODEL)
    assert [p.name for p in (cache.repository(MODEL) / "refs").iterdir()] == ["main"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
def test_a_folder_of_root_in_a_users_cache_is_named_with_the_remedy(tmp_path: Path) -> None:
    fill(tmp_path / "hf", FILES)
    cache = Cache.at(str(tmp_path / "hf"))
    assert barred(cache, MODEL) == ""
    for path in (cache.home, cache.hub):
        os.chown(path, 12345, 12345)
    assert barred(cache, MODEL) == (
        f"{cache.repository(MODEL)} belongs to root, but the cache {cache.home} to 12345: "
        f"chown -R 12345: {cache.repository(MODEL)}"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
def test_a_cache_of_root_in_a_users_home_is_named(tmp_path: Path) -> None:
    (tmp_path / "home" / "hf").mkdir(parents=True)
    cache = Cache.at(str(tmp_path / "home" / "hf"))
    assert odd_owner(cache) == ""
    os.chown(tmp_path / "home", 12345, 12345)
    assert "belongs to root, inside a folder of 12345" in odd_owner(cache)
    assert odd_owner(Cache.at(str(tmp_path / "none"))) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
def test_new_folders_belong_to_the_owner_of_the_cache(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    cache = Cache.at(str(tmp_path / "new" / "hf"))
    owner = Owner.of(cache)
    owner.mkdir(cache.hub)
    assert {(p.stat().st_uid, p.stat().st_gid) for p in (cache.hub, cache.home, cache.home.parent)} == {(12345, 54321)}


def test_a_user_who_cannot_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "hf", FILES)
    cache = Cache.at(str(tmp_path / "hf"))
    monkeypatch.setattr(weights_cache.os, "geteuid", lambda: 1000)
    assert barred(cache, MODEL) == ""
    monkeypatch.setattr(weights_cache.os, "access", lambda path, _: not str(path).endswith("blobs"))
    assert "blobs belongs to" in barred(cache, MODEL)
    assert "cannot be written" in barred(cache, MODEL)


def test_a_hub_that_leads_out_of_the_mounted_cache_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "disk", FILES)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "hub").symlink_to(tmp_path / "disk" / "hub")
    assert "which the engine does not mount: set spark_hf_home" in barred(Cache.at(str(tmp_path / "hf")), MODEL)


def test_a_survey_that_lacks_nothing_is_complete_and_any_lack_is_not() -> None:
    entry = Entry("x", 1, "0" * 64)
    assert Survey().complete
    assert not Survey(bring=[(entry, "is missing")]).complete
    assert not Survey(link=[entry]).complete
    assert not Survey(unknown={"x": 1}).complete


def test_looking_changes_nothing(whole: tuple[Cache, Manifest, Hashes], tmp_path: Path) -> None:
    before = tree(tmp_path)
    survey(*[whole[0], MODEL, whole[1], whole[2]])
    barred(whole[0], MODEL)
    assert tree(tmp_path) == before
