"""The strict diff reader: what fits exactly is applied, anything else is refused with a reason."""

from __future__ import annotations

import difflib
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair import udiff
from sparkpair.udiff import DiffError

SOURCE = b"".join(b"line %d\n" % n for n in range(1, 21))
TWO = b"""--- a/p/x.py
+++ b/p/x.py
@@ -2,3 +2,4 @@
 line 2
-line 3
+LINE 3
+line 3b
 line 4
@@ -18,3 +19,2 @@
 line 18
-line 19
 line 20
"""
RESULT = SOURCE.replace(b"line 3\n", b"LINE 3\nline 3b\n").replace(b"line 19\n", b"")


def made(before: bytes, after: bytes) -> bytes:
    """A diff as diff -u writes it."""
    rows = [row.decode("latin-1") for row in udiff.lines(before)], [row.decode("latin-1") for row in udiff.lines(after)]
    text: list[bytes] = []
    for row in difflib.unified_diff(*rows, "a/p/x.py", "b/p/x.py"):
        raw = row.encode("latin-1")
        text.append(raw if raw.endswith(b"\n") else raw + b"\n" + udiff.NO_NEWLINE)
    return b"".join(text)


def test_two_hunks_are_applied() -> None:
    diff = udiff.parse(TWO)
    assert diff.path == "p/x.py"
    assert udiff.apply(diff, SOURCE) == RESULT


def test_a_second_application_is_refused() -> None:
    with pytest.raises(DiffError, match="hunk 1 of 2 does not match"):
        udiff.apply(udiff.parse(TWO), RESULT)


@pytest.mark.parametrize("line", [2, 3, 4, 18, 19, 20])
def test_every_line_of_a_hunk_must_match(line: int) -> None:
    drifted = SOURCE.replace(b"line %d\n" % line, b"line %d \n" % line)
    with pytest.raises(DiffError, match="does not match the source"):
        udiff.apply(udiff.parse(TWO), drifted)


def test_a_moved_place_is_refused_and_can_be_proposed() -> None:
    moved = b"one more\n" + SOURCE
    diff = udiff.parse(TWO)
    with pytest.raises(DiffError, match="does not match the source at line 2"):
        udiff.apply(diff, moved)
    assert str(udiff.fit(diff, moved)) == "0 of 2 hunks fit in place, 2 elsewhere"
    text = udiff.relocate(diff, moved)
    assert b"@@ -3,3 +3,4 @@" in text
    assert b"@@ -19,3 +20,2 @@" in text
    assert udiff.apply(udiff.parse(text), moved) == b"one more\n" + RESULT


def test_an_ambiguous_place_is_not_proposed() -> None:
    with pytest.raises(DiffError, match="hunk 1 of 2 fits in 2 places"):
        udiff.relocate(udiff.parse(TWO), SOURCE + SOURCE)
    with pytest.raises(DiffError, match="hunk 1 of 2 fits in 0 places"):
        udiff.relocate(udiff.parse(TWO), b"")


def test_hunks_in_another_order_are_not_proposed() -> None:
    rows = udiff.lines(SOURCE)
    with pytest.raises(DiffError, match="would stand before"):
        udiff.relocate(udiff.parse(TWO), b"".join(rows[10:] + rows[:10]))


@pytest.mark.parametrize("cut", range(1, len(udiff.lines(TWO))))
def test_a_diff_cut_at_any_line_is_refused_or_ends_with_a_hunk(cut: int) -> None:
    text = b"".join(udiff.lines(TWO)[:cut])
    if cut == 8:
        assert len(udiff.parse(text).hunks) == 1  # a whole hunk: the checksum in the manifest tells this one
    else:
        with pytest.raises(DiffError, match=r"truncated|expected a header"):
            udiff.parse(text)


