"""Rows of the data for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from rlmods.policy.base import Policy
from rlmods.training.collate import collate_unscored
from rlmods.types import Experience, Prompt, Response


def data_response(prompt: Prompt, policy: Policy) -> Response:
    """Return the response of the data, `prompt.meta["response"]` and the token that ends a
    response."""
    text = prompt.meta["response"]
    tokens = policy.encode_response(text, prompt)
    return Response(prompt, policy.encode(prompt), tokens, [0.0] * len(tokens), text)


def sft_batch(prompts: Sequence[Prompt], policy: Policy, policy_version: int = 0) -> Experience:
    """Collate prompts with their responses of the data. The mask is True on the response.

    Args:
        policy_version: iteration in which the rows are used.
    """
    responses = [data_response(prompt, policy) for prompt in prompts]
    return collate_unscored(responses, policy.pad_id, policy_version)
