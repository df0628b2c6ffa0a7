"""Comparison of the log-probabilities of sampling, with cache and padding, and of training."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlmods.distributed.sharding import unsharded
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.float32 import autocast_dtype
from rlmods.policy.fused import sampling
from rlmods.policy.quantization import has_int8_products

Decode = Callable[..., Any]
"""`rlmods.rollout.local.decode`."""
LENGTHS = (2, 9)
"""Tokens of the prompts."""
NUM_TOKENS = 4
"""Tokens of the responses."""
MAX_GAP = 1e-3
"""Largest mean distance that rounding explains, nats per token."""
MAX_GAP_ROUNDED = 0.2
"""The same for weights of 16 bits and for products in 8 bits."""


def check_agreement(
    policy: Policy, decode: Decode, *, padded: bool = True, fused: bool = True
) -> None:
    """Check on two short texts that sampling gives the log-probabilities of training.

    Args:
        decode: the function that samples.
        padded: also check prompts of different length in one batch, which pads the shorter one.
        fused: with the products of `policy.fused`.

    Raises:
        UserError: it does not; training would be off-policy without a trace of it in the loss.
    """
    if policy.device.type == "meta" or not policy.is_checked:  # else the learner comes back
        return
    size = policy.model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 5 * length) % size for i in range(length)] for length in LENGTHS]
    with unsharded(policy):  # gathered weights may have another data type than shards
        weight = next(policy.parameters())
        is_float32 = weight.dtype == torch.float32 and autocast_dtype(weight) is None
    # embeddings are float32 also in a model with products in 8 bits
    is_exact = is_float32 and not has_int8_products(policy.model)
    max_gap = MAX_GAP if is_exact else MAX_GAP_ROUNDED
    name = type(policy.model).__name__
    gap = max(sampler_gap(policy, decode, [prompt], None, fused) for prompt in prompts)
    if not gap <= max_gap:
        raise UserError(
            f"policy: {name} gives other log-probabilities with a cache than without ({gap:.2g} "
            "nats per token), which is not supported: choose another model"
        )
    if not padded:
        return
    short, long = prompts
    shared = [[*long[:5], *short[:1]], long]
    gap = max(
        sampler_gap(policy, decode, prompts, None, fused),
        sampler_gap(policy, decode, shared, [5, 5], fused),
    )
    if not gap <= max_gap:
        raise UserError(
            f"policy: padding changes the log-probabilities of {name} by {gap:.2g} nats per "
            "token, because it reaches the model's state: "
            "type rollout.batch_size=1, which samples one prompt at a time, without padding"
        )


@torch.no_grad()
def sampler_gap(
    policy: Policy,
    decode: Decode,
    prompts: Sequence[Sequence[int]],
    beginnings: Sequence[int] | None = None,
    fused: bool = False,
) -> float:
    """Return the mean of |log pi - log pi'| over the tokens of a response to each prompt, sampled
    in one batch with pi' and scored with pi. `beginnings`: number of ids of each prompt that are
    processed once for those that have them in common.

    The first token of the vocabulary with a cumulative probability above 1/2 is sampled, so nothing
    is random."""
    with sampling(policy, fused):
        decoded = decode(
            policy,
            prompts,
            [NUM_TOKENS] * len(prompts),
            torch.full((len(prompts), NUM_TOKENS), 0.5, dtype=torch.float64),
            beginnings=beginnings,
            # so that beginnings are shared, or not, however short the prompts are
            forward_cost=1_000_000 if beginnings is None else 0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        )
        total = 0.0
        for i, prompt in enumerate(prompts):
            length = int(decoded.lengths[i])
            tokens = decoded.tokens[i, :length]
            row = torch.cat([torch.tensor(prompt, device=tokens.device), tokens])[None]
            mask = torch.arange(row.shape[1], device=row.device)[None] >= len(prompt)
            gaps = policy(row, mask).logprobs[mask] - decoded.logprobs[i, :length]
            total += float(gaps.abs().sum())
    return total / int(decoded.lengths.sum())
