"""Overlays against images: every reason to refuse has its own message, and nothing is written then."""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sparkpair import overlay_module, overlay_store
from sparkpair.overlay import OverlayError, bad_path, differences
from sparkpair.overlay_image import Output, proof, run_binary
from sparkpair.overlay_manifest import ManifestError, Proposal, overlay_digest, ship

from tests.fakedocker import FakeDocker

ROOT = "/usr/lib/packages"
IMAGE = "registry.example/engine:1"
PATH = "vllm/width.py"
OTHER = "vllm/model/layer.py"
MARK = "# sparkpair overlay: demo\n"
V1 = "".join(f"a{n} = {n}\n" for n in range(30))
V2 = V1.replace("a2 = 2\n", "a2 = 2\nextra = 1\n")
LAYER = "x = 1\ny = 2\nz = 3\n"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def edit(text: str) -> str:
    """The demo overlay's edit: one line changed, one added, both marked."""
    return (
        text.replace("a9 = 9\n", f"{MARK}a9 = 99\n")
        .replace("y = 2\n", f"{MARK}y = 22\n")
        .replace("a25 = 25\n", "a25 = 25\nlate_demo = 1\n")
    )


def difference(path: str, before: str, after: str) -> str:
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}"))


class Case:
    """An overlay folder, an image, and a rank's directory; each test spoils one of them."""

    def __init__(self, base: Path) -> None:
        self.checkout = base / "checkout" / "overlays"
        self.images = base / "images"
        self.docker = FakeDocker(self.images)
        self.destination = base / "rank" / "staging" / "overlays"
        self.write_overlay("demo", {PATH: {"1.0": V1, "2.0": V2}})
        self.put(PATH, V1)

    def put(self, path: str, text: str | bytes, image: str = IMAGE) -> Path:
        """Write a file into an image."""
        here = self.docker.tree(image) / ROOT.lstrip("/") / path
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(text if isinstance(text, bytes) else text.encode())
        return here

    def write_overlay(
        self, name: str, targets: Mapping[str, Mapping[str, str]], markers: list[str] | None = None
    ) -> Path:
        """Write an overlay folder that edits each path, for each version's text."""
        folder = self.checkout / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "selfcheck.py").write_text('print(\'{"ok": true, "proved": ["it runs"]}\')\n')
        listed = []
        for path, texts in targets.items():
            sources = []
            for version, text in texts.items():
                diff = f"{Path(path).stem}-{version}.diff"
                content = difference(path, text, edit(text))
                (folder / diff).write_text(content)
                sources.append(
                    {
                        "engine": [version],
                        "sha256_before": sha(text),
                        "sha256_after": sha(edit(text)),
                        "diff": diff,
                        "diff_sha256": sha(content),
                        "pin": "tested",
                    }
                )
            marks = markers or (
                ["sparkpair overlay: demo", "late_demo"] if path == PATH else ["sparkpair overlay: demo"]
            )
            listed.append({"paths": [path], "markers": marks, "sources": sources})
        self.write_manifest(
            name,
            {
                "schema": 1,
                "name": name,
                "description": "For tests.",
                "environment": ["DEMO"],
                "selfcheck": "selfcheck.py",
                "targets": listed,
            },
        )
        return folder

    def manifest(self, name: str = "demo") -> dict[str, Any]:
        """The manifest as data."""
        data: dict[str, Any] = json.loads((self.checkout / name / "manifest.json").read_text())
        return data

    def write_manifest(self, name: str, data: Mapping[str, Any]) -> None:
        """Write it back, in the form that proposals have."""
        (self.checkout / name / "manifest.json").write_text(json.dumps(data, indent=2) + "\n")

    def params(self, *names: str, **changes: Any) -> dict[str, Any]:
        """Parameters of the module, as the action makes them."""
        wanted = [{"name": n} for n in (names or ("demo",))]
        return {
            "image": IMAGE,
            "package_root": ROOT,
            "overlays": ship(self.checkout, wanted),
            "destination": str(self.destination),
            "source": "",
            "docker_cli": "docker",
            "python": "python3",
            "engine": "3.0",
            "container": IMAGE,
            "pins": [],
            **changes,
        }

    def run(self, *names: str, check: bool = False, diff: bool = False, **changes: Any) -> dict[str, Any]:
        """Run the module's main purpose."""
        return overlay_module.put(self.params(*names, **changes), self.docker, check=check, diff=diff)

    def refused(self, *names: str, **changes: Any) -> str:
        """Run it, expect a refusal with nothing written and no container left, and return the messages."""
        with pytest.raises(OverlayError) as caught:
            self.run(*names, **changes)
        assert not self.destination.exists()
        assert not self.docker.containers
        return str(caught.value)

    def survey(self, *names: str) -> dict[str, Any]:
        """Run the survey."""
        return overlay_module.look(self.params(*names), self.docker)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


