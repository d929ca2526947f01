"""Proves overlay gdn_runtime_width from inside an engine: the files that Python imports, and what they do.

Runs with the engine's own Python, with torch on the CPU only: no GPU memory, nothing written, a few seconds. What must
be found comes as JSON in the variable SPARKPAIR_EXPECT, or as the first argument; without it no checksum is compared:
{"overlay": "gdn_runtime_width", "files": {"vllm/.../gdn_attn.py": "<sha256>", ...}}.
The last line of output is the result: {"overlay": ..., "ok": ..., "proved": [...], "problem": ...}.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
import types
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

NAME = "gdn_runtime_width"
BUILDER = "vllm.v1.attention.backends.gdn_attn"
MODEL = "vllm.models.glm5next"
PLACES = ("common", "nvidia", "amd")
COLUMNS = 8
REQUESTS = 8


class CheckError(Exception):
    """Something is not as the overlay promises; the message says what."""


def expected():
    """What must be found, from the first argument or the environment."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SPARKPAIR_EXPECT", "")
    return json.loads(given) if given else {"files": {}}


def stand_in(name):
    """Make a class for a name that a module without kernels is asked for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class WithoutKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules for the linear attention kernels: importing the real ones asks the GPU what it is."""

    def find_spec(self, name, _path=None, _target=None):
        """Claim modules of kernels."""
        kernels = name.startswith("vllm.third_party.flash_linear_attention") or f"{name}.".startswith(
            tuple(f"{MODEL}.{place}.ops." for place in PLACES)
        )
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if kernels else None

    def create_module(self, _spec):
        """Python's default."""

    def exec_module(self, module):
        """Any name is a class that is never used."""
        module.__getattr__ = stand_in


def skip_model_package():
    """Let modules of the model be imported without the package's own start, which loads the whole model."""
    # MODEL itself must not be imported for this, so its place is found from the package above it.
    root = Path(find_spec("vllm.models").submodule_search_locations[0]) / "glm5next"
    for name, path in ((MODEL, root), *((f"{MODEL}.{p}", root / p) for p in PLACES)):
        if path.is_dir() and name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(path)]
            # find_spec refuses a module without one.
            package.__spec__ = ModuleSpec(name, None, is_package=True)
            package.__spec__.submodule_search_locations = package.__path__
            sys.modules[name] = package


def check_files(files):
    """Compare the files that Python imports with their checksums; returns what was proved."""
    proved = []
    for path, wanted in sorted(files.items()):
        name = path.removesuffix(".py").replace("/", ".")
        found = hashlib.sha256(Path(importlib.import_module(name).__file__).read_bytes()).hexdigest()
        if found != wanted:
            raise CheckError(f"{name} is imported with sha256 {found}, the overlay's is {wanted}")
        proved.append(f"{name} is imported from the pinned file {wanted[:12]}")
    return proved


class Batch:
    """The part of a step's common metadata that the builder reads: row lengths and the state slots of each request."""

    def __init__(self, torch, lengths, table):
        """Take ``lengths``, rows of each request, and ``table``, its state slots with COLUMNS columns."""
        starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        self.query_start_loc_cpu = torch.tensor(starts, dtype=torch.int32)
        self.query_start_loc = self.query_start_loc_cpu.clone()
        self.block_table_tensor = torch.tensor(table, dtype=torch.int32)
        self.seq_lens = torch.full((len(lengths),), 100, dtype=torch.int32)
        self.seq_lens_cpu = self.seq_lens_cpu_upper_bound = self._seq_lens_cpu = self.seq_lens
        self.num_reqs = len(lengths)
        self.num_actual_tokens = sum(lengths)
        self.max_query_len = max(lengths)
        self.is_prefilling = None

    def compute_num_computed_tokens(self):
        """Tokens before this step."""
        return self.seq_lens - self.query_start_loc.diff()

    def replace(self, **changes):
        """Copy with changes."""
        copy = object.__new__(Batch)
        copy.__dict__.update(self.__dict__, **changes)
        return copy


