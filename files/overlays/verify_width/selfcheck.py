"""Proves overlay verify_width from inside an engine: the file that Python imports, and what its class does.

Runs with the engine's own Python, with torch on the CPU only: no GPU memory, nothing written, a few seconds. What must
be found comes as JSON in the variable SPARKPAIR_EXPECT, or as the first argument:
{"overlay": "verify_width", "files": {"vllm/.../utils.py": "<sha256>"}}. Without it no checksum is compared. The last
line of output is the result: {"overlay": ..., "ok": ..., "proved": [...], "problem": ...}.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

NAME = "verify_width"
MODULE = "vllm.v1.worker.gpu.spec_decode.utils"
VARIABLES = ("DFLASH_VERIFY_TOKENS", "SPARKPAIR_STRUCTURED_WIDTH")
PROPOSED = 7


class CheckError(Exception):
    """Something is not as the overlay promises; the message says what."""


class FakeStream:
    """Stands in for CUDA streams and events, so that no GPU is touched."""

    def __init__(self, *_args, **_kwargs):
        """Take what the real ones take."""

    def wait_stream(self, _stream):
        """Nothing runs beside the CPU."""

    def record(self):
        """Nothing to record."""

    def synchronize(self):
        """Nothing to wait for."""


def expected():
    """What must be found, from the first argument or the environment."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SPARKPAIR_EXPECT", "")
    return json.loads(given) if given else {"files": {}}


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


@contextlib.contextmanager
def environment(**values):
    """Set the overlay's variables, and only these, for a while."""
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def without_gpu(torch):
    """Replace what the class asks of CUDA. This process is the self-check's own."""
    torch.cuda.Stream = torch.cuda.Event = FakeStream
    torch.cuda.current_stream = lambda _device=None: FakeStream()
    torch.cuda.stream = lambda _stream: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda _tensor, _stream: None


def publish(handler, torch, *, structured, columns=PROPOSED, rows=3):
    """One step; returns the published tokens and the full proposal."""
    tokens = torch.arange(rows * columns).reshape(rows, columns)
    batch = SimpleNamespace(req_ids=[f"r{i}" for i in range(rows)], has_structured_output_reqs=structured)
    handler.set_draft_tokens(batch, tokens)
    published = handler.get_draft_tokens()
    if published.req_ids != batch.req_ids:
        raise CheckError(f"requests {batch.req_ids} were published as {published.req_ids}")
    return published.draft_token_ids, tokens.tolist()


def check_width(make, torch, width, mode):
    """Ordinary and structured batches under one setting."""
    keep = width if mode == "uniform" else PROPOSED
    with environment(DFLASH_VERIFY_TOKENS=str(width), SPARKPAIR_STRUCTURED_WIDTH=mode):
        handler = make()
        for structured in (False, True, False):
            got, full = publish(handler, torch, structured=structured)
            wanted = [row[:keep] for row in full] if structured else [[-1] * width for _ in full]
            if got != wanted:
                raise CheckError(f"width {width}, {mode}, structured {structured}: {got} instead of {wanted}")
        # A runner that narrows by itself hands over the columns that are left.
        got, full = publish(handler, torch, structured=True, columns=width)
        if got != full:
            raise CheckError(f"width {width}: a proposal of {width} columns was changed")


def check_refusals(make, torch):
    """Values that no batch may be published with."""
    for value in ("0", "8", "-1", "3.0", "abc", ""):
        with environment(DFLASH_VERIFY_TOKENS=value):
            try:
                publish(make(), torch, structured=False)
            except RuntimeError as error:
                if repr(value) not in str(error) or str(PROPOSED) not in str(error):
                    raise CheckError(f"the refusal of {value!r} does not name both widths: {error}") from error
            else:
                raise CheckError(f"DFLASH_VERIFY_TOKENS={value!r} was accepted")


def check_lazy(make, torch):
    """The value is read at the first step, and once."""
    with environment():
        handler = make()
    with environment(DFLASH_VERIFY_TOKENS="3"):
        publish(handler, torch, structured=False)
    with environment(DFLASH_VERIFY_TOKENS="1"):
        got, _ = publish(handler, torch, structured=False)
    if [len(row) for row in got] != [3, 3, 3]:
        raise CheckError(f"the width was not kept after the first step: {got}")


def check_container(make, torch):
    """The environment of this very container, where it has the variables."""
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if VARIABLES[0] not in given:
        return []
    got, _ = publish(make(), torch, structured=False)
    return [f"this container's {given} publishes {len(got[0])} of {PROPOSED} drafts for ordinary batches"]


def prove():
    """Run every check; returns what was proved."""
    import torch  # noqa: PLC0415 - after the arguments are known to be sound

    torch.set_num_threads(1)
    without_gpu(torch)
    proved = check_files(expected()["files"])
    make = importlib.import_module(MODULE).DraftTokensHandler
    for width in (1, 3, 7):
        for mode in ("stock", "uniform"):
            check_width(make, torch, width, mode)
    proved.append("widths 1, 3, 7: ordinary batches publish that prefix, structured ones as their mode says")
    check_refusals(make, torch)
    proved.append("0, 8, -1, 3.0, abc and nothing are refused by name")
    check_lazy(make, torch)
    proved.append("the width is read at the first step and kept")
    proved += check_container(make, torch)
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
