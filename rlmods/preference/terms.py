"""Shared terms of the losses. `logprobs` are sums over a response's tokens; absent responses
(num_tokens 0) may hold any value."""

import torch

from rlmods.ops import masked_mean
from rlmods.types import CandidateFloats, CandidateInts, PromptFloats


def log_ratio(
    logprobs: CandidateFloats, ref_logprobs: CandidateFloats | None, num_tokens: CandidateInts
) -> CandidateFloats:
    """Return log pi(y | x) / pi_ref(y | x); 0 where there is no response."""
    assert ref_logprobs is not None, "this loss needs a reference"
    return torch.where(num_tokens > 0, logprobs - ref_logprobs, 0.0)


def per_token(logprobs: CandidateFloats, num_tokens: CandidateInts) -> CandidateFloats:
    """Return a sum over the tokens of each response, such as log pi(y | x), divided by |y|; 0 where
    there is no response."""
    return torch.where(num_tokens > 0, logprobs, 0.0) / num_tokens.clamp(min=1)


def sft_loss(
    logprobs: CandidateFloats, num_tokens: CandidateInts, rank: CandidateInts
) -> PromptFloats:
    """Return the SFT loss -log pi(y | x) / |y|, mean over the responses of rank 0 (RPO,
    arXiv:2404.19733, equation 1); 0 without any."""
    return -masked_mean(per_token(logprobs, num_tokens), (rank == 0) & (num_tokens > 0))
