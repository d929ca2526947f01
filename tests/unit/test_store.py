"""Releases on disk: staged whole or not at all, verified by content, switched by one rename."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkpair import store as store_module
from sparkpair.store import LISTING, Check, File, Store, StoreError

ID = "0123456789ab"
OTHER = "ba9876543210"
FILES = [
    File(".env", b"A='1'\n", 0o644),
    File("compose.yaml", b"services: {}\n", 0o644),
    File("entrypoint.py", b"#!/usr/bin/env python3\n", 0o755),
    File("overlays/width/vllm/a.py", b"x = 1\n", 0o644),
]
HIDDEN = (".staging-", ".replaced-")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def tree(base: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(base)): (mode(p), p.read_bytes()) for p in sorted(base.rglob("*")) if p.is_file()}


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)

    def set_to(value: int) -> None:
        os.umask(value)

    yield set_to
    os.umask(before)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "sparkpair")
    made.stage(ID, FILES)
    return made


def arm(store: Store, secrets: dict[str, str], *, keep: tuple[str, ...] = ()) -> None:
    """Secrets as an engine finds them: laid ready, and taken in the switch."""
    store.arm(ID, secrets, keep=keep)
    store.switch(ID)


def test_two_controllers_that_stage_one_release_at_once_both_have_it(tmp_path: Path) -> None:
    with multiprocessing.Pool(8) as pool:
        results = pool.map(_stage_again, [tmp_path] * 24)
    assert results == [""] * 24
    assert Store(tmp_path).matches(ID, FILES)
    assert Store(tmp_path).leftovers() == []


def _stage_again(root: Path) -> str:
    try:
        Store(root).stage(ID, FILES)
    except StoreError as error:
        return str(error)
    return ""


def test_a_staged_release_is_complete_and_holds_every_byte_and_mode(store: Store) -> None:
    assert store.check(ID) == Check(exists=True, damage=[])
    assert store.check(ID).complete
    found = tree(store.path(ID))
    assert {f.path: (f.mode, f.content) for f in FILES} == {k: v for k, v in found.items() if k != LISTING}
    assert json.loads(found[LISTING][1])["files"]["entrypoint.py"]["mode"] == "0755"
    assert store.leftovers() == []


def test_a_release_that_was_never_staged_is_missing_and_not_damaged(store: Store) -> None:
    assert store.check(OTHER) == Check(exists=False, damage=[])
    assert not store.check(OTHER).complete
    assert store.ids() == [ID]
    assert Store(store.root / "nowhere").ids() == []
    assert Store(store.root / "nowhere").leftovers() == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177])
def test_modes_of_files_and_folders_do_not_depend_on_the_umask(
    tmp_path: Path, umask: Callable[[int], None], mask: int
) -> None:
    made = Store(tmp_path)
    made.releases.mkdir()
    umask(mask)
    made.stage(ID, FILES)
    assert made.check(ID).damage == []
    assert {mode(p) for p in [made.path(ID), *made.path(ID).rglob("*")] if p.is_dir()} == {0o755}


def _replace_by_symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


DAMAGE: list[tuple[str, Callable[[Path], object], list[str]]] = [
    ("missing", lambda b: (b / ".env").unlink(), [".env: missing"]),
    (
        "truncated",
        lambda b: (b / "compose.yaml").write_bytes(b"serv"),
        ["compose.yaml: content differs from the release's listing"],
    ),
    ("emptied", lambda b: (b / ".env").write_bytes(b""), [".env: content differs from the release's listing"]),
    ("stray file", lambda b: (b / "compose.override.yaml").touch(), ["compose.override.yaml: not part of the release"]),
    ("stray deep file", lambda b: (b / "overlays/x.py").touch(), ["overlays/x.py: not part of the release"]),
    ("stray link to a folder", lambda b: (b / "more").symlink_to("/usr"), ["more: not part of the release"]),
    ("wrong mode", lambda b: (b / "entrypoint.py").chmod(0o644), ["entrypoint.py: mode 0644, wanted 0755"]),
    ("setuid", lambda b: (b / "entrypoint.py").chmod(0o4755), ["entrypoint.py: mode 4755, wanted 0755"]),
    (
        "symlink with the right content",
        lambda b: _replace_by_symlink(b / ".env"),
        ["elsewhere: not part of the release", ".env: not a regular file"],
    ),
    (
        "folder in a file's place",
        lambda b: ((b / ".env").unlink(), (b / ".env").mkdir()),
        [".env: not a regular file"],
    ),
]


@pytest.mark.parametrize(("harm", "wanted"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damage_is_found_and_healed_by_staging_again(
    store: Store, harm: Callable[[Path], object], wanted: list[str]
) -> None:
    assert store.matches(ID, FILES)
    harm(store.path(ID))
    assert store.check(ID) == Check(exists=True, damage=wanted)
    assert not store.matches(ID, FILES)
    store.stage(ID, FILES)
    assert store.check(ID).damage == []
    assert store.matches(ID, FILES)
    assert store.leftovers() == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"files": []}', '{"files": null}', '{"files": {".env": "0644"}}', '"files"', "\udcff"],
    ids=["empty", "half", "list", "no files", "files a list", "files null", "entry text", "text", "not utf-8"],
)
def test_a_damaged_listing_is_damage_and_no_crash(store: Store, text: str) -> None:
    (store.path(ID) / LISTING).write_bytes(text.encode(errors="surrogateescape"))
    check = store.check(ID)
    assert check.exists
    assert not check.complete
    assert [d.partition(":")[0] for d in check.damage] == [LISTING]
    assert not store.matches(ID, FILES)
    store.stage(ID, FILES)
    assert store.check(ID).complete


def test_a_listing_that_vanished_is_damage(store: Store) -> None:
    (store.path(ID) / LISTING).unlink()
    assert len(store.check(ID).damage) == 1
    assert LISTING in store.check(ID).damage[0]


def test_the_secrets_folder_is_no_part_of_the_comparison_and_its_namesake_deeper_down_is(store: Store) -> None:
    arm(store, {"api_key": "k"})
    (store.path(ID) / "secrets" / "more").write_text("x")
    assert store.check(ID).complete
    (store.path(ID) / "overlays" / "secrets").mkdir()
    (store.path(ID) / "overlays" / "secrets" / "x").touch()
    assert store.check(ID).damage == ["overlays/secrets/x: not part of the release"]


@pytest.mark.parametrize(
    "files",
    [
        FILES[:-1],
        [*FILES, File("more", b"", 0o644)],
        [File(".env", b"A='2'\n", 0o644), *FILES[1:]],
        [File(".env", b"A='1'\n", 0o600), *FILES[1:]],
    ],
    ids=["one less", "one more", "other content", "other mode"],
)
def test_a_complete_release_matches_only_the_files_it_was_made_of(store: Store, files: list[File]) -> None:
    assert store.matches(ID, list(reversed(FILES)))
    assert not store.matches(ID, files)
    assert store.check(ID).complete


def test_staging_removes_what_the_release_no_longer_holds(store: Store) -> None:
    store.stage(ID, FILES[:1])
    assert set(tree(store.path(ID))) == {".env", LISTING}
    assert store.leftovers() == []


def test_read_gives_text_or_none(store: Store) -> None:
    assert store.read(ID, ".env") == "A='1'\n"
    assert store.read(ID, "nothing") is None
    assert store.read(OTHER, ".env") is None
    (store.path(ID) / ".env").write_bytes(b"\xff")
    assert store.read(ID, ".env") is None


@pytest.mark.parametrize(
    "path", ["../escaped", "/etc/escaped", "a/../../escaped", "..", ".", "", "../.staging-0123456789abx/escaped"]
)
def test_a_path_that_leaves_the_release_is_refused_and_leaves_nothing(tmp_path: Path, path: str) -> None:
    made = Store(tmp_path / "root")
    with pytest.raises(StoreError, match="leaves the release directory"):
        made.stage(ID, [*FILES, File(path, b"x", 0o644)])
    assert not made.check(ID).exists
    assert made.leftovers() == []
    assert list(tmp_path.rglob("escaped")) == []
    assert not Path("/etc/escaped").exists()


def test_a_refused_path_leaves_the_older_copy_as_it_was(store: Store) -> None:
    before = tree(store.path(ID))
    with pytest.raises(StoreError, match="leaves the release directory"):
        store.stage(ID, [File("../x", b"x", 0o644)])
    assert tree(store.path(ID)) == before
    assert store.leftovers() == []


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen"])
def test_a_secret_cannot_leave_its_folder(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="leaves the release directory"):
        store.arm(ID, {"good": "x", name: "x"})
    assert store.check(ID).complete
    assert not (store.path(ID) / "stolen").exists()
    assert not (store.path(ID) / "secrets").exists()


@pytest.mark.parametrize("extra", [FILES[0], File(LISTING, b"{}", 0o644)], ids=["twice", "the listing itself"])
def test_a_file_given_twice_is_refused(tmp_path: Path, extra: File) -> None:
    made = Store(tmp_path)
    with pytest.raises(StoreError, match="exists"):
        made.stage(ID, [*FILES, extra])
    assert not made.check(ID).exists
    assert made.leftovers() == []


@pytest.mark.parametrize("bad", ["", "0123", "0123456789AB", "../releases/0", "0123456789abc", "0123456789ab\n"])
def test_only_ids_of_ours_become_paths(store: Store, bad: str) -> None:
    for act in (store.check, store.remove, store.switch, lambda r: store.stage(r, FILES), lambda r: store.arm(r, {})):
        with pytest.raises(StoreError, match="is not a release id"):
            act(bad)
    assert store.ids() == [ID]


def test_a_root_behind_a_link_stages_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "opt").symlink_to("disk")
    made = Store(tmp_path / "opt" / "sparkpair")
    made.stage(ID, FILES)
    made.arm(ID, {"api_key": "k"})
    assert made.check(ID).complete
    with pytest.raises(StoreError, match="leaves the release directory"):
        made.stage(ID, [File("../x", b"", 0o644)])


class Disk:
    """Lets a number of fsync calls pass, then is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        self.calls = 0
        monkeypatch.setattr(store_module.os, "fsync", self)

    def __call__(self, handle: int) -> None:
        os.fstat(handle)
        self.calls += 1
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_any_moment_leaves_no_release_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    Store(tmp_path / "count").stage(ID, FILES)
    total = disk.calls
    assert total > len(FILES)
    for allowed in range(total):
        made = Store(tmp_path / str(allowed))
        disk.left = allowed
        with pytest.raises(StoreError, match="No space left"):
            made.stage(ID, FILES)
        # The last sync follows the rename, so only then the release is there, and whole.
        assert made.check(ID) == Check(exists=allowed == total - 1, damage=[])
        assert made.leftovers() == []
    disk.left = total
    made.stage(ID, FILES)
    assert made.check(ID).complete


