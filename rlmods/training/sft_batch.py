"""Collation of rows for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlmods.policy.base import Policy
from rlmods.training.collate import collate
from rlmods.types import Experience, Prompt, Response, Scores


def sft_batch(prompts: Sequence[Prompt], policy: Policy, policy_version: int) -> Experience:
    """Collate prompts with their `meta["response"]`, which ends with the token that ends a
    response. The mask is True on the response.

    Args:
        policy_version: iteration in which the rows are used.
    """
    responses = [
        Response(
            prompt=prompt,
            prompt_tokens=policy.encode(prompt),
            tokens=(target := policy.encode_response(prompt.meta["response"], prompt)),
            behavior_logprobs=[0.0] * len(target),
            text=prompt.meta["response"],
        )
        for prompt in prompts
    ]
    group, scores = torch.arange(len(responses)), Scores([0.0] * len(responses))
    return collate(responses, scores, group, policy_version=policy_version, pad_id=policy.pad_id)