# --- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "version"), [(V1, "1.0"), (V2, "2.0")])
def test_a_pinned_source_is_applied(case: Case, text: str, version: str) -> None:
    case.put(PATH, text)
    result = case.run()
    written = case.destination / "demo" / PATH
    assert written.read_text() == edit(text)
    assert stat.S_IMODE(written.stat().st_mode) == 0o644
    assert {stat.S_IMODE(p.stat().st_mode) for p in case.destination.rglob("*") if p.is_dir()} == {0o755}
    assert result["changed"] is True
    assert result["overlays"] == result["mounts"]
    assert result["overlays"] == [
        {
            "name": "demo",
            "path": PATH,
            "target": f"{ROOT}/{PATH}",
            "source": f"overlays/demo/{PATH}",
            "sha256_before": sha(text),
            "sha256_after": sha(edit(text)),
            "engine": [version],
            "pin": "tested",
            "state": "applied",
        }
    ]
    assert case.destination.parent / result["overlays"][0]["source"] == written


def test_the_image_is_never_started_and_never_pulled_to_be_read(case: Case) -> None:
    case.run()
    create, copy, remove, judge = case.docker.calls
    assert create == ["docker", "create", "--pull", "never", "--network", "none", "--entrypoint", "true", IMAGE]
    assert copy[1] == "cp"
    assert copy[-1] == "-"
    assert remove[1:4] == ["rm", "-f", "-v"]
    assert judge[:8] == ["docker", "run", "--rm", "--pull", "never", "--network", "none", "-i"]
    assert not case.docker.containers


def test_the_number_of_docker_calls_grows_by_one_for_each_file(case: Case) -> None:
    case.write_overlay("demo", {PATH: {"1.0": V1}, OTHER: {"1.0": LAYER}})
    case.put(OTHER, LAYER)
    case.run()
    assert [c[1] for c in case.docker.calls] == ["create", "cp", "cp", "rm", "run"]


def test_a_second_run_changes_nothing(case: Case) -> None:
    first = case.run()
    inode = (case.destination / "demo" / PATH).stat().st_ino
    second = case.run(diff=True)
    assert second["changed"] is False
    assert "diff" not in second
    assert second["overlays"] == first["overlays"]
    assert (case.destination / "demo" / PATH).stat().st_ino == inode


def _tamper(case: Case, how: str) -> None:
    here = case.destination / "demo" / PATH
    if how == "content":
        here.write_text(edit(V1) + "\n")
    elif how == "mode":
        here.chmod(0o600)
    elif how == "stray file":
        (case.destination / "stray.py").write_text("")
    elif how == "stray folder":
        (case.destination / "empty").mkdir()
    elif how == "link":
        shutil.copy(here, case.destination.parent / "copy.py")
        here.unlink()
        here.symlink_to(case.destination.parent / "copy.py")
    elif how == "missing":
        here.unlink()
    elif how == "folder mode":
        here.parent.chmod(0o700)
    elif how == "destination is a link":
        case.destination.rename(case.destination.with_name("moved"))
        case.destination.symlink_to("moved")
    elif how == "destination is a file":
        shutil.rmtree(case.destination)
        case.destination.write_text("")


@pytest.mark.parametrize(
    "how",
    [
        *("content", "mode", "stray file", "stray folder", "link", "missing", "folder mode"),
        *("destination is a link", "destination is a file"),
    ],
)
def test_whatever_happened_to_the_destination_is_put_right(case: Case, how: str) -> None:
    case.run()
    _tamper(case, how)
    assert case.run(check=True)["changed"] is True
    assert case.run()["changed"] is True
    assert case.run()["changed"] is False
    assert [p for p in case.destination.rglob("*") if p.is_file()] == [case.destination / "demo" / PATH]
    assert not [p for p in case.destination.parent.iterdir() if p.name.startswith(".")]