def test_a_full_disk_during_restaging_keeps_the_old_copy_or_has_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    made = Store(tmp_path)
    made.stage(ID, FILES)
    old = tree(made.path(ID))
    new = [*FILES, File("new", b"new", 0o644)]
    before = disk.calls
    made.stage(ID, new)
    total = disk.calls - before
    for allowed in range(total):
        made.stage(ID, FILES)
        assert tree(made.path(ID)) == old
        disk.left = allowed
        with pytest.raises(StoreError, match="No space left"):
            made.stage(ID, new)
        disk.left = 10**9
        assert made.check(ID).complete
        assert made.matches(ID, new if allowed == total - 1 else FILES)
        assert made.leftovers() == []


def test_an_exchange_that_fails_half_way_puts_the_old_copy_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(store.path(ID))
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name.startswith(".staging-"):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(StoreError, match="Input/output error"):
        store.stage(ID, FILES[:1])
    assert tree(store.path(ID)) == before
    assert store.leftovers() == []
    monkeypatch.undo()
    store.stage(ID, FILES[:1])
    assert set(tree(store.path(ID))) == {".env", LISTING}


def test_a_place_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file where the directory should be")
    with pytest.raises(StoreError, match="cannot stage"):
        Store(tmp_path / "root").stage(ID, FILES)


