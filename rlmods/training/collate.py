"""Responses in the order of their prompts, and their collation to tensors."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rlmods.errors import UserError
from rlmods.protocols import Rollout
from rlmods.types import Experience, Prompt, Response, Scores


def generate(
    rollout: Rollout, prompts: Sequence[Prompt], *, samples: int, iteration: int
) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major, in whatever order `rollout` returns
    them.

    A response belongs to the prompt whose id its `prompt` has. Groups are formed from this order,
    so a response in the wrong place would be compared with the responses to another prompt.

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
            problem = (
                f"{counts[prompt_id]} responses to prompt {prompt_id!r} instead of "
                f"{expected[prompt_id]}"
            )
            raise UserError(
                f"rollout {name}: generate returned {problem}: return `samples` responses to "
                "each prompt, or type rollout=local"
            )
    by_prompt: dict[str, list[Response]] = {}
    for response in responses:
        by_prompt.setdefault(response.prompt.id, []).append(response)
    queues = {prompt_id: iter(group) for prompt_id, group in by_prompt.items()}
    return [next(queues[prompt_id]) for prompt_id in wanted]


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
    step (`steps`). The mask of an unscored row is empty; tokens of observations are masked in all
    rows. `old_logprobs` are NaN: not computed yet. `sampler_version` is `meta["iteration"]` of a
    response, by default `policy_version`. `origin` is that of the responses' branches, and `cuts`
    has their cuts; None if there are none.

    Raises:
        UserError: a response has another number of log-probabilities, or of values of its mask,
        than of tokens, a reward on a token that
            was not sampled, an iteration that is not a whole number, a branch that is not a prefix
            of its parent, or a cut that is not followed by a context.
    """
    for r in responses:
        for name, values in {"behavior_logprobs": r.behavior_logprobs, "mask": r.mask}.items():
            if values is not None and len(values) != len(r.tokens):
                numbers = f"{len(r.tokens)} tokens and {len(values)} {name}"
                raise UserError(
                    f"rollout: a response to prompt {r.prompt.id!r} has {numbers}: return one "
                    "for each, or type rollout=local"
                )
    starts = torch.tensor([len(r.prompt_tokens) for r in responses])
    lengths = torch.tensor([len(r.prompt_tokens) + len(r.tokens) for r in responses])
    shape = (len(responses), int(lengths.max()))
    column = torch.arange(shape[1])
    in_response = (column >= starts[:, None]) & (column < lengths[:, None])
    sampled = in_response
    if any(r.mask is not None for r in responses):
        own = [x for r in responses for x in ([True] * len(r.tokens) if r.mask is None else r.mask)]
        sampled = torch.zeros_like(in_response).masked_scatter_(
            in_response, torch.tensor(own, dtype=torch.bool)
        )
    scored = torch.tensor([value is not None for value in scores.values])
    mask = sampled & scored[:, None]
    behavior = torch.zeros(shape).masked_scatter_(
        in_response, _floats(x for r in responses for x in r.behavior_logprobs)
    )
    rewards, steps = torch.zeros(shape), None
    if scores.tokens is None:
        last = torch.where(mask, column, -1).amax(1, keepdim=True)
        rewards[mask & (column == last)] = _floats(
            value
            for r, value in zip(responses, scores.values, strict=True)
            if r.num_sampled and value is not None
        )
    else:
        graded = in_response & scored[:, None]
        by_token = [
            x
            for value, row in zip(scores.values, scores.tokens, strict=True)
            if value is not None
            for x in row
        ]
        rewards.masked_scatter_(graded, _floats(x or 0.0 for x in by_token))
        steps = torch.zeros_like(mask).masked_scatter_(
            graded, torch.tensor([x is not None for x in by_token], dtype=torch.bool)
        )
        if bool((steps & ~mask).any()):
            problem = (
                "this reward by token is on a token of an observation, which the policy has not "
                "sampled"
            )
            raise UserError(
                f"reward: {problem}: type environment=single_turn, or a reward that gives one "
                "number per response"
            )
    rows = ([*r.prompt_tokens, *r.tokens] for r in responses)
    tokens = torch.tensor([row + [pad_id] * (shape[1] - len(row)) for row in rows])
    return Experience(
        tokens=tokens,
        mask=mask,
        lengths=lengths,
        rewards=rewards,
        old_logprobs=torch.full(shape, math.nan),
        behavior_logprobs=behavior,
        advantages=torch.zeros(shape),
        policy_version=torch.full((len(responses),), policy_version),
        sampler_version=torch.tensor(
            [_sampler_version(response, policy_version) for response in responses]
        ),
        group=group,
        steps=steps,
        origin=_origins(responses, group.tolist(), shape)
        if any(r.branch for r in responses)
        else None,
        cuts=_cuts(responses, shape) if any(r.cuts for r in responses) else None,
    )


