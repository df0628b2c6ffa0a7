"""Collation of responses, sampled ones and those of the data, to tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.training.turns import branch_origins, segment_starts
from rlmods.types import Experience, Prompt, Response, Scores


def collate(
    responses: Sequence[Response],
    scores: Scores,
    group: Tensor,
    *,
    policy_version: int,
    pad_id: int,
) -> Experience:
    """Collate responses into right-padded rows, one per response.

    An outcome reward is placed on the last sampled token, rewards by step on the last token of each
    step (`steps`). The mask of an unscored row is empty. All rows are `on_policy`: `old_logprobs`
    are not computed yet. `sampler_version` is `meta["iteration"]` of a response, by default
    `policy_version`.

    Raises:
        UserError: a response whose log-probabilities or mask differ in number from its tokens, or a
            reward on a token that was not sampled.
    """
    starts = [len(r.prompt_tokens) for r in responses]
    ends = [len(r.prompt_tokens) + len(r.tokens) for r in responses]
    shape = (len(responses), max(ends))
    tokens = torch.full(shape, pad_id)
    mask = torch.zeros(shape, dtype=torch.bool)
    behavior_logprobs = torch.zeros(shape)
    for row, response in enumerate(responses):
        _check_lengths(response)
        columns = slice(starts[row], ends[row])
        tokens[row, : ends[row]] = torch.tensor([*response.prompt_tokens, *response.tokens])
        behavior_logprobs[row, columns] = torch.tensor(response.behavior_logprobs)
        if scores.values[row] is not None:
            mask[row, columns] = True if response.mask is None else torch.tensor(response.mask)
    rewards, steps = token_rewards(scores, mask, starts)
    versions = [r.meta.get("iteration", policy_version) for r in responses]
    has_branches = any(response.branch for response in responses)
    has_cuts = any(response.cuts for response in responses)
    return Experience(
        tokens=tokens,
        mask=mask,
        lengths=torch.tensor(ends),
        rewards=rewards,
        old_logprobs=torch.zeros(shape),
        on_policy=torch.ones(shape[0], dtype=torch.bool),
        behavior_logprobs=behavior_logprobs,
        advantages=torch.zeros(shape),
        policy_version=torch.full((len(responses),), policy_version),
        sampler_version=torch.tensor(versions),
        group=group,
        steps=steps,
        origin=branch_origins(responses, group.tolist(), shape) if has_branches else None,
        cuts=segment_starts(responses, shape) if has_cuts else None,
    )


def collate_unscored(
    responses: Sequence[Response], pad_id: int, policy_version: int = 0
) -> Experience:
    """Collate responses without rewards, each a group of its own. The mask is True on all sampled
    tokens."""
    group = torch.arange(len(responses))
    scores = Scores([0.0] * len(responses))
    return collate(responses, scores, group, policy_version=policy_version, pad_id=pad_id)


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


def token_rewards(
    scores: Scores, mask: Tensor, starts: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Return the reward of each token, and `Experience.steps` if there are rewards by step.
    `starts`: column of each response."""
    if scores.tokens is None:
        column = torch.arange(mask.shape[1])
        last = torch.where(mask, column, -1).amax(1, keepdim=True)
        values = torch.tensor([0.0 if value is None else value for value in scores.values])
        return torch.where(mask & (column == last), values[:, None], 0.0), None
    rewards = torch.zeros(mask.shape)
    steps = torch.zeros_like(mask)
    for row, by_token in enumerate(scores.tokens):
        if scores.values[row] is not None:
            columns = slice(starts[row], starts[row] + len(by_token))
            rewards[row, columns] = torch.tensor([x or 0.0 for x in by_token])
            steps[row, columns] = torch.tensor([x is not None for x in by_token])
    if bool((steps & ~mask).any()):
        raise UserError(
            "reward: this reward by token is on a token of an observation, which the policy has "
            "not sampled: type environment=single_turn, or a reward that gives one number per "
            "response"
        )
    return rewards, steps


def _check_lengths(response: Response) -> None:
    columns = {"behavior_logprobs": response.behavior_logprobs, "mask": response.mask}
    for name, values in columns.items():
        if values is not None and len(values) != len(response.tokens):
            raise UserError(
                f"rollout: a response to prompt {response.prompt.id!r} has "
                f"{len(response.tokens)} tokens and {len(values)} {name}: return one for each, or "
                "type rollout=local"
            )
