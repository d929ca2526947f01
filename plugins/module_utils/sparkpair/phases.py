"""What a starting engine is doing, read from its log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# In the order in which a start passes through them, each with the log text that shows it.
_MARKS: tuple[tuple[str, str], ...] = (
    ("creating", r"(?!)"),
    ("joining Ray", r"\[sparkpair\] (ray|waiting for ranks)"),
    ("starting engine", r"\[sparkpair\] exec vllm|Initializing a V1 LLM engine|Connecting to existing Ray"),
    ("loading weights", r"Starting to load model|Loading (safetensors|pt) checkpoint|Loading weights took"),
    ("profiling memory", r"Model loading took|Available KV cache memory|(GPU|CPU) KV cache size"),
    ("capturing graphs", r"Capturing CUDA graph|Graph capturing finished|Warming up model|Dynamo bytecode transform"),
    ("serving", r"Application startup complete|\[sparkpair\] joined as a worker"),
)
PHASES = tuple(name for name, _ in _MARKS)

# A line of these means that the start cannot succeed any more, although the process may linger for minutes.
_FATAL = re.compile(
    r"torch\.OutOfMemoryError|CUDA out of memory|ray\.exceptions\.OutOfMemoryError|"
    r"ibv_modify_qp failed|ibv_reg_mr.*failed|ncclSystemError|ncclInvalidUsage|"
    r"Engine core initialization failed|EngineCore failed to start|WorkerProc failed to start|"
    r"error: unrecognized arguments|\[sparkpair\] fatal"
)
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Progress:
    """The phase a start has reached, the line that showed it, and the first fatal line (None while there is none)."""

    phase: str
    detail: str
    fatal: str | None


def plain(line: str) -> str:
    """A log line without Docker's timestamp and without colour codes."""
    return _ANSI.sub("", _STAMP.sub("", line, count=1)).rstrip()


def follow(lines: Iterable[str], before: Progress | None = None) -> Progress:
    """Progress after ``lines``, starting from ``before``; a phase never goes back."""
    phase, detail = (before.phase, before.detail) if before else (PHASES[0], "")
    fatal = before.fatal if before else None
    for raw in lines:
        line = plain(raw)
        for name, mark in _MARKS:
            if re.search(mark, line) and PHASES.index(name) >= PHASES.index(phase):
                phase, detail = name, line[:160]
        if fatal is None and _FATAL.search(line):
            fatal = line[:300]
    return Progress(phase, detail, fatal)
