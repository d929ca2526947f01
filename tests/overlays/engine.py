"""Engine modules from real sources, without an engine: everything around them is replaced by stand-ins.

Only the files of the overlays and the kernels that they feed are real. Nothing of vLLM is installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from sparkpair.overlay import Found, Overlay, Result, resolve
from sparkpair.overlay_image import unpack
from sparkpair.overlay_manifest import ship

FOLDER = Path(__file__).resolve().parents[2] / "files" / "overlays"
ROOTS = ("vllm", "transformers")


def overlay(name: str) -> Overlay:
    """An overlay of this checkout, the way the module on a Spark gets it."""
    (entry,) = ship(FOLDER, [{"name": name}])
    return Overlay.from_data(entry["manifest"], unpack(entry), entry["selfcheck"])


def parses(files: Mapping[str, bytes | None]) -> dict[str, str]:
    """Judge texts with this Python."""
    for path, text in files.items():
        if text is not None:
            compile(text, path, "exec", dont_inherit=True)
    return {}


def resolved(name: str, files: Mapping[str, bytes]) -> list[Result]:
    """Resolve an overlay against ``files`` as if they were an image's."""
    return resolve(
        [overlay(name)],
        "an-image",
        lambda paths: {p: Found("file", files[p]) if p in files else Found("missing") for p in paths},
        parses,
    )


def overlaid(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """``files`` with an overlay applied."""
    return {**files, **{r.path: r.after for r in resolved(name, files)}}


class Placeholder:
    """Whatever an import asks for and no test uses."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Some are made at import time."""

    def __class_getitem__(cls, _item: Any) -> type:
        """Generic classes are subscripted where they are inherited from."""
        return cls


def _placeholder(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Placeholder,), {})


class Builder(Placeholder):
    """Stands in for the base class of metadata builders."""

    def __init__(self, spec: Any, _names: list[str], config: Any, device: torch.device) -> None:
        """Keep what the real one keeps."""
        self.kv_cache_spec, self.vllm_config, self.device = spec, config, device

    def _init_reorder_batch_threshold(self, *_args: Any) -> None:
        """Ordering of batches is not tested."""


class DraftTokenIds(NamedTuple):
    """As in vLLM's outputs."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


def _plain_batches(m: Any, decode_threshold: int = 1, **_kwargs: Any) -> tuple[int, int, int, int]:
    """One row each: all of them decodes."""
    assert int(m.query_start_loc_cpu.diff().max()) <= decode_threshold
    return m.num_reqs, 0, m.num_actual_tokens, 0


@dataclass
class Engine:
    """Modules of one release while the context of ``load`` lasts; ``metadata`` is what the forward context holds."""

    files: Mapping[str, bytes]
    metadata: Any = None
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def module(self, path: str) -> Any:
        """Import one of the files."""
        return importlib.import_module(path.removesuffix(".py").replace("/", "."))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] not in ROOTS:
            return None
        # A file must not count as a package, or its relative imports would look below it.
        file = f"{name.replace('.', '/')}.py"
        return importlib.machinery.ModuleSpec(name, self, is_package=file not in self.engine.files)

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        place = module.__name__.replace(".", "/")
        real = next((p for p in (f"{place}.py", f"{place}/__init__.py") if p in self.engine.files), None)
        if real is None:
            module.__getattr__ = _placeholder  # type: ignore[method-assign]
        else:
            # Triton reads the source of a kernel back through its file.
            where = _written(real, self.engine.files[real])
            module.__file__ = str(where)
            exec(compile(where.read_bytes(), str(where), "exec"), module.__dict__)  # noqa: S102 - a pinned source
        vars(module).update(self.engine.known.get(module.__name__, {}))


_FOLDER = tempfile.TemporaryDirectory(prefix="sparkpair-sources-")
_NUMBERS = itertools.count()


def _written(path: str, content: bytes) -> Path:
    where = Path(_FOLDER.name) / str(next(_NUMBERS)) / path
    where.parent.mkdir(parents=True)
    where.write_bytes(content)
    return where


def _stand_ins(engine: Engine) -> dict[str, dict[str, Any]]:
    import triton
    import triton.language as tl

    platform = SimpleNamespace(
        is_cpu=lambda: False,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cuda=lambda: False,
        is_arch_support_pdl=lambda: False,
        get_device_capability=lambda: None,
        simple_compile_backend="eager",
    )
    return {
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        # The interpreter puts its own functions into tl when a kernel runs, so an alias must look them up late.
        "vllm.third_party.flash_linear_attention.ops.op": {"exp": lambda x: tl.exp(x)},  # noqa: PLW0108
        "vllm.v1.attention.backend": {
            "AttentionMetadataBuilder": Builder,
            "AttentionCGSupport": SimpleNamespace(UNIFORM_BATCH=1),
        },
        "vllm.v1.attention.backends.utils": {
            "NULL_BLOCK_ID": 0,
            "PAD_SLOT_ID": -1,
            "mamba_get_block_table_tensor": lambda table, *_: table,
            "split_decodes_and_prefills": _plain_batches,
            "compute_causal_conv1d_metadata": lambda *_, **__: (None, None, None),
        },
        "vllm.utils.torch_utils": {"async_tensor_h2d": lambda data, **_: torch.as_tensor(data)},
        "vllm.compilation.breakable_cudagraph": {"eager_break_during_capture": lambda function: function},
        "vllm.model_executor.utils": {"maybe_disable_graph_partition": lambda _backend: {}},
        "vllm.forward_context": {
            "get_forward_context": lambda: SimpleNamespace(attn_metadata={"layer": engine.metadata})
        },
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn": {
            "_resolve_gdn_prefill_backend": lambda _config: ("triton", "triton")
        },
        "vllm.model_executor.layers.mamba.checkpoint": {
            "MambaPrefillCheckpointBuilder": lambda *_: SimpleNamespace(build=lambda *_: None)
        },
        "vllm.v1.outputs": {"DraftTokenIds": DraftTokenIds},
        "vllm.v1.worker.gpu.async_utils": {"async_copy_to_np": lambda x: x.to("cpu", copy=True).numpy()},
    }


@contextmanager
def load(files: Mapping[str, bytes]) -> Iterator[Engine]:
    """Make ``files`` importable as ``vllm`` for a while."""
    engine = Engine(files)
    engine.known = _stand_ins(engine)
    finder = _Finder(engine)
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ROOTS}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    # Helpers that are compiled at import are not on the path of these tests, and the compiler is slow to load.
    compiled, torch.compile = torch.compile, lambda *_, **__: lambda function: function  # type: ignore[assignment]
    try:
        yield engine
    finally:
        torch.compile = compiled
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] in ROOTS]:
            del sys.modules[name]
        sys.modules.update(before)