def test_a_diff_cut_within_its_last_line_is_refused() -> None:
    with pytest.raises(DiffError, match="no line end"):
        udiff.parse(TWO[:-1])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"-2,3 +2,4", b"-2,3 +2,5", "does not agree|announces"),
        (b"-2,3 +2,4", b"-2,2 +2,4", "does not agree"),
        (b"-2,3 +2,4", b"-2,4 +2,4", "does not agree"),
        (b"-18,3 +19,2", b"-18,3 +18,2", "new position"),
        (b"-18,3 +19,2", b"-3,3 +4,2", "overlap"),
        (b"-2,3 +2,4", b"-0,3 +0,4", "start at 1"),
        (b"@@ -2,3 +2,4 @@", b"@@ -2,3 @@", "hunk header"),
        (b"+++ b/p/x.py", b"+++ b/p/y.py", "different files"),
        (b"--- a/p/x.py", b"--- p/x.py", "expected a header"),
        (b"--- a/p/x.py", b"--- a/p/x.py\t2026-01-01", "a path and nothing else"),
        (b"--- a/p/x.py", b"--- a/p/\xff.py", "not UTF-8"),
        (b"--- a/p/x.py\n", b"", "expected a header"),
        (b"+LINE 3\n", b"", "does not agree|announces"),
        (b"-line 19\n", b"*line 19\n", "does not agree"),
        (b" line 4\n", b" line 4\n junk\n", "expected a hunk header"),
        (b"@@ -2,3", b"\\ No newline at end of file\n@@ -2,3", "expected a hunk header"),
        (b"-2,3 +2,4 @@\n", b"-2,3 +2,4 @@\n\\ No newline at end of file\n", "follows no line"),
        (b" line 2\n", b" line 2\n\\ No newline at end of file\n", "not its last"),
    ],
)
def test_an_edited_diff_is_refused(old: bytes, new: bytes, reason: str) -> None:
    assert TWO.count(old) >= 1
    with pytest.raises(DiffError, match=reason):
        udiff.parse(TWO.replace(old, new, 1))


def test_a_hunk_without_a_change_is_refused() -> None:
    with pytest.raises(DiffError, match="changes nothing"):
        udiff.parse(b"--- a/x.py\n+++ b/x.py\n@@ -1,1 +1,1 @@\n line\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb", b"a\nc"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nb"),
        (b"a\n", b"a\nb"),
        (b"a", b""),
        (b"", b"a"),
        (b"", b"a\n"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"\xff\n\x0c\n", b"\xfe\n\x0c\n"),
    ],
)
def test_line_ends_are_kept(before: bytes, after: bytes) -> None:
    diff = udiff.parse(made(before, after))
    assert udiff.apply(diff, before) == after


def test_a_missing_line_end_must_stay_at_the_end() -> None:
    diff = udiff.parse(b"--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n+b\n\\ No newline at end of file\n")
    assert udiff.apply(diff, b"a\n") == b"b"
    with pytest.raises(DiffError, match="middle of the result"):
        udiff.apply(diff, b"a\nc\n")


def test_hunk_headers_may_name_a_section_and_leave_out_a_count_of_one() -> None:
    text = b"--- a/x\n+++ b/x\n@@ -2 +2 @@ def f():\n-line 2\n+LINE 2\n"
    assert udiff.apply(udiff.parse(text), SOURCE) == SOURCE.replace(b"line 2\n", b"LINE 2\n")


TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n"]), max_size=30)


@settings(deadline=None)
@given(before=TEXT, after=TEXT, end=st.booleans())
def test_any_diff_turns_one_text_into_the_other(before: list[bytes], after: list[bytes], *, end: bool) -> None:
    old, new = b"".join(before), b"".join(after) if end else b"".join(after).rstrip(b"\n")
    if old == new:
        return
    diff = udiff.parse(made(old, new))
    assert udiff.apply(diff, old) == new
    assert udiff.fit(diff, old).exact


@settings(deadline=None)
@given(before=TEXT, after=TEXT, seed=st.integers(0, 1000))
def test_no_single_edit_of_a_diff_gives_a_third_text(before: list[bytes], after: list[bytes], seed: int) -> None:
    """A dropped or doubled line of a diff is refused by the reader or by the source, or it was redundant."""
    old, new = b"".join(before), b"".join(after)
    if old == new:
        return
    rows = udiff.lines(made(old, new))
    at = random.Random(seed).randrange(2, len(rows))  # noqa: S311 - not a secret
    for edited in (rows[:at] + rows[at + 1 :], rows[: at + 1] + rows[at:]):
        if re.match(rb"@@", rows[at]):
            with pytest.raises(DiffError):
                udiff.parse(b"".join(edited))
            continue
        with pytest.raises(DiffError):
            udiff.apply(udiff.parse(b"".join(edited)), old)
