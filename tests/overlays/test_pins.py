"""Pins against the real sources of every release."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sparkpair import overlay as engine_side
from sparkpair.overlay import ALREADY, APPLIED, OverlayError, sha256
from sparkpair.overlay_manifest import load

from tests.overlays.engine import FOLDER, overlaid, parses, resolved
from tests.overlays.sources import GDN, PACKAGES, UTILS

pytestmark = pytest.mark.sources
Pristine = Callable[[str], dict[str, bytes]]
MODEL_RELEASES = [release for release in PACKAGES if release >= "0.30"]
CASES = [("verify_width", release) for release in PACKAGES]
CASES += [("gdn_runtime_width", release) for release in MODEL_RELEASES]


def edited(name: str, files: dict[str, bytes]) -> list[str]:
    """Paths of ``files`` that the overlay edits."""
    return [p for t in load(FOLDER / name).targets for p in t.paths if p in files]


@pytest.mark.parametrize(("name", "release"), CASES)
def test_every_release_is_pinned_before_and_after(pristine: Pristine, name: str, release: str) -> None:
    files = pristine(release)
    results = resolved(name, files)
    assert sorted(r.path for r in results) == sorted(edited(name, files))
    for result in results:
        assert result.state == APPLIED
        assert release in result.source.engine
        assert result.source.pin == "tested"
        assert sha256(result.before) == result.source.sha256_before
        assert sha256(result.after) == result.source.sha256_after


@pytest.mark.parametrize(("name", "release"), CASES)
def test_a_second_application_changes_nothing(pristine: Pristine, name: str, release: str) -> None:
    results = resolved(name, overlaid(name, pristine(release)))
    assert {r.state for r in results} == {ALREADY}


@pytest.mark.parametrize(("name", "release"), CASES)
@pytest.mark.parametrize("where", [0, 0.5, 1], ids=["first", "middle", "last"])
def test_one_changed_byte_is_refused(pristine: Pristine, name: str, release: str, where: float) -> None:
    files = pristine(release)
    for path in edited(name, files):
        at = int(where * (len(files[path]) - 1))
        drifted = files[path][:at] + bytes([files[path][at] ^ 1]) + files[path][at + 1 :]
        with pytest.raises(OverlayError) as caught:
            resolved(name, files | {path: drifted})
        assert sha256(drifted) in str(caught.value)
        assert path in str(caught.value)
        assert f"vLLM {release}" in str(caught.value) or release in str(caught.value)
        assert "playbooks/pin.yml" in str(caught.value)


@pytest.mark.parametrize(("name", "release"), CASES)
def test_a_part_of_the_edit_is_refused(pristine: Pristine, name: str, release: str) -> None:
    files = pristine(release)
    whole = overlaid(name, files)
    for path in edited(name, files):
        lines = whole[path].splitlines(keepends=True)
        mark = next(i for i, line in enumerate(lines) if b"sparkpair overlay" in line)
        partial = b"".join(lines[:mark] + lines[mark + 1 :])
        with pytest.raises(OverlayError, match=r"a part of|does not know"):
            resolved(name, files | {path: partial})
        only_mark = files[path] + b"# sparkpair overlay: " + name.encode() + b"\n"
        with pytest.raises(OverlayError, match="carries some marks"):
            resolved(name, files | {path: only_mark})


@pytest.mark.parametrize("release", MODEL_RELEASES)
def test_one_of_two_files_edited_is_refused(pristine: Pristine, release: str) -> None:
    files = pristine(release)
    for path in edited("gdn_runtime_width", files):
        half = files | {path: overlaid("gdn_runtime_width", files)[path]}
        with pytest.raises(OverlayError, match="has a part of overlay gdn_runtime_width already"):
            resolved("gdn_runtime_width", half)


def test_files_of_two_releases_do_not_mix(pristine: Pristine) -> None:
    files = pristine("0.32.0")
    with pytest.raises(OverlayError, match="mixes files"):
        resolved("gdn_runtime_width", files | {GDN: pristine("0.31.0")[GDN]})


@pytest.mark.parametrize("release", [r for r in PACKAGES if r < "0.30"])
def test_releases_without_the_model_are_refused(pristine: Pristine, release: str) -> None:
    with pytest.raises(OverlayError, match="glm5next"):
        resolved("gdn_runtime_width", pristine(release))


@pytest.mark.parametrize("name", ["0.27.1", "0.28.0", "extracted", "moved"])
def test_candidates_of_the_pinned_build_are_expected_and_not_tested(
    built: Callable[[str], bytes], pristine: Pristine, name: str
) -> None:
    text = built(name)
    pins = [s for t in load(FOLDER / "gdn_runtime_width").targets for s in t.sources if s.sha256_before == sha256(text)]
    assert [(p.engine, p.pin) for p in pins] == [(["487ecf187"], "expected")]
    # Its kda.py is unknown: with that of a release the files do not belong together, and a person must look.
    with pytest.raises(OverlayError, match=r"mixes files.*pin\.yml"):
        resolved("gdn_runtime_width", pristine("0.30.0") | {GDN: text})


def test_first_contact_with_the_pinned_build_can_be_accepted(built: Callable[[str], bytes], pristine: Pristine) -> None:
    """A text that no pin knows, with lines moved: the survey proposes pins, and they hold."""
    shifted = built("moved").replace(b"from dataclasses", b"# one more line\n\nfrom dataclasses", 1)
    files = pristine("0.30.0") | {GDN: shifted}
    from tests.overlays.engine import overlay

    looks = engine_side.survey(
        [overlay("gdn_runtime_width"), overlay("verify_width")],
        "an-image",
        "487ecf187",
        lambda paths: {
            p: engine_side.Found("file", files[p]) if p in files else engine_side.Found("missing") for p in paths
        },
        parses,
    )
    gdn, kda, utils = looks
    assert (gdn.known, kda.known, utils.known) == ("unknown", "pinned", "pinned")
    assert gdn.diff
    assert gdn.proposal
    assert gdn.proposal["engine"] == ["487ecf187"]
    assert kda.proposal
    assert kda.proposal["engine"] == ["0.30.0", "0.31.0", "487ecf187"]
    assert sha256(gdn.after) == gdn.proposal["sha256_after"]
    assert b"conv_query_len" in gdn.after


@pytest.mark.parametrize("release", PACKAGES)
def test_pins_are_those_that_others_published(pristine: Pristine, release: str) -> None:
    known = {
        "0.26.0": ("39ebdfdc", "5cb3f14f"),
        "0.27.1": ("39ebdfdc", "d11785f3"),
        "0.28.0": ("39ebdfdc", "fda86b96"),
        "0.29.0": ("39ebdfdc", "c65552d9"),
        "0.30.0": ("282f2929", "38310194"),
        "0.31.0": ("282f2929", "496f3832"),
        "0.32.0": ("7a7e245e", "ce951db9"),
        "0.33.0": ("7a7e245e", "90f67d9f"),
    }
    files = pristine(release)
    assert tuple(sha256(files[p])[:8] for p in (UTILS, GDN)) == known[release]
