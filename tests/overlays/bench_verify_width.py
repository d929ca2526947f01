"""Cost of the overlays on the host, beside stock: ``python -m tests.overlays.bench_verify_width``.

Real torch on the CPU and the real sources; nothing here needs a GPU, and nothing is asserted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from tests.overlays.engine import load, overlaid
from tests.overlays.kda import make_builder
from tests.overlays.sources import UTILS, sources

ROUNDS, CALLS = 15, 20000


def per_call(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Median over rounds of the seconds that one call takes."""
    spent = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        spent.append((time.perf_counter() - start) / calls)
    return statistics.median(spent)


def handler_call(files: dict[str, bytes]) -> float:
    """Publish an ordinary batch of four requests, seven drafts each."""
    torch.cuda.Stream = torch.cuda.Event = lambda *_args, **_kwargs: None  # type: ignore[assignment, misc]
    with load(files) as engine:
        handler = engine.module(UTILS).DraftTokensHandler()
    batch = SimpleNamespace(req_ids=["a", "b", "c", "d"], has_structured_output_reqs=False)
    tokens = torch.zeros(4, 7, dtype=torch.int64)
    return per_call(lambda: handler.set_draft_tokens(batch, tokens))


def builder_call(files: dict[str, bytes]) -> float:
    """Build the metadata of four requests with four rows each, staged."""
    with load(files) as engine:
        builder = make_builder(engine, graphs=True)
        starts = torch.tensor([0, 4, 8, 12, 16], dtype=torch.int32)
        lengths = torch.full((4,), 100, dtype=torch.int32)
        common = SimpleNamespace(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            block_table_tensor=torch.arange(32, dtype=torch.int32).reshape(4, 8),
            seq_lens=lengths,
            num_reqs=4,
            num_actual_tokens=16,
        )
        accepted, drafts = torch.ones(4, dtype=torch.int32), torch.full((4,), 3, dtype=torch.int32)
        return per_call(lambda: builder.build(0, common, accepted, drafts), 500)


def main() -> None:
    """Print stock, overlay and difference in microseconds per call."""
    torch.set_num_threads(1)
    os.environ["DFLASH_VERIFY_TOKENS"] = "3"
    for release in ("0.28.0", "0.32.0"):
        stock = dict(sources(release))
        pairs = [("set_draft_tokens", "verify_width", handler_call)]
        if release >= "0.30":
            pairs.append(("metadata build", "gdn_runtime_width", builder_call))
        for what, name, measure in pairs:
            before, after = measure(stock), measure(overlaid(name, stock))
            print(
                f"{release} {what}: stock {before * 1e6:.3f} us, overlay {after * 1e6:.3f} us, "
                f"difference {(after - before) * 1e6:+.3f} us"
            )


if __name__ == "__main__":
    main()
