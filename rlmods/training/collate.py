"""Responses in the order of their prompts, and their collation to tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.protocols import Rollout
from rlmods.types import Experience, Prompt, Response, Scores, UserError


def generate(rollout: Rollout, prompts: Sequence[Prompt], *, samples: int, iteration: int) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major, in whatever order `rollout` returns them.

    A response belongs to the prompt whose id its `prompt` has. Groups are formed from this order, so a response in the wrong place would be
    compared with the responses to another prompt.

    Raises:
        UserError: a prompt has another number of responses.
    """
    responses = rollout.generate(prompts, samples=samples, iteration=iteration)
    wanted = [prompt.id for prompt in prompts for _ in range(samples)]
    found = [response.prompt.id for response in responses]
    if found == wanted:
        return responses
    expected, counts = Counter(wanted), Counter(found)
    for prompt_id in [*expected, *counts]:
        if counts[prompt_id] != expected[prompt_id]:
            name = type(rollout).__name__
            problem = f"{counts[prompt_id]} responses to prompt {prompt_id!r} instead of {expected[prompt_id]}"
            raise UserError(
                f"rollout {name}: generate returned {problem}: return `samples` responses to each prompt, or type rollout=local"
            )
    by_prompt: dict[str, list[Response]] = {}
    for response in responses:
        by_prompt.setdefault(response.prompt.id, []).append(response)
    queues = {prompt_id: iter(group) for prompt_id, group in by_prompt.items()}
    return [next(queues[prompt_id]) for prompt_id in wanted]


def collate(responses: Sequence[Response], scores: Scores, group: Tensor, *, policy_version: int, pad_id: int) -> Experience:
    """Collate responses into right-padded rows, one per response.

    An outcome reward is placed on the last sampled token, rewards by step on the last token of each step (`steps`). The mask of an unscored
    row is empty. `old_logprobs` are NaN: not computed yet. `sampler_version` is `meta["iteration"]` of a response, by
    default `policy_version`.
    """
    lengths = torch.tensor([len(r.prompt_tokens) + len(r.tokens) for r in responses])
    shape = (len(responses), int(lengths.max()))
    tokens, mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.bool)
    rewards, behavior = torch.zeros(shape), torch.zeros(shape)
    steps = None if scores.tokens is None else torch.zeros(shape, dtype=torch.bool)
    for i, response in enumerate(responses):
        start, end = len(response.prompt_tokens), int(lengths[i])
        tokens[i, :end] = torch.tensor([*response.prompt_tokens, *response.tokens])
        behavior[i, start:end] = torch.tensor(response.behavior_logprobs)
        value = scores.values[i]
        if value is None or not response.tokens:
            continue
        mask[i, start:end] = True
        if scores.tokens is None or steps is None:
            rewards[i, end - 1] = value
        else:
            rewards[i, start:end] = torch.tensor([x or 0.0 for x in scores.tokens[i]])
            steps[i, start:end] = torch.tensor([x is not None for x in scores.tokens[i]])
    return Experience(
        tokens=tokens,
        mask=mask,
        lengths=lengths,
        rewards=rewards,
        old_logprobs=torch.full(shape, math.nan),
        behavior_logprobs=behavior,
        advantages=torch.zeros(shape),
        policy_version=torch.full((len(responses),), policy_version),
        sampler_version=torch.tensor([response.meta.get("iteration", policy_version) for response in responses]),
        group=group,
        steps=steps,
    )


def reward_terms(scores: Scores) -> tuple[Tensor, Tensor]:
    """Return the scores [N, K] of the K weighted terms before weighting (NaN: the term abstains), and their weights [K]. A reward without
    terms is one term of weight 1."""
    columns = [scores.terms[name] for name in scores.weights] or [scores.values]
    return torch.stack([nan_for_none(column) for column in columns], 1), torch.tensor(list(scores.weights.values()) or [1.0])


def nan_for_none(values: Sequence[float | None]) -> Tensor:
    """Return the values [N] with NaN in place of None."""
    return torch.tensor([math.nan if x is None else x for x in values])
