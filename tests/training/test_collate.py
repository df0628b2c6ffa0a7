"""Responses and their scores as tensors: every reward on the token it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlmods.training.collate import collate
from rlmods.types import Experience, Prompt, Response, Scores, UserError

PROMPT = Prompt(id="p", text="?")
RESPONSES = [
    Response(PROMPT, [5, 6], [7, 8, 1], [-0.5, -1.0, -1.5]),
    Response(PROMPT, [5], [9, 9, 9, 1], [-1.0] * 4),
    Response(PROMPT, [5, 6, 7], [1], [-2.0]),
    Response(PROMPT, [5], [], []),
]
GROUP = torch.tensor([4, 4, 9, 9])


def made(scores: Scores) -> Experience:
    return collate(RESPONSES, scores, GROUP, policy_version=3, pad_id=0)


OUTCOMES = made(Scores([1.5, None, 0.0, 2.0]))
STEPS = made(Scores([0.75, None, 0.0, 2.0], tokens=[[0.5, None, 0.25], [1.0, None, None, 1.0], [0.0], []]))


@pytest.mark.parametrize("rows", [OUTCOMES, STEPS], ids=["outcomes", "steps"])
def test_rows_are_prompt_response_and_padding(rows: Experience) -> None:
    assert rows.tokens.tolist() == [[5, 6, 7, 8, 1], [5, 9, 9, 9, 1], [5, 6, 7, 1, 0], [5, 0, 0, 0, 0]]
    assert rows.lengths.tolist() == [5, 5, 4, 1]
    assert rows.behavior_logprobs[0].tolist() == [0, 0, -0.5, -1.0, -1.5]
    assert rows.old_logprobs.isnan().all()
    assert (rows.policy_version == 3).all()
    assert torch.equal(rows.group, GROUP)


@pytest.mark.parametrize("rows", [OUTCOMES, STEPS], ids=["outcomes", "steps"])
def test_loss_lies_on_the_sampled_tokens_of_scored_rows(rows: Experience) -> None:
    assert rows.mask.int().tolist() == [[0, 0, 1, 1, 1], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]


def test_every_sampled_token_has_a_logprob() -> None:
    """Also if the numbers of the batch agree."""
    wrong = [replace(RESPONSES[0], behavior_logprobs=[-1.0] * 2), replace(RESPONSES[1], behavior_logprobs=[-1.0] * 5), *RESPONSES[2:]]
    with pytest.raises(UserError, match="a response to prompt 'p' has 3 tokens and 2 behavior_logprobs"):
        collate(wrong, Scores([1.0] * 4), GROUP, policy_version=3, pad_id=0)


@pytest.mark.parametrize(("iteration", "version"), [(None, 3), (2, 2), (np.int64(2), 2)])
def test_version_of_the_sampler_is_by_default_that_of_the_policy(iteration: Any, version: int) -> None:
    responses = [replace(RESPONSES[0], meta={"iteration": iteration}), RESPONSES[1]]
    rows = collate(responses, Scores([1.0] * 2), GROUP[:2], policy_version=3, pad_id=0)
    assert rows.sampler_version.tolist() == [version, 3]


@pytest.mark.parametrize("iteration", ["2", 2.5])
def test_version_of_the_sampler_is_a_whole_number(iteration: Any) -> None:
    with pytest.raises(UserError, match=r"meta\['iteration'\]=\S+ of a response to prompt 'p' is not a whole number"):
        collate([replace(RESPONSES[0], meta={"iteration": iteration})], Scores([1.0]), GROUP[:1], policy_version=3, pad_id=0)


def test_an_outcome_sits_on_the_last_sampled_token() -> None:
    assert OUTCOMES.rewards.tolist() == [[0, 0, 0, 0, 1.5], [0] * 5, [0] * 5, [0] * 5]
    assert OUTCOMES.steps is None


def test_rewards_by_step_sit_where_the_steps_end() -> None:
    assert STEPS.rewards.tolist() == [[0, 0, 0.5, 0, 0.25], [0] * 5, [0] * 5, [0] * 5]
    assert STEPS.steps is not None
    assert STEPS.steps.int().tolist() == [[0, 0, 1, 0, 1], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]  # a step may be worth 0


def test_steps_stay_with_their_rows() -> None:
    both = Experience.concat([STEPS.select(torch.tensor([2])).trim(), STEPS.select(torch.tensor([0]))])
    assert both.steps is not None
    assert both.steps.int().tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 1]]
    assert Experience.concat([STEPS, OUTCOMES]).steps is None