def make_builder(module, torch, *, graphs):
    """Make a builder with the buffers of stock, without an engine's configuration."""
    builder = object.__new__(module.GDNAttentionMetadataBuilder)
    none = types.SimpleNamespace
    builder.vllm_config = none(cache_config=none(mamba_cache_mode="none"))
    builder.kv_cache_spec = none()
    builder.num_spec = COLUMNS - 1
    builder.use_spec_decode = True
    builder.use_full_cuda_graph = graphs
    builder.decode_cudagraph_max_bs = REQUESTS * COLUMNS
    rows = builder.decode_cudagraph_max_bs

    def buffer(*shape, dtype=torch.int32):
        return torch.full(shape, 77 if dtype is torch.int32 else 0, dtype=dtype)

    builder.spec_state_indices_tensor = buffer(rows, COLUMNS)
    builder.non_spec_state_indices_tensor = buffer(rows)
    builder.spec_sequence_masks = buffer(rows, dtype=torch.bool)
    builder.spec_token_indx = buffer(rows * COLUMNS)
    builder.non_spec_token_indx = buffer(rows * COLUMNS)
    builder.spec_query_start_loc = buffer(rows + 1)
    builder.non_spec_query_start_loc = buffer(rows + 1)
    builder.num_accepted_tokens = buffer(rows)
    return builder


def step(builder, torch, lengths, table, accepted):
    """Build the metadata of one step of speculative rows."""
    drafts = torch.tensor([n - 1 for n in lengths], dtype=torch.int32)
    return builder.build(0, Batch(torch, lengths, table), torch.tensor(accepted, dtype=torch.int32), drafts)


