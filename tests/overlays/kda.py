"""One KDA layer with the real kernels in Triton's interpreter, beside a plain torch recurrence.

The layer's own step is run (``Glm5NextLinearAttention._forward`` of the patched source) on metadata that the patched
builder made. The reference knows nothing of slots, tables or widths: it keeps each request's committed history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tests.overlays.engine import Engine
from tests.overlays.sources import GDN

COLUMNS = 8
HEADS, DIM, WIDTH = 2, 8, 4
CHANNELS = 3 * HEADS * DIM
LOWER_BOUND = -5.0
SLOTS = 80
SENTINEL = 79
REQUESTS = 4


def use_interpreter() -> None:
    """Let masked loads and stores take masks that are not boolean, as compiled kernels do."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "takes_any_mask", False):
        return
    for name, at in (("create_masked_load", 1), ("create_masked_store", 2)):
        plain = getattr(builder, name)

        def cast(self: Any, *args: Any, _plain: Any = plain, _at: int = at, **kwargs: Any) -> Any:
            mask = args[_at]
            mask.data = mask.data.astype(bool)
            return _plain(self, *args, **kwargs)

        setattr(builder, name, cast)
    builder.takes_any_mask = True


def make_builder(engine: Engine, *, graphs: bool) -> Any:
    """The release's own builder, through its own constructor."""
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: graphs), max_cudagraph_capture_size=None
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=COLUMNS - 1),
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
        use_v2_model_runner=True,
    )
    spec = SimpleNamespace(prefill_checkpoint_alignment=None)
    return engine.module(GDN).GDNAttentionMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


@dataclass
class Request:
    """A request of the reference: its state after what was committed, and the last inputs of its convolution."""

    slots: list[int]
    state: torch.Tensor
    history: torch.Tensor
    accepted: int = 1
    rows: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    states: list[torch.Tensor] = field(default_factory=list)


