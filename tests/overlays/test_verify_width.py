"""Overlay verify_width: the patched class of every release, called with real tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.overlays.engine import load, overlaid
from tests.overlays.sources import PACKAGES, UTILS

pytestmark = pytest.mark.sources
VARIABLES = ("DFLASH_VERIFY_TOKENS", "SPARKPAIR_STRUCTURED_WIDTH")
TEXTS = ["0.26.0", "0.30.0", "0.32.0"]


class NoStream:
    """A CUDA stream or event on a machine without CUDA."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def wait_stream(self, _stream: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "Event", NoStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: NoStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None, raising=False)


@pytest.fixture(params=TEXTS)
def make(request: pytest.FixtureRequest, pristine: Callable[[str], dict[str, bytes]]) -> Iterator[Callable[[], Any]]:
    with load(overlaid("verify_width", pristine(request.param))) as engine:
        yield engine.module(UTILS).DraftTokensHandler


TOKENS = torch.arange(21).reshape(3, 7)
IDS = ["c", "a", "b"]


def publish(handler: Any, *, structured: bool, tokens: torch.Tensor = TOKENS) -> list[list[int]]:
    batch = SimpleNamespace(req_ids=IDS, has_structured_output_reqs=structured)
    handler.set_draft_tokens(batch, tokens)
    published = handler.get_draft_tokens()
    assert published.req_ids is batch.req_ids
    assert published.req_ids == ["c", "a", "b"]
    return [list(row) for row in published.draft_token_ids]


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("mode", ["stock", "uniform", None])
def test_ordinary_batches_publish_the_prefix(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, width: int, mode: str | None
) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", str(width))
    if mode:
        monkeypatch.setenv("SPARKPAIR_STRUCTURED_WIDTH", mode)
    handler = make()
    assert publish(handler, structured=False) == [[-1] * width] * 3
    assert handler.draft_tokens_np is None


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize(("mode", "narrow"), [("stock", False), (None, False), ("uniform", True)])
def test_structured_and_mixed_batches_follow_their_mode(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, width: int, mode: str | None, narrow: bool
) -> None:
    """One structured request makes the whole batch a structured one, so mixed batches take this path."""
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", str(width))
    if mode:
        monkeypatch.setenv("SPARKPAIR_STRUCTURED_WIDTH", mode)
    handler = make()
    keep = width if narrow else 7
    for structured in (True, False, True):
        wanted = TOKENS[:, :keep].tolist() if structured else [[-1] * width] * 3
        assert publish(handler, structured=structured) == wanted


@pytest.mark.parametrize("width", [1, 3])
def test_a_tensor_that_the_runner_narrowed_stays_as_it_is(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", str(width))
    narrowed = TOKENS[:, :width]
    for mode in ("stock", "uniform"):
        monkeypatch.setenv("SPARKPAIR_STRUCTURED_WIDTH", mode)
        assert publish(make(), structured=True, tokens=narrowed) == narrowed.tolist()
        assert publish(make(), structured=False, tokens=narrowed) == [[-1] * width] * 3


@pytest.mark.parametrize("value", ["0", "8", "-1", "abc", "", "3.0", " 3", "1_0", "\u0663"])
@pytest.mark.parametrize("structured", [False, True])
def test_other_values_are_refused_with_both_widths(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, value: str, structured: bool
) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", value)
    with pytest.raises(RuntimeError) as caught:
        publish(make(), structured=structured)
    assert repr(value) in str(caught.value)
    assert "proposal width 7" in str(caught.value)


def test_an_absent_value_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"DFLASH_VERIFY_TOKENS=''.*proposal width 7"):
        publish(make(), structured=False)


def test_a_proposal_that_becomes_too_narrow_is_refused(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", "3")
    handler = make()
    publish(handler, structured=False)
    with pytest.raises(RuntimeError, match="DFLASH_VERIFY_TOKENS=3 exceeds the proposal width 2"):
        publish(handler, structured=False, tokens=TOKENS[:, :2])


def test_nothing_proposed_is_nothing_published(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", "3")
    assert publish(make(), structured=False, tokens=TOKENS[:, :0]) == [[], [], []]


def test_an_unknown_mode_is_refused(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", "3")
    monkeypatch.setenv("SPARKPAIR_STRUCTURED_WIDTH", "half")
    with pytest.raises(RuntimeError, match="half"):
        publish(make(), structured=False)


def test_the_environment_is_read_once_and_not_before_the_first_step(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray sets it after the import, and after the handler was made."""
    handler = make()
    monkeypatch.setenv("DFLASH_VERIFY_TOKENS", "3")
    assert publish(handler, structured=False) == [[-1] * 3] * 3
    monkeypatch.delenv("DFLASH_VERIFY_TOKENS")
    monkeypatch.setattr(os.environ, "get", lambda *_: pytest.fail("the environment was read again"))
    assert publish(handler, structured=False) == [[-1] * 3] * 3


@pytest.mark.parametrize("release", list(PACKAGES))
def test_the_self_check_passes_with_the_overlay_and_fails_without(
    pristine: Callable[[str], dict[str, bytes]], selfcheck: Callable[[str], ModuleType], release: str
) -> None:
    check = selfcheck("verify_width")
    with load(overlaid("verify_width", pristine(release))) as engine:
        make = engine.module(UTILS).DraftTokensHandler
        for width in (1, 3, 7):
            for mode in ("stock", "uniform"):
                check.check_width(make, torch, width, mode)
        check.check_refusals(make, torch)
        check.check_lazy(make, torch)
    with load(pristine(release)) as engine, pytest.raises(check.CheckError):
        check.check_width(engine.module(UTILS).DraftTokensHandler, torch, 3, "stock")
