"""Collects what a run did, and writes ``reports/<verb>/<UTC time>/result.json``. Controller only."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KEY = "sparkpair_report"
PLAN_KEYS = (
    "release",
    "endpoint",
    "verify_tokens",
    "dflash_tokens",
    "spec_method",
    "expected_width",
    "executor",
    "image",
)


@dataclass
class Report:
    """Everything known of one run so far; ``merge`` takes fragments that results carry under ``KEY``."""

    verb: str
    check_mode: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    outcome: str | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    gates: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    changed: bool = False

    def merge(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment: lists and files grow (ranks are replaced), plan and other keys are overwritten."""
        for key, value in fragment.items():
            if key == "plan":
                self.plan |= {k: value[k] for k in PLAN_KEYS if k in value}
            elif key in {"gates", "findings", "messages"}:
                getattr(self, key).extend(item for item in value if item not in getattr(self, key))
            elif key == "files":
                self.files |= value
            elif key == "ranks":
                self.ranks = list(value)
            elif key == "outcome":
                self.outcome = str(value)
            else:
                self.extra[key] = value

    def result(self, *, failed: bool) -> dict[str, Any]:
        """The content of result.json. Without a stated outcome it is ``failed`` or ``ok``."""
        return {
            "verb": self.verb,
            "outcome": self.outcome or ("failed" if failed else "ok"),
            "check_mode": self.check_mode,
            "changed": self.changed,
            "started": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "release": self.plan.get("release"),
            "endpoint": self.plan.get("endpoint"),
            "verify_tokens": self.plan.get("verify_tokens"),
            "dflash_tokens": self.plan.get("dflash_tokens"),
            "spec_method": self.plan.get("spec_method"),
            "draft_tokens_per_step": None,
            "gates": self.gates,
            "ranks": self.ranks,
            "findings": self.findings,
            "messages": self.messages,
            "files": sorted(self.files),
            "phases": [{"name": name, "seconds": round(seconds, 2)} for name, seconds in self.phases.items()],
            **self.extra,
        }

    def write(self, root: Path, *, failed: bool) -> Path:
        """Write result.json below ``root`` and move ``latest`` there; a check-mode run does not move it."""
        base = root / self.verb
        base.mkdir(parents=True, exist_ok=True)
        stamp = self.started.strftime("%Y%m%dT%H%M%SZ") + ("-check" if self.check_mode else "")
        folder, count = base / stamp, 1
        while True:
            try:
                folder.mkdir()
                break
            except FileExistsError:
                count += 1
                folder = base / f"{stamp}-{count}"
        latest = base / "latest"
        try:
            for name, text in self.files.items():
                target = folder / name
                if folder.resolve() not in target.resolve().parents:
                    raise ValueError(f"{name} leaves the report")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            path = folder / "result.json"
            path.write_text(json.dumps(self.result(failed=failed), indent=1, ensure_ascii=False) + "\n")
        except OSError:
            # A full disk: neither half a result may be read, nor that of an earlier run for this one.
            shutil.rmtree(folder, ignore_errors=True)
            if latest.is_symlink() and not self.check_mode:
                latest.unlink()
            raise
        if not self.check_mode:
            # A link of its own name and a rename, so that a reader never finds "latest" missing.
            with tempfile.TemporaryDirectory(dir=base, prefix=".latest-") as fresh:
                (Path(fresh) / "link").symlink_to(folder.name)
                (Path(fresh) / "link").replace(latest)
        return path