def test_check_mode_tells_the_truth_and_writes_nothing(case: Case) -> None:
    result = case.run(check=True, diff=True)
    assert result["changed"] is True
    assert not case.destination.parent.exists()
    assert result["diff"] == [
        {
            "before_header": f"{IMAGE}:{PATH}",
            "after_header": f"{case.destination}/demo/{PATH}",
            "before": V1,
            "after": edit(V1),
        }
    ]


def test_check_mode_refuses_as_well(case: Case) -> None:
    case.put(PATH, V1 + "# drift\n")
    with pytest.raises(OverlayError):
        case.run(check=True)


def test_check_mode_looks_at_the_source_of_an_image_that_is_still_to_come(case: Case) -> None:
    result = case.run(check=True, image="sparkpair/engine:0", source=IMAGE)
    assert [e["sha256_after"] for e in result["mounts"]] == [sha(edit(V1))]
    assert result["unchecked"] == ""
    case.put(PATH, V1 + "# drift\n")
    with pytest.raises(OverlayError, match="does not know"):
        case.run(check=True, image="sparkpair/engine:0", source=IMAGE)


def test_check_mode_without_any_image_says_what_it_could_not_check(case: Case) -> None:
    result = case.run(check=True, image="sparkpair/engine:0", source="registry.example/engine@sha256:1")
    assert (result["changed"], result["overlays"], result["mounts"]) == (True, [], [])
    assert result["unchecked"] == (
        "overlays demo were not checked: image sparkpair/engine:0 is not on this rank, "
        "nor is registry.example/engine@sha256:1, which it comes from"
    )
    assert not case.destination.parent.exists()
    message = case.refused(image="sparkpair/engine:0", source=IMAGE)
    assert "image sparkpair/engine:0 cannot be read" in message, "outside of check mode the image itself must be there"


def test_check_mode_does_not_take_a_docker_that_is_down_for_an_image_to_come(case: Case) -> None:
    case.docker.broken["image"] = Output(1, b"", "Cannot connect to the Docker daemon\n")
    with pytest.raises(OverlayError, match="Cannot connect to the Docker daemon"):
        case.run(check=True)


def test_without_overlays_the_destination_goes_and_the_image_is_not_touched(case: Case) -> None:
    case.run()
    case.docker.calls.clear()
    assert case.run(check=True, overlays=[])["changed"] is True
    assert case.destination.exists()
    result = case.run(overlays=[], image=None, package_root=None)
    assert result == {"changed": True, "overlays": [], "mounts": [], "unchecked": ""}
    assert not case.destination.exists()
    assert case.run(overlays=[])["changed"] is False
    assert case.docker.calls == []