def test_leftovers_of_an_interrupted_run_are_named_and_cleaned_under_the_lock(store: Store) -> None:
    for prefix in HIDDEN:
        (store.releases / f"{prefix}{ID}" / "deep").mkdir(parents=True)
    (store.releases / ".staging-" / "x").mkdir(parents=True)
    assert store.leftovers() == sorted([f".replaced-{ID}", ".staging-", f".staging-{ID}"])
    assert store.ids() == [ID]
    store.stage(ID, FILES)
    assert len(store.clear()) == 3
    assert store.leftovers() == []
    assert store.check(ID).complete


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_secrets_are_0700_and_0600_under_every_umask(store: Store, umask: Callable[[int], None], mask: int) -> None:
    umask(mask)
    arm(store, {"api_key": "sesame", "ray_token": "t"})
    folder = store.path(ID) / "secrets"
    assert mode(folder) == 0o700
    assert {p.name: (mode(p), p.read_text()) for p in folder.iterdir()} == {
        "api_key": (0o600, "sesame"),
        "ray_token": (0o600, "t"),
    }


def test_arming_again_replaces_all_secrets(store: Store) -> None:
    arm(store, {"api_key": "old", "ray_token": "old"})
    arm(store, {"ray_token": "new"})
    assert {p.name: p.read_text() for p in (store.path(ID) / "secrets").iterdir()} == {"ray_token": "new"}
    assert store.check(ID).complete


