"""Works around a fault of vLLM 0.32.0's V1 runner that a GPU pair (V2 runner) does not have."""

from typing import Any

from vllm.v1.sample.ops import topk_topp_sampler


def skip_empty_batches() -> None:
    """Let top-k without top-p pass a batch without drafts, which it otherwise ends the engine for.

    The first decode step of a request carries no draft, so the rejection sampler hands over logits of shape [0, vocab];
    ``k.max()`` of an empty tensor then raises "Expected reduction dim to be specified for input.numel() == 0".
    """
    stock = topk_topp_sampler.apply_top_k_only

    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return logits if logits.numel() == 0 else stock(logits, k)

    topk_topp_sampler.apply_top_k_only = apply_top_k_only