def test_a_failed_write_leaves_the_old_set(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.run()
    case.put(PATH, V2)

    def broken(_base: Path, _path: str, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(overlay_store, "_write", broken)
    with pytest.raises(OSError, match="No space left"):
        case.run()
    assert (case.destination / "demo" / PATH).read_text() == edit(V1)
    assert not [p for p in case.destination.parent.iterdir() if p.name.startswith(".")]


def test_an_exchange_that_fails_half_way_is_undone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.run()
    case.put(PATH, V2)
    rename = Path.rename

    def broken(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(OSError, match="Input/output"):
        case.run()
    assert (case.destination / "demo" / PATH).read_text() == edit(V1)


def test_the_umask_does_not_decide(case: Case) -> None:
    before = os.umask(0o077)
    try:
        case.run()
    finally:
        os.umask(before)
    assert stat.S_IMODE((case.destination / "demo" / PATH).stat().st_mode) == 0o644


# --- an overlay that the image has already ---------------------------------------------------------------------------


def test_an_edited_image_needs_nothing(case: Case) -> None:
    case.put(PATH, edit(V1))
    result = case.run()
    assert result["changed"] is False
    assert result["mounts"] == []
    assert result["overlays"][0]["state"] == "already_present"
    assert result["overlays"][0]["sha256_before"] == sha(V1)
    assert result["overlays"][0]["source"] == ""
    assert not case.destination.exists()


@pytest.mark.parametrize(
    ("text", "which"),
    [
        (V1 + MARK, r"some marks.*\['sparkpair overlay: demo'\]"),
        (edit(V1).replace("late_demo = 1\n", ""), "some marks"),
        (edit(V1) + "# more\n", "all marks"),
    ],
)
def test_marks_without_the_pinned_result_are_refused(case: Case, text: str, which: str) -> None:
    case.put(PATH, text)
    assert re.search(f"carries {which}", case.refused())


def test_one_of_two_targets_edited_is_refused(case: Case) -> None:
    case.write_overlay("demo", {PATH: {"1.0": V1}, OTHER: {"1.0": LAYER}})
    case.put(PATH, edit(V1))
    case.put(OTHER, LAYER)
    assert f"has a part of overlay demo already: {PATH} is edited, {OTHER} is not" in case.refused()
    case.put(OTHER, edit(LAYER))
    assert [o["state"] for o in case.run()["overlays"]] == ["already_present"] * 2


# --- images that are refused -----------------------------------------------------------------------------------------


def test_an_unknown_source_names_everything_that_helps(case: Case) -> None:
    text = V2.replace("a1 = 1\n", "a1 = 1  # drift\n")
    case.put(PATH, text)
    message = case.refused()
    for part in (
        PATH,
        IMAGE,
        sha(text),
        "vLLM 2.0",
        "whose diff applies as it is",
        "ansible-playbook playbooks/pin.yml",
    ):
        assert part in message


def test_the_nearest_source_comes_with_its_distance(case: Case) -> None:
    case.put(PATH, V2.replace("a25 = 25", "a25 = 0"))
    assert "vLLM 2.0 (of its diff, 1 of 2 hunks fit in place)" in case.refused()
    case.put(PATH, "# two\n# more\n" + V1)
    assert "0 of 2 hunks fit in place, 2 elsewhere" in case.refused()


def test_a_missing_file_is_refused(case: Case) -> None:
    case.put(PATH, V1).unlink()
    assert f"{PATH}: not in image {IMAGE}" in case.refused()


def test_a_link_is_refused(case: Case) -> None:
    here = case.put(PATH, V1)
    here.rename(here.with_name("real.py"))
    here.symlink_to("real.py")
    assert f"{PATH} in image {IMAGE} is a link to real.py" in case.refused()


def test_a_link_above_the_file_is_refused(case: Case) -> None:
    here = case.put(PATH, V1).parent
    here.rename(here.with_name("elsewhere"))
    here.symlink_to("elsewhere")
    assert "is reached through a link" in case.refused()


def test_a_package_root_that_is_a_link_is_fine(case: Case) -> None:
    root = case.docker.tree(IMAGE) / ROOT.lstrip("/")
    root.rename(root.with_name("real"))
    root.symlink_to("real")
    assert case.run()["changed"] is True


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_regular_file_is_refused(case: Case, kind: str) -> None:
    here = case.put(PATH, V1)
    here.unlink()
    here.mkdir() if kind == "directory" else os.mkfifo(here)
    assert f"is not a regular file but a {kind}" in case.refused()


def test_a_large_directory_is_not_read_to_its_end(case: Case) -> None:
    here = case.put(PATH, V1)
    here.unlink()
    case.put(f"{PATH}/large.bin", bytes(9 * 1024 * 1024))
    assert "directory, or a file beyond the limit of 8 MiB" in case.refused()


def test_an_image_that_is_not_there_is_refused(case: Case) -> None:
    message = case.refused(image="registry.example/other:2")
    assert "image registry.example/other:2 cannot be read" in message
    assert "No such image" in message


@pytest.mark.parametrize(
    ("verb", "answer", "reason"),
    [
        ("create", Output(127, b"", "docker: No such file or directory"), "docker: No such file"),
        ("cp", Output(1, b"", "Error response from daemon: input/output error"), "input/output error"),
        ("cp", Output(0, b"junk", ""), "no valid archive"),
        ("cp", Output(0, b"", ""), "archive"),
        ("run", Output(126, b"", "exec: python3: not found"), "python3 does not run"),
        ("run", Output(0, b"hello", ""), "no answer that can be read"),
    ],
)
def test_an_unreadable_image_is_refused(case: Case, verb: str, answer: Output, reason: str) -> None:
    case.docker.broken[verb] = answer
    assert reason in case.refused()


def test_a_result_that_does_not_parse_is_refused(case: Case) -> None:
    source = V1.replace("a9 = 9\n", "if True: (\n")
    folder = case.checkout / "demo"
    data = case.manifest()
    after = source.replace("a1 = 1\n", f"{MARK}late_demo = a1 = 1\n")
    content = difference(PATH, source, after)
    (folder / "broken.diff").write_text(content)
    data["targets"][0]["sources"].append(
        data["targets"][0]["sources"][0]
        | {"sha256_before": sha(source), "sha256_after": sha(after), "diff": "broken.diff", "diff_sha256": sha(content)}
    )
    case.write_manifest("demo", data)
    case.put(PATH, source)
    assert "does not parse with the Python" in case.refused()


def test_files_of_different_engines_are_refused(case: Case) -> None:
    case.write_overlay("demo", {PATH: {"1.0": V1, "2.0": V2}, OTHER: {"1.0": LAYER}})
    case.put(PATH, V2)
    case.put(OTHER, LAYER)
    message = case.refused()
    assert "mixes files" in message
    assert "vLLM 2.0" in message
    case.put(PATH, V1)
    assert case.run()["changed"] is True


def test_all_reasons_are_told_and_nothing_of_a_good_overlay_is_written(case: Case) -> None:
    case.write_overlay("second", {OTHER: {"1.0": LAYER}})
    case.put(OTHER, LAYER)
    assert len(case.run("demo", "second")["mounts"]) == 2
    case.run(overlays=[])
    case.put(PATH, V1 + "# drift\n")
    case.put(OTHER, LAYER + "# drift\n")
    message = case.refused("demo", "second")
    assert PATH in message
    assert OTHER in message
    case.put(OTHER, LAYER)
    assert OTHER not in case.refused("demo", "second")


def test_a_target_may_have_one_of_several_paths(case: Case) -> None:
    data = case.manifest()
    data["targets"][0]["paths"] = ["vllm/elsewhere.py", PATH]
    case.write_manifest("demo", data)
    assert case.run()["overlays"][0]["path"] == PATH
    case.run(overlays=[])
    case.put("vllm/elsewhere.py", V1)
    assert "which of them the engine uses cannot be told" in case.refused()


# --- overlays that are refused ---------------------------------------------------------------------------------------


def _sources(case: Case) -> list[dict[str, Any]]:
    return ship(case.checkout, [{"name": "demo"}])


@pytest.mark.parametrize("how", ["edited", "truncated", "missing"])
def test_a_diff_that_is_not_the_pinned_one_is_refused(case: Case, how: str) -> None:
    shipped = _sources(case)
    content = base64.b64decode(shipped[0]["diffs"]["width-1.0.diff"])
    if how == "edited":
        content = content.replace(b"+a9 = 99", b"+a9 = 66")
    elif how == "truncated":
        content = content[:-20]
    shipped[0]["diffs"]["width-1.0.diff"] = base64.b64encode(content).decode()
    if how == "missing":
        del shipped[0]["diffs"]["width-1.0.diff"]
    message = case.refused(overlays=shipped)
    assert "width-1.0.diff" in message
    assert ("is missing" if how == "missing" else "was edited or truncated") in message
    # Nothing was even read: the overlay's own files come first.
    assert case.docker.calls == []


@pytest.mark.parametrize(("key", "reason"), [("diff", "is not a sound diff"), ("path", "is not its target")])
def test_a_diff_that_is_pinned_and_unsound_is_refused(case: Case, key: str, reason: str) -> None:
    shipped = _sources(case)
    content = b"nonsense\n" if key == "diff" else difference("vllm/foreign.py", V1, edit(V1)).encode()
    shipped[0]["diffs"]["width-1.0.diff"] = base64.b64encode(content).decode()
    shipped[0]["manifest"]["targets"][0]["sources"][0]["diff_sha256"] = hashlib.sha256(content).hexdigest()
    assert reason in case.refused(overlays=shipped)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256_after": "0" * 64}, "the manifest pins 0000"),
        ({"sha256_before": "0" * 64}, "does not know"),
        ({"diff": "width-2.0.diff", "diff_sha256": "of 2.0"}, "the manifest was edited"),
    ],
)
def test_an_edited_manifest_is_refused(case: Case, change: dict[str, str], reason: str) -> None:
    shipped = _sources(case)
    sources = shipped[0]["manifest"]["targets"][0]["sources"]
    if "diff" in change:
        change = change | {"diff_sha256": sources[1]["diff_sha256"]}
    sources[0].update(change)
    assert reason in case.refused(overlays=shipped)


@pytest.mark.parametrize("markers", [["not in the result"], ["a9"]])
def test_markers_must_tell_the_result_from_the_source(case: Case, markers: list[str]) -> None:
    shipped = _sources(case)
    shipped[0]["manifest"]["targets"][0]["markers"] = markers
    assert "must be in the result and not in the source" in case.refused(overlays=shipped)


def test_a_manifest_that_lost_its_shape_is_refused(case: Case) -> None:
    shipped = _sources(case)
    del shipped[0]["manifest"]["targets"][0]["sources"][0]["pin"]
    assert "does not have the shape" in case.refused(overlays=shipped)


def test_two_overlays_on_one_file_are_refused(case: Case) -> None:
    case.write_overlay("second", {PATH: {"1.0": V1}})
    assert f"overlays demo and second both edit {PATH}" in case.refused("demo", "second")
    assert case.run("second")["changed"] is True


@pytest.mark.parametrize(
    "path", ["../etc/passwd.py", "/etc/x.py", "vllm/../../x.py", "vllm/x.txt", "", "a//b.py", "./a.py"]
)
def test_a_path_out_of_the_package_is_refused(case: Case, path: str) -> None:
    assert bad_path(path)
    shipped = _sources(case)
    shipped[0]["manifest"]["targets"][0]["paths"] = [path]
    assert f"target {path!r}" in case.refused(overlays=shipped)
    data = case.manifest()
    data["targets"][0]["paths"] = [path]
    case.write_manifest("demo", data)
    with pytest.raises(ManifestError, match="paths"):
        _sources(case)
    assert case.docker.calls == []


# --- manifests on the controller -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema"),
        ({"name": "other"}, "names overlay other, but its folder is demo"),
        ({"name": "Demo!"}, "name"),
        ({"targets": []}, "targets"),
        ({"surplus": 1}, "surplus"),
        ({"environment": ["lower"]}, "environment"),
        ({"selfcheck": "../x.py"}, "selfcheck"),
        ({"description": ""}, "description"),
    ],
)
def test_a_malformed_manifest_is_refused(case: Case, change: dict[str, Any], reason: str) -> None:
    case.write_manifest("demo", case.manifest() | change)
    with pytest.raises(ManifestError, match=reason) as caught:
        _sources(case)
    assert "manifest.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256_before": "abc"}, "sha256_before"),
        ({"engine": []}, "engine"),
        ({"pin": "hoped"}, "pin"),
        ({"diff": "../x.diff"}, "diff"),
        ({"sha256_before": sha(V2)}, "two sources pin the same text"),
        ({"sha256_after": sha(V2)}, "both the source and the result"),
    ],
)
def test_a_malformed_source_is_refused(case: Case, change: dict[str, Any], reason: str) -> None:
    data = case.manifest()
    data["targets"][0]["sources"][0].update(change)
    case.write_manifest("demo", data)
    with pytest.raises(ManifestError, match=reason):
        _sources(case)


