"""Overlay gdn_runtime_width: the patched builder and layer of every release, with the real kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.overlays import kda
from tests.overlays.engine import Engine, load, overlaid, overlay
from tests.overlays.sources import GDN

pytestmark = pytest.mark.sources
RELEASES = ["0.30.0", "0.31.0", "0.32.0", "0.33.0"]
CANDIDATES = ["0.27.1", "0.28.0", "extracted", "moved"]
Pristine = Callable[[str], dict[str, bytes]]
CLOSE = 1e-4
FAR = 1e-2


def layer_path(release: str) -> str:
    return f"vllm/models/glm5next/{'nvidia' if release < '0.31' else 'common'}/kda.py"


@pytest.fixture(params=RELEASES)
def engine(request: pytest.FixtureRequest, pristine: Pristine) -> Iterator[tuple[str, Engine]]:
    with load(overlaid("gdn_runtime_width", pristine(request.param))) as loaded:
        yield request.param, loaded


@pytest.fixture(params=[False, True], ids=["eager", "staged"])
def graphs(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# --- the builder -----------------------------------------------------------------------------------------------------


def test_every_request_keeps_its_start_slot(
    engine: tuple[str, Engine], selfcheck: Callable[[str], ModuleType], graphs: bool
) -> None:
    check = selfcheck("gdn_runtime_width")
    check.check_builder(engine[1].module(GDN), torch, graphs=graphs)
    check.check_nothing_drafted(engine[1].module(GDN), torch)
    check.check_layer(engine[1].module(GDN), engine[1].module(layer_path(engine[0])), torch)


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_of_the_pinned_build_keep_start_slots(
    built: Callable[[str], bytes], selfcheck: Callable[[str], ModuleType], name: str, graphs: bool
) -> None:
    from sparkpair import udiff
    from sparkpair.overlay import sha256

    text, ours = built(name), overlay("gdn_runtime_width")
    (source,) = (s for t in ours.targets for s in t.sources if s.sha256_before == sha256(text))
    after = udiff.apply(udiff.parse(ours.diffs[source.diff]), text)
    assert sha256(after) == source.sha256_after
    check = selfcheck("gdn_runtime_width")
    with load({GDN: after}) as loaded:
        check.check_builder(loaded.module(GDN), torch, graphs=graphs)
        check.check_nothing_drafted(loaded.module(GDN), torch)


@pytest.mark.parametrize("release", RELEASES)
def test_the_self_check_fails_without_the_overlay(
    pristine: Pristine, selfcheck: Callable[[str], ModuleType], release: str
) -> None:
    with load(pristine(release)) as stock, pytest.raises(AttributeError, match="conv_query_len"):
        selfcheck("gdn_runtime_width").check_builder(stock.module(GDN), torch, graphs=True)


def test_table_and_buffers_are_those_of_stock(engine: tuple[str, Engine], pristine: Pristine, graphs: bool) -> None:
    def shapes(loaded: Engine) -> dict[str, Any]:
        builder = kda.make_builder(loaded, graphs=graphs)
        return {k: (v.shape, v.dtype) for k, v in vars(builder).items() if isinstance(v, torch.Tensor)}

    ours = shapes(engine[1])
    assert ours["spec_state_indices_tensor"][0] == (kda.REQUESTS * kda.COLUMNS, kda.COLUMNS)
    with load(pristine(engine[0])) as stock:
        assert shapes(stock) == ours


@pytest.mark.parametrize("lengths", [[8, 8, 8], [4, 4, 4], [2, 2, 2], [8, 4, 4], [1, 4, 2], [3, 3, 3], [6, 5, 1]])
def test_metadata_is_that_of_stock_beside_the_new_length(
    engine: tuple[str, Engine], pristine: Pristine, graphs: bool, lengths: list[int]
) -> None:
    def built_metadata(loaded: Engine) -> dict[str, Any]:
        pair = kda.Pair(loaded, layer_path(engine[0]), graphs=graphs)
        batch = [pair.admit() for _ in lengths]
        for request, accepted in zip(batch, (6, 2, 8), strict=True):
            request.accepted = accepted
        return dict(vars(pair.metadata(batch, lengths)))

    ours = built_metadata(engine[1])
    length = ours.pop("conv_query_len")
    # The next power of two, so that ragged batches compile few kernels, and never less than the longest row.
    assert type(length) is int
    assert length == {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}[max(lengths)]
    with load(pristine(engine[0])) as stock:
        theirs = built_metadata(stock)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        same = torch.equal(ours[key], value) if isinstance(value, torch.Tensor) else ours[key] == value
        assert same, key


def test_a_prefill_in_the_batch_counts_for_nothing(engine: tuple[str, Engine], graphs: bool) -> None:
    """The convolution of speculative rows is not that of prompts, which may be a thousand rows long."""
    builder = kda.make_builder(engine[1], graphs=graphs)
    builder._build_chunk_metadata = lambda *_: (None, None)
    starts = torch.tensor([0, 4, 24, 32], dtype=torch.int32)
    table = torch.arange(10, 34, dtype=torch.int32).reshape(3, 8)
    lengths = torch.full((3,), 100, dtype=torch.int32)
    common = SimpleNamespace(
        query_start_loc=starts.clone(),
        query_start_loc_cpu=starts,
        block_table_tensor=table,
        seq_lens=lengths,
        num_reqs=3,
        num_actual_tokens=32,
        compute_num_computed_tokens=lambda: lengths - starts.diff(),
    )
    drafts = torch.tensor([3, -1, 7], dtype=torch.int32)
    made = builder.build(0, common, torch.tensor([5, 1, 8], dtype=torch.int32), drafts)
    assert made.conv_query_len == 8
    assert made.num_prefills == 1
    assert made.spec_state_indices_tensor.tolist() == table[[0, 2]].tolist()
    assert made.num_accepted_tokens.tolist() == [5, 8]


# --- the layer with the real kernels ---------------------------------------------------------------------------------


def run(pair: kda.Pair, plan: list[tuple[list[int], list[int], list[int]]]) -> list[float]:
    """Run steps of (indices of requests, rows of each, accepted of each); returns all errors."""
    errors: list[float] = []
    for who, lengths, accept in plan:
        errors += pair.step([pair.requests[i] for i in who], lengths, accept)
    return errors


TRANSITIONS = {
    # Request 0 leaves after the wide step, so the others move up. Those that accepted more than 4 rows are at risk.
    "8 4 4 8": [
        ([0, 1, 2, 3], [8, 8, 8, 8], [3, 6, 2, 8]),
        ([1, 2, 3], [4, 4, 4], [4, 1, 3]),
        ([1, 2, 3], [4, 4, 4], [2, 4, 4]),
        ([1, 2, 3], [8, 8, 8], [5, 8, 1]),
        ([3, 1, 2], [4, 4, 4], [1, 4, 2]),
    ],
    "mixed": [
        ([0, 1, 2], [8, 4, 4], [7, 4, 1]),
        ([0, 1, 2], [8, 4, 4], [5, 1, 3]),
        ([2, 0], [4, 4], [4, 4]),
        ([0, 2], [5, 2], [5, 1]),
        ([0, 2], [1, 4], [1, 2]),
        ([0, 2], [1, 1], [1, 1]),
    ],
    "width 1": [([0, 1, 2], [2, 2, 2], [2, 1, 2]), ([0, 1, 2], [2, 2, 2], [1, 2, 2]), ([2, 1], [2, 2], [2, 2])],
    "width 3": [([0, 1, 2], [4, 4, 4], [4, 1, 3]), ([0, 1, 2], [4, 4, 4], [4, 2, 4]), ([2, 1], [4, 4], [1, 4])],
    "width 7": [([0, 1, 2], [8, 8, 8], [8, 1, 5]), ([0, 1, 2], [8, 8, 8], [4, 8, 6]), ([2, 1], [8, 8], [8, 8])],
}
# Through 0.31 a batch whose rows all drafted nothing is read from column 0: upstream's own defect, not ours.
NOTHING_DRAFTED = ([0, 2], [1, 1], [1, 1])


@pytest.mark.parametrize("name", TRANSITIONS)
def test_every_transition_equals_a_plain_recurrence(engine: tuple[str, Engine], graphs: bool, name: str) -> None:
    release, loaded = engine
    pair = kda.Pair(loaded, layer_path(release), graphs=graphs)
    for _ in range(kda.REQUESTS):
        pair.admit()
    plan = [s for s in TRANSITIONS[name] if s != NOTHING_DRAFTED or release >= "0.32"]
    assert max(run(pair, plan)) < CLOSE


def shrink(pair: kda.Pair, change: Callable[[Any], Any]) -> list[float]:
    """8 rows, then 4 with ``change`` on the metadata; requests accepted 6, 2 and 8 rows before."""
    batch = [pair.admit() for _ in range(4)]
    assert max(pair.step(batch, [8, 8, 8, 8], [3, 6, 2, 8])) < CLOSE
    return pair.step(batch[1:], [4, 4, 4], [1, 1, 1], change)


def test_a_narrowed_copy_fails_the_same_test(engine: tuple[str, Engine]) -> None:
    first, second, third = shrink(kda.Pair(engine[1], layer_path(engine[0]), graphs=False), kda.narrowed_copy)
    assert second < CLOSE
    assert first > FAR
    assert third > FAR


def test_a_narrowed_view_of_the_staging_buffer_fails_the_same_test(engine: tuple[str, Engine]) -> None:
    pair = kda.Pair(engine[1], layer_path(engine[0]), graphs=True)
    stale: list[torch.Tensor] = []

    def change(metadata: Any) -> Any:
        return kda.narrowed_view(stale[0])(metadata)

    build = pair.metadata

    def remembering(*args: Any) -> Any:
        stale[:] = [pair.builder.spec_state_indices_tensor.clone()]
        return build(*args)

    pair.metadata = remembering  # type: ignore[assignment, method-assign]
    first, second, third = shrink(pair, change)
    assert second < CLOSE
    assert first > FAR
    assert third > FAR


def test_the_whole_table_passes_where_the_narrowed_one_fails(engine: tuple[str, Engine], graphs: bool) -> None:
    errors = shrink(kda.Pair(engine[1], layer_path(engine[0]), graphs=graphs), lambda metadata: metadata)
    assert max(errors) < CLOSE


def test_a_conv_length_below_the_longest_row_is_seen(engine: tuple[str, Engine]) -> None:
    """The length must cover the rows of its own step; one that does not spoils the state for the next step."""
    pair = kda.Pair(engine[1], layer_path(engine[0]), graphs=False)
    batch = [pair.admit() for _ in range(3)]

    def short(metadata: Any) -> Any:
        metadata.conv_query_len = 4
        return metadata

    now = pair.step(batch, [8, 4, 4], [8, 4, 4], short)
    after = pair.step(batch, [8, 4, 4], [1, 1, 1])
    assert max(now + after) > FAR


@pytest.mark.parametrize("release", ["0.30.0", "0.32.0"])
def test_stock_equals_the_recurrence_too(pristine: Pristine, release: str, graphs: bool) -> None:
    """The reference is sound: it agrees with the kernels fed by the stock builder."""
    with load(pristine(release)) as stock:
        pair = kda.Pair(stock, layer_path(release), graphs=graphs)
        for _ in range(kda.REQUESTS):
            pair.admit()
        assert max(run(pair, TRANSITIONS["8 4 4 8"])) < CLOSE