class Pair:
    """The same requests in the engine's layer and in the reference."""

    def __init__(self, engine: Engine, layer_path: str, *, graphs: bool, seed: int = 0) -> None:
        """Make the layer with random weights, and state pools full of other requests' leftovers."""
        use_interpreter()
        self.engine = engine
        self.random = torch.Generator().manual_seed(seed)
        self.layer_module = engine.module(layer_path)
        self.builder = make_builder(engine, graphs=graphs)
        self.conv_weight = self.noise(CHANNELS, WIDTH)
        self.a_log, self.dt_bias = self.noise(HEADS), self.noise(HEADS * DIM)
        # The pool's layout is (slot, tokens, channels); the layer transposes it. Leftovers are there from the start.
        self.conv_pool = self.noise(SLOTS, WIDTH - 1 + COLUMNS - 1, CHANNELS)
        self.state_pool = self.noise(SLOTS, HEADS, DIM, DIM)
        self.layer = SimpleNamespace(
            prefix="layer",
            kda_safe_gate=True,
            kda_lower_bound=LOWER_BOUND,
            kv_cache=(self.conv_pool, self.state_pool),
            _conv_state_dim_first=False,
            _merged_conv_weight=self.conv_weight,
            q_conv1d=SimpleNamespace(bias=None),
            local_projection_size=HEADS * DIM,
            local_num_heads=HEADS,
            head_dim=DIM,
            A_log=self.a_log.reshape(1, 1, HEADS, 1),
            dt_bias=self.dt_bias,
        )
        self.requests: list[Request] = []

    def noise(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers."""
        return torch.randn(*shape, generator=self.random)

    def admit(self) -> Request:
        """Add a request with slots of its own and a random past."""
        first = 1 + COLUMNS * len(self.requests)
        slots = list(range(first, first + COLUMNS))
        request = Request(slots, self.noise(HEADS, DIM, DIM), self.noise(WIDTH - 1, CHANNELS))
        self.state_pool[first] = request.state
        self.conv_pool[first, : WIDTH - 1] = request.history
        self.requests.append(request)
        return request

    def metadata(self, batch: Sequence[Request], lengths: Sequence[int]) -> Any:
        """Metadata of one step, from the builder."""
        starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32)
        seq_lens = torch.full((len(batch),), 100, dtype=torch.int32)
        common = SimpleNamespace(
            query_start_loc=starts.clone(),
            query_start_loc_cpu=starts,
            block_table_tensor=torch.tensor([r.slots for r in batch], dtype=torch.int32),
            seq_lens=seq_lens,
            seq_lens_cpu_upper_bound=seq_lens,
            is_prefilling=None,
            num_reqs=len(batch),
            num_actual_tokens=sum(lengths),
            compute_num_computed_tokens=lambda: seq_lens - starts.diff(),
        )
        accepted = torch.tensor([r.accepted for r in batch], dtype=torch.int32)
        return self.builder.build(0, common, accepted, starts.diff() - 1)

    def step(
        self,
        batch: Sequence[Request],
        lengths: Sequence[int],
        accept: Sequence[int],
        change: Callable[[Any], Any] = lambda metadata: metadata,
    ) -> list[float]:
        """Run one step on both sides and commit ``accept`` rows of each request.

        Returns the largest absolute error of each request's output. ``change`` may spoil the metadata.
        """
        metadata = change(self.metadata(batch, lengths))
        self.engine.metadata = metadata
        total = sum(lengths)
        qkv, gate, beta = self.noise(total, CHANNELS), self.noise(1, total, HEADS, DIM), self.noise(1, total, HEADS)
        # Rows that a kernel leaves out keep this value and show.
        out = torch.full((1, total, HEADS, DIM), 1e3)
        self.layer_module.Glm5NextLinearAttention._forward(
            self.layer, qkv.clone(), gate.reshape(1, total, HEADS, DIM), beta, out
        )
        errors, at = [], 0
        for request, length, taken in zip(batch, lengths, accept, strict=True):
            rows = slice(at, at + length)
            wanted = self.reference(request, qkv[rows], gate[0, rows], beta[0, rows])
            errors.append(float((out[0, rows] - wanted).abs().nan_to_num(1e30).max()))
            request.state = request.states[taken - 1]
            request.history = torch.cat([request.history, qkv[rows][:taken]])[-(WIDTH - 1) :]
            request.accepted = taken
            at += length
        return errors

    def reference(self, request: Request, qkv: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """Output [rows, heads, dim] of ``qkv`` [rows, channels] after the past; keeps the state of each row."""
        window = torch.cat([request.history, qkv])
        mixed = F.silu(F.conv1d(window.T[None], self.conv_weight[:, None], groups=CHANNELS)[0].T)
        q, k, v = mixed.reshape(-1, 3, HEADS, DIM).unbind(1)
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * DIM**-0.5
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        decay = LOWER_BOUND / (1 + torch.exp(-self.a_log.exp()[:, None] * (gate + self.dt_bias.reshape(HEADS, DIM))))
        state, outputs = request.state.clone(), []
        request.states = []
        for row in range(len(qkv)):
            state = state * decay[row].exp()[:, None, :]
            seen = (state * k[row][:, None, :]).sum(-1)
            value = (v[row] - seen) * beta[row].sigmoid()[:, None]
            state = state + value[:, :, None] * k[row][:, None, :]
            outputs.append((state * q[row][:, None, :]).sum(-1))
            request.states.append(state.clone())
        return torch.stack(outputs)


def narrowed_copy(metadata: Any) -> Any:
    """The table cut to the step's width as a fresh copy, with somebody else's slot behind the last row."""
    rows, width = metadata.spec_state_indices_tensor.shape[0], metadata.conv_query_len
    flat = torch.full((rows * width + COLUMNS,), SENTINEL, dtype=torch.int32)
    flat[: rows * width] = metadata.spec_state_indices_tensor[:, :width].reshape(-1)
    metadata.spec_state_indices_tensor = flat[: rows * width].reshape(rows, width)
    return metadata


def narrowed_view(stale: torch.Tensor) -> Callable[[Any], Any]:
    """The staging buffer refreshed and shown in the step's width only; other columns keep what ``stale`` had."""

    def change(metadata: Any) -> Any:
        table, width = metadata.spec_state_indices_tensor, metadata.conv_query_len
        table[:, width:] = stale[: table.shape[0], width:]
        metadata.spec_state_indices_tensor = table[:, :width]
        return metadata

    return change