def test_a_manifest_that_is_no_json_or_missing_is_refused(case: Case) -> None:
    (case.checkout / "demo" / "manifest.json").write_text("{")
    with pytest.raises(ManifestError, match="JSON"):
        _sources(case)
    (case.checkout / "demo" / "manifest.json").unlink()
    with pytest.raises(ManifestError, match="No such file"):
        _sources(case)


@pytest.mark.parametrize("name", ["width-1.0.diff", "selfcheck.py"])
def test_a_missing_file_of_an_overlay_is_refused(case: Case, name: str) -> None:
    (case.checkout / "demo" / name).unlink()
    with pytest.raises(ManifestError, match=name):
        _sources(case)


def test_an_overlay_that_does_not_exist_is_refused(case: Case) -> None:
    for name in ("other", "../demo", ""):
        with pytest.raises(ManifestError, match=r"there is no overlay .*known: demo"):
            ship(case.checkout, [{"name": name}])


@pytest.mark.parametrize("name", ["manifest.json", "width-1.0.diff", "selfcheck.py", "new.txt"])
def test_an_overlay_that_was_edited_after_planning_is_refused(case: Case, name: str) -> None:
    digest = overlay_digest(case.checkout / "demo")
    wanted = [{"name": "demo", "digest": digest}]
    assert ship(case.checkout, wanted)[0]["digest"] == digest
    with (case.checkout / "demo" / name).open("a") as stream:
        stream.write("\n")
    with pytest.raises(ManifestError, match="edited after it was planned"):
        ship(case.checkout, wanted)


