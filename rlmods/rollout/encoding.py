"""Prompts as token ids, and sampled ids as responses: what every rollout engine does in the same way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.policy.base import Policy
from rlmods.types import Prompt, Response, UserError


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as given to the model."""

    prompt: Prompt
    tokens: list[int]
    occurrence: int
    """How often the prompt's id occurred before since `sync`, so that a repeated prompt gets different responses."""
    limit: int
    """Maximum number of response tokens, including EOS."""


def check_settings(rollout: Any) -> None:
    """Check the fields of sampling that all engines have.

    Raises:
        ValueError: a value is out of range.
    """
    rules = {
        "max_tokens": (rollout.max_tokens >= 1, "at least 1"),
        "temperature": (0 <= rollout.temperature < math.inf, "0 (greedy) or more"),
        "top_p": (0 < rollout.top_p <= 1, "above 0 and at most 1"),
        "top_k": (rollout.top_k >= 0, "0 (all) or more"),
        "stop": (all(isinstance(text, str) and text for text in rollout.stop), "a list of non-empty strings"),
    }
    for name, (valid, requirement) in rules.items():
        if not valid:
            raise ValueError(f"rollout.{name}={getattr(rollout, name)!r}: must be {requirement}")


def encode(
    policy: Policy, prompts: Sequence[Prompt], occurrences: Counter[tuple[str, int]], max_tokens: int, max_length: int | None = None
) -> list[EncodedPrompt]:
    """Encode prompts with the policy's tokenizer, and count each in `occurrences`. `max_length`: maximum number of tokens of a prompt and
    its response, if that is less than the policy's context.

    Raises:
        UserError: a prompt is empty or leaves no room for a response.
    """
    context = min(policy.context_length, max_length or policy.context_length)
    encoded = []
    for prompt in prompts:
        tokens = policy.encode(prompt)
        if not tokens:
            raise UserError(f"prompt {prompt.id}: empty: remove it from the data")
        if len(tokens) >= context:
            problem = f"{len(tokens)} tokens leave no room for a response in the model's context of {context}"
            longer = "policy=... for a model with a longer context" if context == policy.context_length else "a larger rollout.max_length"
            raise UserError(f"prompt {prompt.id}: {problem}; shorten it, or type {longer}")
        occurrence = occurrences[prompt.id, prompt.time] + (prompt.time << 20)
        encoded.append(EncodedPrompt(prompt, tokens, occurrence, min(max_tokens, context - len(tokens))))
        occurrences[prompt.id, prompt.time] += 1
    return encoded


def response(
    policy: Policy, prompt: EncodedPrompt, tokens: list[int], logprobs: list[float], *, stopped: bool, sample: int, iteration: int
) -> Response:
    """Return the response with these sampled ids. `stopped`: EOS or a stop string ended it, not the limit."""
    return Response(
        prompt=prompt.prompt,
        prompt_tokens=prompt.tokens,
        tokens=tokens,
        behavior_logprobs=logprobs,
        text=policy.decode(tokens[:-1] if tokens[-1] in policy.eos_ids else tokens),
        finish="stop" if stopped else "length",
        meta={"sample": sample, "iteration": iteration},
    )


def diverged(iteration: int) -> UserError:
    """Return the error for sampled tokens whose log-probabilities are NaN or infinite."""
    return UserError(f"iteration {iteration}: the policy's logits are not finite, training has diverged: type a lower optimizer.lr")