def _cuts(responses: Sequence[Response], shape: tuple[int, int]) -> Tensor:
    """Return `Experience.cuts`."""
    cuts = torch.zeros(shape, dtype=torch.bool)
    for row, response in enumerate(responses):
        for last, cut in zip([0, *response.cuts], response.cuts, strict=False):
            if not last < cut < len(response.tokens) or response.mask is None or response.mask[cut]:
                problem = (
                    f"response to prompt {response.prompt.id!r} has a cut at token {cut}, where "
                    "no context begins"
                )
                raise UserError(
                    f"rollout: a {problem}: return the indices at which tokens that were not "
                    "sampled begin a segment"
                )
            cuts[row, len(response.prompt_tokens) + cut] = True
    return cuts


def _origins(responses: Sequence[Response], group: Sequence[int], shape: tuple[int, int]) -> Tensor:
    """Return `Experience.origin`: indices of responses among those of their group; outside of
    responses the row's own one."""
    members: dict[int, list[Response]] = {}
    places = []
    for response, group_id in zip(responses, group, strict=True):
        siblings = members.setdefault(group_id, [])
        places.append((siblings, len(siblings)))
        siblings.append(response)
    origin = torch.empty(shape, dtype=torch.long)
    for row, (siblings, index) in enumerate(places):
        origin[row] = index
        start, shared = len(siblings[index].prompt_tokens), shape[1]
        for child, parent, length in _ancestors(siblings, index):
            _check_branch(siblings[child], siblings[parent], length)
            shared = min(shared, length)
            origin[row, start : start + shared] = parent
    return origin


def _ancestors(siblings: Sequence[Response], index: int) -> Iterator[tuple[int, int, int]]:
    """Yield (child, parent, shared tokens) from a response up to the root of its tree.

    Raises:
        UserError: a parent does not exist, or is a descendant.
    """
    seen = {index}
    while (branch := siblings[index].branch) is not None:
        if branch.parent in seen or not 0 <= branch.parent < len(siblings):
            problem = (
                f"branches off from response {branch.parent}, which is no other response to the "
                "prompt or branches off from this one"
            )
            raise UserError(
                f"rollout: response {index} to prompt {siblings[index].prompt.id!r} {problem}"
            )
        yield index, branch.parent, branch.shared
        index = branch.parent
        seen.add(index)


def _check_branch(child: Response, parent: Response, shared: int) -> None:
    """Raise UserError unless the first `shared` tokens of a response are those of its parent."""
    equal = (list(child.prompt_tokens), list(child.tokens[:shared])) == (
        list(parent.prompt_tokens),
        list(parent.tokens[:shared]),
    )
    cuts = [[cut for cut in response.cuts if cut < shared] for response in (child, parent)]
    if not equal or cuts[0] != cuts[1] or not 0 <= shared <= len(child.tokens):
        raise UserError(
            f"rollout: a response to prompt {child.prompt.id!r} does not share its first "
            f"{shared} tokens with its parent"
        )


def _sampler_version(response: Response, policy_version: int) -> int:
    if (iteration := response.meta.get("iteration")) is None:
        return policy_version
    try:
        return operator.index(iteration)
    except TypeError as error:
        problem = (
            f"meta['iteration']={iteration!r} of a response to prompt {response.prompt.id!r} is "
            "not a whole number"
        )
        raise UserError(
            f"rollout: {problem}: return the one that generate was given, or type rollout=local"
        ) from error


def _floats(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float32)


def reward_terms(scores: Scores) -> tuple[Tensor, Tensor]:
    """Return the scores [N, K] of the K weighted terms before weighting (NaN: the term abstains),
    and their weights [K]. A reward without terms is one term of weight 1."""
    columns = [scores.terms[name] for name in scores.weights] or [scores.values]
    return torch.stack([nan_for_none(column) for column in columns], 1), torch.tensor(
        list(scores.weights.values()) or [1.0]
    )


def nan_for_none(values: Sequence[float | None]) -> Tensor:
    """Return the values [N] with NaN in place of None."""
    return torch.tensor([math.nan if x is None else x for x in values])