# --- surveys, pins, proofs -------------------------------------------------------------------------------------------


def test_a_survey_of_a_pinned_image_proposes_its_label(case: Case) -> None:
    (look,) = case.survey()["looks"]
    assert look["known"] == "pinned"
    assert look["sha256"] == sha(V1)
    assert look["proposal"]["engine"] == ["1.0", "3.0"]
    assert [t["fits"] for t in look["tried"]] == ["2 of 2 hunks fit in place", "0 of 2 hunks fit in place, 2 elsewhere"]


def test_an_accepted_proposal_lets_the_image_in(case: Case) -> None:
    text = "# two new\n# lines\n" + V1
    case.put(PATH, text)
    assert "does not know" in case.refused()
    result = case.survey()
    (look,) = result["looks"]
    assert look["known"] == "unknown"
    assert look["problem"] == ""
    assert result["proofs"] == [{"overlay": "demo", "ok": True, "proved": ["it runs"]}]
    assert look["proposal"]["sha256_before"] == sha(text)
    assert look["proposal"]["sha256_after"] == sha(edit(text))
    assert look["proposal"]["pin"] == "tested"
    proposal = Proposal(case.checkout, result["looks"])
    shown = proposal.diff()
    assert f'+          "sha256_before": "{sha(text)}"' in shown
    assert "+++ b/overlays/demo/width-3.0.diff" in shown
    assert "does not know" in case.refused(), "a proposal that is only shown must change nothing"
    assert proposal.write() == [str(case.checkout / "demo" / n) for n in ("manifest.json", "width-3.0.diff")]
    assert case.run()["changed"] is True
    assert (case.destination / "demo" / PATH).read_text() == edit(text)
    assert Proposal(case.checkout, case.survey()["looks"]).diff() == ""


