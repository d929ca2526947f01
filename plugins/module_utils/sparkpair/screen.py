"""Short tables for the operator's screen. Controller only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from .live import Verdict
from .memory import gib
from .room import full


class Unbroken:
    """A text stream to which writing never fails: what it cannot take (a pipe whose reader has ended, a terminal that
    is gone, a file on a disk that is full by now) goes nowhere.

    Ansible ends in the middle of a task where its screen breaks, and what it was to put back stays as it is.
    """

    def __init__(self, stream: TextIO) -> None:
        """Wrap ``stream``, which has a file descriptor."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Everything but writing is the stream's own."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or do nothing; the number of characters as of ``TextIO.write``."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or do nothing."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if full(error):
            # There may be room again for what is still to be said.
            return
        # Below the stream, so that what it holds in its buffer, and whoever else writes there, finds an end as well.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows under a header, columns aligned left, None shown as a dash."""
    cells = [[str(c) for c in header], *[["-" if c is None else str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def duration(seconds: float) -> str:
    """Seconds for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def noted(host: str, note: Mapping[str, Any]) -> str:
    """A line about work on an image, as ``image_job.look`` gives it: layers or bytes, rate, and time left or spent."""
    done, of, rate = note["done"], note["of"], note["rate"]
    parts = [f"{host}: {note['doing']}"]
    if note["unit"] == "layers":
        parts.append(f"{done} of {of} layers")
    elif note["unit"] == "bytes":
        parts.append(f"{gib(done)} of {gib(of)}" if of else gib(done))
        if rate:
            parts.append(f"{gib(rate)}/s")
    # The size that Docker states is not quite that of its archive.
    left = (of - done) / rate if note["unit"] == "bytes" and rate else 0
    parts.append(f"{duration(left)} left" if left > 0 else f"since {duration(note['seconds'])}")
    return ", ".join(parts)


def short_image(image: str | None) -> str | None:
    """An image reference that fits a table: the name's last part, a digest cut to 12 digits."""
    if image is None:
        return None
    name, _, digest = image.rsplit("/", 1)[-1].partition("@sha256:")
    return f"{name}@{digest[:12]}" if digest else name


def history_table(entries: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> list[str]:
    """The table of ``history.yml``: one line for each run, the latest last."""
    if not entries:
        return ["no run is on record"]
    rows = []
    for entry in entries:
        missing = [names[rank] for rank in sorted(names) if rank not in entry["ranks"]]
        where = "all ranks" if not missing else f"not on {', '.join(missing)}"
        passed = [gate for gate in entry.get("gates") or [] if gate["ok"] and not gate.get("skipped")]
        start = entry.get("start_seconds")
        rows.append(
            (
                entry.get("time"),
                entry.get("verb"),
                entry["outcome"],
                entry["release"] or None,
                "mtp" if entry.get("spec_method") == "mtp" else entry.get("verify_tokens"),
                f"{start:.0f} s" if start else None,
                len(passed) or None,
                entry.get("who"),
                where,
                entry.get("reason") or None,
            )
        )
    return table(("time", "verb", "outcome", "release", "width", "start", "gates", "who", "record", "reason"), rows)


def status_table(
    plan: Mapping[str, Any] | None,
    ranks: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any] | None],
    judged: Verdict,
) -> list[str]:
    """The table of ``status.yml`` and the sentence under it."""
    rows = []
    for rank in ranks:
        state = states[rank["rank"]]
        alive = (state or {}).get("ray") or (states.get(0) or {}).get("ray") or {"alive": []}
        in_ray = "alive" if rank["address"] in alive["alive"] else "-"
        if plan and plan["executor"] != "ray":
            in_ray = "not used"
        engine = rank["container_state"] or ("unreachable" if not rank["reached"] else "no container")
        rows.append((rank["rank"], rank["name"], rank["release"], short_image(rank["image"]), engine, in_ray))
    lines = table(("rank", "host", "release", "image", "engine", "ray"), rows)
    if judged.serving and judged.probe and plan:
        width = judged.probe.draft_tokens_per_step
        drafts = "no speculation" if width is None else f"{width:.1f} draft tokens per step"
        lines.append(f"serving at {plan['endpoint']}: {judged.probe.tokens_per_second} tokens/s in the probe, {drafts}")
    else:
        lines += ["not serving:", *(f"  - {reason}" for reason in judged.reasons)]
    return lines