@pytest.mark.parametrize("held", [None, ""])
def test_a_release_that_has_lost_its_key_is_refused_and_not_served_to_everybody(store: Store, held: str | None) -> None:
    arm(store, {"ray_token": "t"} if held is None else {"api_key": held})
    with pytest.raises(StoreError, match="has lost its api_key on this rank"):
        arm(store, {"api_key": ""}, keep=("api_key",))
    arm(store, {"api_key": "of today"}, keep=("api_key",))
    assert (store.path(ID) / "secrets" / "api_key").read_text() == "of today"


def test_a_key_that_is_kept_stays_whatever_is_given(store: Store) -> None:
    arm(store, {"api_key": "its own"})
    arm(store, {"api_key": "of today"}, keep=("api_key",))
    arm(store, {"api_key": ""}, keep=("api_key",))
    assert (store.path(ID) / "secrets" / "api_key").read_text() == "its own"


def test_a_release_that_is_not_there_cannot_be_armed(store: Store) -> None:
    with pytest.raises(StoreError, match="is not on this rank"):
        store.arm(OTHER, {"api_key": "k"})
    assert not store.path(OTHER).exists()


def test_a_full_disk_while_arming_keeps_the_old_secrets_and_no_copy_of_the_new(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm(store, {"api_key": "old"})
    disk = Disk(monkeypatch)
    disk.left = 1
    with pytest.raises(StoreError, match="cannot write the secrets"):
        store.arm(ID, {"api_key": "new", "ray_token": "new"})
    assert store.check(ID).complete
    assert {p.name: p.read_text() for p in (store.path(ID) / "secrets").iterdir()} == {"api_key": "old"}
    assert [p.name for p in store.path(ID).iterdir() if "next" in p.name] == []


def test_secrets_of_an_interrupted_arming_are_no_damage_and_do_not_stay(store: Store) -> None:
    half = store.path(ID) / ".secrets-next"
    half.mkdir()
    (half / "api_key").write_text("half")
    assert store.check(ID).complete
    assert store.leftovers() == [f"{ID}/.secrets-next"]
    assert store.clear() == [f"{ID}/.secrets-next"]
    assert not half.exists()
    half.mkdir()
    arm(store, {"api_key": "k"})
    assert not half.exists()


def test_secrets_of_an_engine_that_runs_stay_as_they_are_until_the_switch(store: Store) -> None:
    arm(store, {"ray_token": "runs"})
    # As a mount does, a descriptor leads to this very folder, whatever its path is by now.
    mounted = os.open(store.path(ID) / "secrets", os.O_RDONLY)
    seen = Path(f"/proc/self/fd/{mounted}")
    try:
        store.prepare(ID)
        store.arm(ID, {"ray_token": "next"})
        assert (seen / "ray_token").read_text() == "runs"
        assert (store.path(ID) / "secrets" / "ray_token").read_text() == "runs"
        (store.path(ID) / FILES[0].path).unlink()
        store.stage(ID, FILES)
        assert (seen / "ray_token").read_text() == "runs"
        store.switch(ID)
        assert (store.path(ID) / "secrets" / "ray_token").read_text() == "next"
        assert store.leftovers() == []
    finally:
        os.close(mounted)


def test_what_was_laid_ready_for_another_switch_goes_with_it(store: Store) -> None:
    store.stage(OTHER, FILES)
    store.prepare(OTHER)
    store.arm(OTHER, {"api_key": "k"})
    store.prepare(ID)
    assert store.leftovers() == [".current-next"]
    store.arm(ID, {"api_key": "k"})
    assert store.unprepare(ID)
    assert store.leftovers() == []


@pytest.mark.parametrize("moved", [0, 1])
def test_an_exchange_of_secrets_that_was_cut_short_loses_no_key(store: Store, moved: int) -> None:
    arm(store, {"api_key": "held"})
    folder = store.path(ID)
    store.arm(ID, {"api_key": "held"})
    (folder / "secrets").rename(folder / ".secrets-last")
    if moved:
        (folder / ".secrets-next").rename(folder / "secrets")
    assert store.holds(ID, "api_key")
    assert store.check(ID).complete
    store.clear()
    assert (folder / "secrets" / "api_key").read_text() == "held"
    assert store.leftovers() == []


def test_a_link_in_place_of_the_secrets_folder_is_replaced_and_not_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("k")
    (store.path(ID) / "secrets").symlink_to(outside)
    arm(store, {"api_key": "k"})
    assert [p.name for p in outside.iterdir()] == ["keep"]
    assert not (store.path(ID) / "secrets").is_symlink()


# --- current ---------------------------------------------------------------------------------------------------------


def test_current_moves_by_rename_and_is_never_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.stage(OTHER, FILES)
    assert store.current() is None
    store.switch(ID)
    assert store.current() == ID
    assert os.readlink(store.link) == f"releases/{ID}"  # noqa: PTH115 - the link's own text: relative, so it moves along
    seen: list[str | None] = []
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        seen.append(store.current())
        moved = real(self, target)
        seen.append(store.current())
        return moved

    monkeypatch.setattr(Path, "rename", rename)
    store.switch(OTHER)
    assert seen == [ID, OTHER]
    assert sorted(p.name for p in store.root.iterdir()) == ["current", "releases"]


def test_a_prepared_switch_is_one_rename_and_moves_nothing_before(store: Store) -> None:
    store.switch(ID)
    store.stage(OTHER, FILES)
    store.prepare(OTHER)
    assert store.current() == ID
    assert store.leftovers() == [".current-next"]
    with mock.patch.object(Path, "symlink_to", side_effect=OSError(errno.ENOSPC, "full")):
        store.switch(OTHER)
    assert store.current() == OTHER
    assert store.leftovers() == []


def test_a_switch_that_will_not_happen_is_taken_back_and_only_that(store: Store) -> None:
    store.stage(OTHER, FILES)
    store.prepare(OTHER)
    assert not store.unprepare(ID)
    assert store.leftovers() == [".current-next"]
    assert store.unprepare(OTHER)
    assert store.leftovers() == []
    assert not store.unprepare(OTHER)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_stands_in_the_place_of_current_is_refused_before_the_switch(store: Store, kind: str) -> None:
    store.link.mkdir() if kind == "folder" else store.link.write_text("")
    with pytest.raises(StoreError, match="is not a link"):
        store.prepare(ID)
    assert store.leftovers() == []


def test_mending_a_live_release_keeps_its_secrets(store: Store) -> None:
    arm(store, {"api_key": "held"})
    (store.path(ID) / FILES[0].path).unlink()
    store.stage(ID, FILES)
    assert store.check(ID).complete
    held = store.path(ID) / "secrets"
    assert (held / "api_key").read_text() == "held"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (held, held / "api_key")] == [0o700, 0o600]


