"""Works around two faults of vLLM 0.32.0's CPU sampling with drafts, which a GPU pair does not have."""

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops import topk_topp_sampler


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Repeat each request's value for each of its draft tokens; shapes [batch] to [num_tokens].

    The stock CPU kernel converts the output to int64 first and so fills a copy: temperature, top-k and top-p then hold
    whatever the memory held ("selected index k out of range").
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)


def mend() -> None:
    """Replace the stock functions.

    The first decode step of a request carries no draft, so the sampler gets logits of shape [0, vocab], and top-k
    without top-p raises "max(): Expected reduction dim to be specified for input.numel() == 0".
    """
    stock = topk_topp_sampler.apply_top_k_only

    def apply_top_k_only(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return logits if logits.numel() == 0 else stock(logits, k)

    topk_topp_sampler.apply_top_k_only = apply_top_k_only
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
