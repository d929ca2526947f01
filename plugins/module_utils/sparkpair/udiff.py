"""Unified diffs, read and applied strictly: exact positions, exact context, no fuzz.

Works on bytes, so that a file with a stray encoding or carriage return stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: [^\n]*)?\n")
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
NO_NEWLINE = b"\\ No newline at end of file\n"


class DiffError(Exception):
    """The diff is not well formed, or does not fit the source; the message says where."""


@dataclass(frozen=True)
class Hunk:
    """Lines ``old`` at index ``at`` (from 0) of the source become ``new``; every line keeps its line end."""

    at: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    body: tuple[bytes, ...]


@dataclass(frozen=True)
class Diff:
    """A diff of one file: its path without the prefixes a/ and b/, and its hunks from top to bottom."""

    path: str
    hunks: tuple[Hunk, ...]


def lines(data: bytes) -> list[bytes]:
    """Split at line feeds and nowhere else; the line feeds stay."""
    return LINE.findall(data)


def parse(data: bytes) -> Diff:
    """Read a diff of exactly one file that exists before and after it. Raises DiffError."""
    rows = lines(data)
    if not data.endswith(b"\n"):
        raise DiffError("truncated: the last line has no line end")
    path = _path(rows, 0, b"--- a/")
    if path != _path(rows, 1, b"+++ b/"):
        raise DiffError("the two headers name different files")
    hunks: list[Hunk] = []
    at, shift = 2, 0
    while at < len(rows):
        hunk, new_at, after = _hunk(rows, at)
        if hunks and hunk.at < hunks[-1].at + len(hunks[-1].old):
            raise DiffError(f"line {at + 1}: hunks overlap or stand in the wrong order")
        if new_at != hunk.at + shift:
            raise DiffError(f"line {at + 1}: the hunk's new position does not follow from those above it")
        if hunk.old == hunk.new:
            raise DiffError(f"line {at + 1}: the hunk changes nothing")
        shift += len(hunk.new) - len(hunk.old)
        hunks.append(hunk)
        at = after
    if not hunks:
        raise DiffError("truncated: no hunk follows the headers")
    return Diff(path, tuple(hunks))


def _path(rows: Sequence[bytes], index: int, prefix: bytes) -> str:
    if index >= len(rows) or not rows[index].startswith(prefix):
        raise DiffError(f"line {index + 1}: expected a header {prefix.decode()}<path>")
    try:
        path = rows[index][len(prefix) :].decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise DiffError(f"line {index + 1}: the path is not UTF-8") from error
    if not path or "\t" in path:
        raise DiffError(f"line {index + 1}: the header must hold a path and nothing else")
    return path


def _index(start: bytes, count: int) -> int:
    # A range without lines names the line before it, all others their first line.
    first = int(start)
    if count and not first:
        raise DiffError("line numbers start at 1")
    return first if not count else first - 1


def _hunk(rows: Sequence[bytes], at: int) -> tuple[Hunk, int, int]:
    header = HEADER.fullmatch(rows[at])
    if header is None:
        raise DiffError(f"line {at + 1}: expected a hunk header, or more lines than the hunk above announces")
    counts = [1 if header[i] is None else int(header[i]) for i in (2, 4)]
    # What each side still has to get: unchanged lines count for both.
    left = list(counts)
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    body: list[bytes] = []
    row = at + 1
    last: tuple[int, ...] = ()
    while any(left) or (row < len(rows) and rows[row] == NO_NEWLINE):
        if row >= len(rows):
            raise DiffError(f"truncated: the hunk at line {at + 1} announces more lines than follow")
        mark, text = rows[row][:1], rows[row][1:]
        if rows[row] == NO_NEWLINE:
            if not last or not all(sides[side][-1].endswith(b"\n") for side in last):
                raise DiffError(f"line {row + 1}: a mark for a missing line end follows no line")
            for side in last:
                sides[side][-1] = sides[side][-1][:-1]
        else:
            touched = {b" ": (0, 1), b"-": (0,), b"+": (1,)}.get(mark)
            if touched is None or any(left[side] == 0 for side in touched):
                raise DiffError(f"line {row + 1}: does not agree with the counts of the hunk at line {at + 1}")
            last = touched
            for side in last:
                sides[side].append(text)
                left[side] -= 1
        body.append(rows[row])
        row += 1
    for kept in sides:
        if any(not line.endswith(b"\n") for line in kept[:-1]):
            raise DiffError(f"the hunk at line {at + 1} has a line without an end that is not its last")
    hunk = Hunk(_index(header[1], counts[0]), tuple(sides[0]), tuple(sides[1]), tuple(body))
    return hunk, _index(header[3], counts[1]), row


def apply(diff: Diff, source: bytes) -> bytes:
    """Apply every hunk at exactly its position, or raise DiffError and change nothing."""
    have = lines(source)
    result: list[bytes] = []
    done = 0
    for number, hunk in enumerate(diff.hunks, 1):
        end = hunk.at + len(hunk.old)
        if not _fits(have, hunk, hunk.at):
            raise DiffError(f"hunk {number} of {len(diff.hunks)} does not match the source at line {hunk.at + 1}")
        result += [*have[done : hunk.at], *hunk.new]
        done = end
    result += have[done:]
    if any(not line.endswith(b"\n") for line in result[:-1]):
        raise DiffError("a line without a line end would stand in the middle of the result")
    return b"".join(result)


def _fits(have: Sequence[bytes], hunk: Hunk, at: int) -> bool:
    return at <= len(have) and tuple(have[at : at + len(hunk.old)]) == hunk.old


def _places(have: Sequence[bytes], hunk: Hunk) -> list[int]:
    return [at for at in range(len(have) - len(hunk.old) + 1) if _fits(have, hunk, at)] if hunk.old else []


@dataclass(frozen=True)
class Fit:
    """How well a diff fits a source: hunks in place, hunks that fit in exactly one other place, hunks in all."""

    in_place: int
    moved: int
    hunks: int

    @property
    def exact(self) -> bool:
        """True when the diff applies as it is."""
        return self.in_place == self.hunks

    @property
    def distance(self) -> float:
        """0 for a diff that applies, 1 for one of which no hunk fits anywhere."""
        return 1 - (self.in_place + self.moved / 2) / self.hunks

    def __str__(self) -> str:
        text = f"{self.in_place} of {self.hunks} hunks fit in place"
        return f"{text}, {self.moved} elsewhere" if self.moved else text


def fit(diff: Diff, source: bytes) -> Fit:
    """Measure how well ``diff`` fits ``source``; never raises."""
    have = lines(source)
    in_place = [_fits(have, hunk, hunk.at) for hunk in diff.hunks]
    moved = [not there and len(_places(have, h)) == 1 for there, h in zip(in_place, diff.hunks, strict=True)]
    return Fit(sum(in_place), sum(moved), len(diff.hunks))


def relocate(diff: Diff, source: bytes) -> bytes:
    """Text of the same diff with the positions that its hunks have in ``source``.

    Raises DiffError unless the old lines of every hunk stand in exactly one place, in the same order. The result is a
    proposal for a person: nothing here applies it to an engine.
    """
    have = lines(source)
    text = [f"--- a/{diff.path}\n".encode(), f"+++ b/{diff.path}\n".encode()]
    end, shift = 0, 0
    for number, hunk in enumerate(diff.hunks, 1):
        places = _places(have, hunk)
        if len(places) != 1:
            raise DiffError(f"hunk {number} of {len(diff.hunks)} fits in {len(places)} places")
        place = places[0]
        if place < end:
            raise DiffError(f"hunk {number} of {len(diff.hunks)} would stand before the one above it")
        end = place + len(hunk.old)
        old, new = _range(place, len(hunk.old)), _range(place + shift, len(hunk.new))
        text += [f"@@ -{old} +{new} @@\n".encode(), *hunk.body]
        shift += len(hunk.new) - len(hunk.old)
    return b"".join(text)


def _range(at: int, count: int) -> str:
    return f"{at + 1 if count else at},{count}"