def start_slots(table, accepted):
    """Slots that a kernel starts from: it goes by the strides and does not look at the shape."""
    flat = table.as_strided((table.untyped_storage().nbytes() // table.element_size(),), (1,), 0)
    row, column = table.stride()
    return [int(flat[table.storage_offset() + i * row + (a - 1) * column]) for i, a in enumerate(accepted)]


def slots(first):
    """State slots of one request: COLUMNS numbers from ``first`` on."""
    return list(range(first, first + COLUMNS))


def check_builder(module, torch, *, graphs):
    """A batch of 8 rows each shrinks to 4, a request leaves and the others move up, and it grows again."""
    builder = make_builder(module, torch, graphs=graphs)
    a, b, c, d = (slots(first) for first in (10, 20, 30, 40))
    step(builder, torch, [8, 8, 8, 8], [a, b, c, d], [1, 1, 1, 1])
    for lengths, rows, accepted, wanted, length in (
        ([4, 4, 4], [b, c, d], [6, 2, 5], [25, 31, 44], 4),
        ([4, 4, 4], [b, c, d], [4, 1, 3], [23, 30, 42], 4),
        ([8, 8, 8], [b, c, d], [4, 4, 1], [23, 33, 40], 8),
        ([2, 2], [d, b], [8, 5], [47, 24], 2),
        ([4, 1, 3], [b, c, d], [8, 8, 8], [27, 37, 47], 4),
        ([8, 4, 4], [b, c, d], [3, 8, 1], [22, 37, 40], 8),
    ):
        made = step(builder, torch, lengths, rows, accepted)
        table = made.spec_state_indices_tensor
        got = start_slots(table, accepted)
        if got != wanted or table.size(-1) != COLUMNS:
            raise CheckError(f"rows {lengths}: start slots {got} from {table.size(-1)} columns, wanted {wanted}")
        if made.conv_query_len != length:
            raise CheckError(f"rows {lengths}: conv length {made.conv_query_len}, wanted {length}")
    narrowed = torch.tensor([b, c, d])[:, :4].contiguous()
    if start_slots(narrowed, [6, 2, 3]) == [25, 31, 42]:
        raise CheckError("this check cannot tell a narrowed table from a whole one")


def check_nothing_drafted(module, torch):
    """Rows that drafted nothing, beside others and alone, must not raise."""
    builder = make_builder(module, torch, graphs=True)
    longest = 4
    made = step(builder, torch, [1, longest], [slots(10), slots(20)], [7, 2])
    if made.conv_query_len != longest:
        raise CheckError(f"rows [1, {longest}]: conv length {made.conv_query_len}, wanted {longest}")
    made = step(builder, torch, [1, 1], [slots(10), slots(20)], [7, 2])
    speculative = made.spec_state_indices_tensor is not None
    if made.conv_query_len != (1 if speculative else None):
        raise CheckError(f"nothing drafted: conv length {made.conv_query_len}")


class Layer(types.SimpleNamespace):
    """Stands in for a KDA layer: the attributes that its step reads, with tiny sizes."""


def conv_length(module, torch, metadata):
    """Return the max_query_len that the layer gives to the short convolution for ``metadata``."""
    seen = []

    class SeenError(Exception):
        """Ends the step after the convolution."""

    def record(*_args, max_query_len=None, **_kwargs):
        seen.append(max_query_len)
        raise SeenError

    module.causal_conv1d_update = record
    module.get_forward_context = lambda: types.SimpleNamespace(attn_metadata={"layer": metadata})
    rows, width = metadata.num_actual_tokens, 4
    weight = types.SimpleNamespace(weight=torch.zeros(width, 1, 4), bias=None)
    layer = Layer(
        prefix="layer",
        kda_safe_gate=True,
        kda_lower_bound=-5.0,
        kv_cache=(torch.zeros(100, 10, 3 * width), torch.zeros(100, 1, width, width)),
        _conv_state_dim_first=False,
        _merged_conv_weight=torch.zeros(3 * width, 4),
        q_conv1d=weight,
        local_projection_size=width,
        local_num_heads=1,
        head_dim=width,
    )
    forward = module.Glm5NextLinearAttention._forward
    args = (torch.zeros(rows, 3 * width), torch.zeros(1, rows, 1, width), torch.zeros(1, rows, 1))
    try:
        forward(layer, *args, torch.zeros(1, rows, 1, width))
    except SeenError:
        return seen[0]
    raise CheckError("the layer did not run the short convolution")


def check_layer(builder_module, layer_module, torch):
    """The layer uses the builder's length, and the table's width where there is none."""
    builder = make_builder(builder_module, torch, graphs=True)
    for lengths, wanted in (([4, 4], 4), ([8, 4], 8), ([2, 2], 2)):
        made = step(builder, torch, lengths, [slots(10), slots(20)], [8, 5])
        if (got := conv_length(layer_module, torch, made)) != wanted:
            raise CheckError(f"rows {lengths}: the layer gives the convolution length {got}, wanted {wanted}")
        made.conv_query_len = None
        if (got := conv_length(layer_module, torch, made)) != COLUMNS:
            raise CheckError(f"without a length the layer gives the convolution {got}, wanted {COLUMNS}")


def prove():
    """Run every check; returns what was proved."""
    import torch  # noqa: PLC0415 - after the arguments are known to be sound

    torch.set_num_threads(1)
    files = expected()["files"]
    sys.meta_path.insert(0, WithoutKernels())
    skip_model_package()
    proved = check_files(files)
    builder = importlib.import_module(BUILDER)
    # Copying with pinned memory would create a CUDA context.
    builder.async_tensor_h2d = lambda data, **_kwargs: data
    for graphs in (False, True):
        check_builder(builder, torch, graphs=graphs)
    proved.append("8, 4, 4, 8, 2 rows and ragged ones: every request starts from its own state, eager and staged")
    check_nothing_drafted(builder, torch)
    proved.append("rows without a draft are built without an error")
    places = [p for p in PLACES if f"{MODEL}.{p}" in sys.modules and find_spec(f"{MODEL}.{p}.kda")]
    for place in places:
        check_layer(builder, importlib.import_module(f"{MODEL}.{place}.kda"), torch)
    if not places:
        raise CheckError("this engine has no KDA layer of the model")
    proved.append("the KDA layer gives that length to the convolution, or the table's width without one")
    # An engine whose imports touch the GPU still serves, so this is told and not judged.
    proved.append("CUDA was initialized by the engine's imports" if torch.cuda.is_initialized() else "CUDA left alone")
    return proved


def main():
    """Print the result as one line of JSON; exit with 1 when something is not proved."""
    result = {"overlay": NAME, "ok": False, "proved": [], "problem": ""}
    try:
        result["proved"] = prove()
        result["ok"] = True
    except Exception as error:
        traceback.print_exc()
        result["problem"] = f"{type(error).__name__}: {error}"
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
