"""A setting that must be there before Triton is imported, and the sources of each release."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

os.environ["TRITON_INTERPRET"] = "1"

from tests.overlays.sources import UnreachableError, candidates, sources

OVERLAYS = Path(__file__).resolve().parents[2] / "files" / "overlays"


@pytest.fixture
def pristine() -> Callable[[str], dict[str, bytes]]:
    """Sources of a release, or the reason why there are none."""

    def get(release: str) -> dict[str, bytes]:
        try:
            return dict(sources(release))
        except UnreachableError as error:
            pytest.skip(f"the package index cannot be reached and .cache/sources does not have it: {error}")

    return get


@pytest.fixture
def built() -> Callable[[str], bytes]:
    """A candidate text of gdn_attn.py for the pinned build."""

    def get(name: str) -> bytes:
        try:
            return candidates()[name]
        except UnreachableError as error:
            pytest.skip(f"the package index cannot be reached and .cache/sources does not have it: {error}")

    return get


@pytest.fixture
def selfcheck() -> Callable[[str], ModuleType]:
    """The self-check of an overlay as a module."""

    def get(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"selfcheck_{name}", OVERLAYS / name / "selfcheck.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return get
