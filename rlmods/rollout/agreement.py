"""Comparison of the log-probabilities of sampling, with cache and padding, and of training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlmods.distributed.deferred import is_deferred
from rlmods.distributed.sharding import unsharded
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.decode import decode, sampling_mode

LENGTHS = (2, 9)
"""Tokens of the prompts."""
NUM_TOKENS = 4
"""Tokens of the responses."""
MAX_GAP, MAX_GAP_16_BIT = 1e-3, 0.2
"""Largest mean distance that rounding explains, nats per token."""


def check_agreement(policy: Policy, *, padded: bool = True) -> None:
    """Check on two short texts that sampling gives the log-probabilities of training.

    Args:
        padded: also check prompts of different length in one batch, of which the shorter is padded.

    Raises:
        UserError: it does not; training would be off-policy without a trace of it in the loss.
    """
    if policy.device.type == "meta" or is_deferred(policy):
        return
    size = policy.model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 5 * length) % size for i in range(length)] for length in LENGTHS]
    with unsharded(policy):  # gathered weights may have another data type than shards
        is_float32 = next(policy.parameters()).dtype == torch.float32
    max_gap, name = MAX_GAP if is_float32 else MAX_GAP_16_BIT, type(policy.model).__name__
    gap = max(sampler_gap(policy, [prompt]) for prompt in prompts)
    if not gap <= max_gap:
        raise UserError(
            f"policy: {name} gives other log-probabilities with a cache than without "
            f"({gap:.2g} nats per token), which is not supported: "
            "choose another model"
        )
    shared = [[*prompts[1][:5], *rest] for rest in (prompts[0][:1], prompts[1][5:])]
    gap = max(sampler_gap(policy, prompts), sampler_gap(policy, shared, [5, 5])) if padded else 0.0
    if not gap <= max_gap:
        raise UserError(
            f"policy: padding changes the log-probabilities of {name} by {gap:.2g} nats per "
            "token, because it reaches the model's state: "
            "type rollout.batch_size=1, which samples one prompt at a time, without padding"
        )


@torch.no_grad()
def sampler_gap(
    policy: Policy, prompts: Sequence[Sequence[int]], beginnings: Sequence[int] | None = None
) -> float:
    """Return the mean of |log pi - log pi'| over the tokens of a response to each prompt, sampled
    in one batch with pi' and scored with pi. `beginnings`: number of ids of each prompt that are
    processed once for those that have them in common.

    The first token of the vocabulary with a cumulative probability above 1/2 is sampled, so nothing
    is random."""
    with (
        sampling_mode(policy),
        unsharded(policy),
        torch.autocast(policy.device.type, enabled=False),
    ):
        uniforms = torch.full((len(prompts), NUM_TOKENS), 0.5, dtype=torch.float64)
        limits = [NUM_TOKENS] * len(prompts)
        # so that beginnings are shared, or not, however short the prompts are
        cost = 1_000_000 if beginnings is None else 0
        decoded = decode(
            policy,
            prompts,
            limits,
            uniforms,
            beginnings=beginnings,
            forward_cost=cost,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        )
        total, count = 0.0, 0
        for prompt, tokens, logprobs, length in zip(
            prompts, decoded.tokens, decoded.logprobs, decoded.lengths.tolist(), strict=True
        ):
            row = torch.cat([torch.tensor(prompt, device=tokens.device), tokens[:length]])[None]
            mask = torch.arange(row.shape[1], device=row.device)[None] >= len(prompt)
            total += float((policy(row, mask).logprobs[mask] - logprobs[:length]).abs().sum())
            count += length
    return total / count