def test_accepting_twice_gives_the_same_files(case: Case) -> None:
    """Both ranks' actions may write, one after the other."""
    case.put(PATH, "# two new\n# lines\n" + V1)
    looks = case.survey()["looks"]
    Proposal(case.checkout, looks).write()
    first = overlay_digest(case.checkout / "demo")
    Proposal(case.checkout, looks).write()
    assert overlay_digest(case.checkout / "demo") == first


def test_a_failed_self_check_makes_a_pin_only_expected(case: Case) -> None:
    (case.checkout / "demo" / "selfcheck.py").write_text('print(\'{"ok": false, "problem": "no"}\')\n')
    case.put(PATH, "# two new\n# lines\n" + V1)
    result = case.survey()
    assert result["proofs"][0]["ok"] is False
    assert result["looks"][0]["proposal"]["pin"] == "expected"


@pytest.mark.parametrize(
    ("text", "known", "problem"),
    [
        (edit(V1), "already present", ""),
        (V1 + MARK, "partly present", "carries marks"),
        ("nothing = 0\n", "unknown", "no diff of overlay demo fits"),
    ],
)
def test_a_survey_does_not_fail_on_what_it_finds(case: Case, text: str, known: str, problem: str) -> None:
    case.put(PATH, text)
    (look,) = case.survey()["looks"]
    assert look["known"] == known
    assert problem in look["problem"]
    assert look["proposal"] is None