@pytest.mark.parametrize("spoil", ["file", "release"])
def test_a_release_that_is_not_complete_cannot_be_prepared(store: Store, spoil: str) -> None:
    store.prepare(ID)
    if spoil == "file":
        (store.path(ID) / ".env").write_text("A='2'\n")
    else:
        store.remove(ID)
    with pytest.raises(StoreError, match=r"not complete: (\.env: content differs|it is missing)"):
        store.prepare(ID)


def test_what_interrupted_runs_left_is_cleared_and_releases_stay(store: Store) -> None:
    (store.releases / f".staging-{OTHER}").mkdir()
    store.prepare(ID)
    assert store.clear() == [".current-next", f".staging-{OTHER}"]
    assert store.leftovers() == []
    assert store.ids() == [ID]
    assert store.clear() == []


def test_current_survives_a_leftover_of_an_interrupted_switch(store: Store) -> None:
    (store.root / ".current-next").symlink_to("releases/000000000000")
    store.switch(ID)
    assert store.current() == ID
    assert not (store.root / ".current-next").is_symlink()


def test_a_switch_to_a_missing_release_is_refused_and_current_stays(store: Store) -> None:
    store.switch(ID)
    with pytest.raises(StoreError, match="'current' stays as it is"):
        store.switch(OTHER)
    assert store.current() == ID