def test_a_survey_tells_a_missing_file_and_a_result_that_does_not_parse(case: Case) -> None:
    here = case.put(PATH, "# new (\n" + V1.replace("a1 = 1\n", "a1 = (\n"))
    (look,) = case.survey()["looks"]
    assert "does not parse" in look["problem"]
    assert look["proposal"] is None
    here.unlink()
    (look,) = case.survey()["looks"]
    assert "not in image" in look["problem"]


def test_a_survey_of_no_image_fails(case: Case) -> None:
    with pytest.raises(OverlayError, match="none:1 is not on this rank, nor is none:2, which it comes from"):
        overlay_module.look(case.params(image="none:1", source="none:2"), case.docker)


def test_a_survey_before_the_first_deploy_reads_what_the_image_comes_from(case: Case) -> None:
    result = overlay_module.look(case.params(image="sparkpair/engine:0", source=IMAGE), case.docker)
    assert [look["known"] for look in result["looks"]] == ["pinned"]


def test_proofs_come_from_the_running_container(case: Case) -> None:
    entries = case.run()["overlays"]
    (case.checkout / "demo" / "selfcheck.py").write_text(
        "import json, os\nprint('noise')\nprint(json.dumps({'ok': True, 'proved': [os.environ['SPARKPAIR_EXPECT']]}))\n"
    )
    result = overlay_module.prove(case.params(pins=entries), case.docker)
    (entry,) = result["proofs"]
    assert entry["ok"] is True
    assert json.loads(entry["proved"][0]) == {"overlay": "demo", "files": {PATH: sha(edit(V1))}}
    assert case.docker.calls[-1][:3] == ["docker", "exec", "-i"]


def test_an_overlay_without_a_pinned_file_is_not_proved(case: Case) -> None:
    (entry,) = overlay_module.prove(case.params(), case.docker)["proofs"]
    assert entry == {"overlay": "demo", "ok": False, "proved": [], "problem": "no pinned file of it is planned"}


@pytest.mark.parametrize(
    ("done", "ok"),
    [
        (Output(0, b'noise\n{"ok": true, "proved": []}\n', ""), True),
        (Output(0, b'{"ok": true}\nlate noise\n3\n', ""), True),
        (Output(1, b'{"ok": true}\n', ""), False),
        (Output(0, b'{"ok": false, "problem": "x"}\n', ""), False),
        (Output(0, b"", ""), False),
        (Output(137, b"", "Killed\n"), False),
    ],
)
def test_a_proof_is_the_last_json_line(done: Output, *, ok: bool) -> None:
    answer = proof(done)
    assert answer["ok"] is ok
    if done.err:
        assert "Killed" in answer["problem"]


# --- ranks and commands ----------------------------------------------------------------------------------------------


def test_ranks_that_agree_have_no_differences(case: Case) -> None:
    entries = case.run()["overlays"]
    assert differences({"spark-0": entries, "spark-1": entries}) == []
    assert differences({"spark-0": [], "spark-1": []}) == []


@pytest.mark.parametrize("how", ["text", "state", "absent"])
def test_ranks_that_differ_are_named(case: Case, how: str) -> None:
    one = case.run()["overlays"]
    if how == "text":
        case.put(PATH, V2)
    elif how == "state":
        case.put(PATH, edit(V1))
    other = [] if how == "absent" else case.run()["overlays"]
    (message,) = differences({"spark-0": one, "spark-1": other})
    assert f"{ROOT}/{PATH} is not the same on all ranks" in message
    assert "spark-0: applied" in message
    assert {"text": sha(V2)[:12], "state": "spark-1: already_present", "absent": "spark-1: absent"}[how] in message


def test_commands_are_run_with_bytes_limits_and_deadlines() -> None:
    python = sys.executable
    echo = run_binary([python, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"], stdin=b"\xff\0")
    assert (echo.rc, echo.out, echo.cut) == (0, b"\xff\0", False)
    failed = run_binary([python, "-c", "import sys; sys.exit('why\\n')"])
    assert (failed.rc, failed.why()) == (1, "why")
    assert run_binary(["/no/such/program"]).rc == 127
    late = run_binary([python, "-c", "import time; time.sleep(60)"], timeout=0.2)
    assert (late.rc, late.why()) == (124, f"{python}: no answer within 0 s")
    large = run_binary([python, "-c", "while True: print('x' * 1000)"])
    assert large.cut
    assert len(large.out) == 8 * 1024 * 1024