def test_a_switch_that_the_disk_refuses_is_a_store_error_and_current_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.switch(ID)
    store.stage(OTHER, FILES)

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(StoreError, match="No space left"):
        store.switch(OTHER)
    assert store.current() == ID


def test_none_takes_the_link_away_and_keeps_the_release(store: Store) -> None:
    store.switch(ID)
    store.switch(None)
    assert store.current() is None
    assert store.check(ID).complete
    store.switch(None)
    assert store.current() is None


@pytest.mark.parametrize("target", ["releases/latest", "/etc", "releases/0123456789abX"])
def test_a_link_to_something_else_is_no_release(store: Store, target: str) -> None:
    store.link.symlink_to(target)
    assert store.current() is None


def test_remove_refuses_the_current_release_and_takes_any_other(store: Store) -> None:
    store.stage(OTHER, FILES)
    store.arm(OTHER, {"api_key": "k"})
    store.switch(ID)
    with pytest.raises(StoreError, match="is current"):
        store.remove(ID)
    assert store.check(ID).complete
    store.remove(OTHER)
    assert store.ids() == [ID]
    store.remove(OTHER)
    assert store.ids() == [ID]


# --- any tree --------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda n: n not in {".", ".."}
)
CONTENT = st.tuples(st.binary(max_size=40), st.sampled_from([0o600, 0o640, 0o644, 0o755]))
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(lambda p: p.partition("/")[0] not in {LISTING}),
    CONTENT,
    max_size=4,
)


def _possible(paths: list[str]) -> bool:
    # A path cannot be a file and a folder at once.
    return not any(other.startswith(f"{path}/") for path in paths for other in paths)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES.filter(lambda t: _possible(list(t))), st.data())
def test_any_tree_is_complete_after_staging_and_damaged_after_one_change(
    wanted: dict[str, tuple[bytes, int]], data: st.DataObject
) -> None:
    files = [File(path, content, bits) for path, (content, bits) in wanted.items()]
    # Waiting for the disk proves nothing here and takes most of the time.
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(store_module.os, "fsync"):
        made = Store(Path(folder))
        made.stage(ID, files)
        assert made.check(ID).complete
        assert made.matches(ID, files)
        assert {k: v for k, v in tree(made.path(ID)).items() if k != LISTING} == {
            f.path: (f.mode, f.content) for f in files
        }
        if files:
            victim = data.draw(st.sampled_from(files))
            (made.path(ID) / victim.path).write_bytes(victim.content + b"!")
            assert len(made.check(ID).damage) == 1
            assert not made.matches(ID, files)
            made.stage(ID, files)
            assert made.check(ID).complete
