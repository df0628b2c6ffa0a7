"""Tests of rewards of written calculations."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rlmods.advantage import Process
from rlmods.data.solutions import worked_solution
from rlmods.errors import UserError
from rlmods.policy.tiny import character_tokenizer
from rlmods.reward import Calculations
from rlmods.reward.process import is_right
from rlmods.types import Prompt, Response

TOKENIZER = character_tokenizer()
QUESTION = "(22-83)*7"


def said(text: str, finish: bool = True) -> Response:
    """Return a response of these characters, with EOS if it finished."""
    tokens = TOKENIZER.encode(text) + [TOKENIZER.eos_token_id] * finish
    return Response(Prompt(id="0", text=f"{QUESTION}="), tokens=tokens, text=text)


def solution(wrong_step: int | None = None) -> Response:
    return said("".join(worked_solution(QUESTION, wrong_step, error=10)))


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("30+40=70", True),
        ("30+40=71", False),
        ("30+40=69", False),
        ("-60-1=-61", True),
        ("-60*7=-420", True),
        ("-60*7=420", False),
        ("5--3=8", True),
        ("007+1=8", True),
        ("7+8=15=15", False),
        ("7 + 8=15", False),
        ("2**9=512", False),
        ("7+8", False),
        ("", False),
        ("<answer>7</answer>", False),
        ("9" * 5000 + "+1=1", False),
    ],
)
def test_a_calculation_is_right_or_not(line: str, right: bool) -> None:
    assert is_right(line) is right


@pytest.mark.parametrize("wrong_step", range(6))
def test_only_the_wrong_step_of_a_solution_is_not_rewarded(wrong_step: int) -> None:
    scores = Calculations()([solution(wrong_step), solution()])
    expected = [1.0] * 6
    expected[wrong_step] = 0.0
    assert scores.columns["steps"] == [expected, [1.0] * 6]
    assert scores.values == [5.0, 6.0]


def test_rewards_are_on_the_tokens_that_end_the_lines() -> None:
    responses = [solution(2), said("<answer>-427</answer>"), said("2-3=-1\n20-8", finish=False)]
    scores = Calculations()(responses)
    assert scores.tokens is not None
    for response, rewards in zip(responses, scores.tokens, strict=True):
        text = TOKENIZER.decode(response.tokens, skip_special_tokens=False)
        assert len(rewards) == len(response.tokens)
        scored = [i for i, reward in enumerate(rewards) if reward is not None]
        before = [TOKENIZER.decode(response.tokens[: i + 1]) for i in scored]
        assert [part.count("\n") for part in before] == list(range(1, text.count("\n") + 1))
        assert all(part.endswith("\n") for part in before)
        known = [rewards[i] for i in scored]
        assert known == [float(is_right(line)) for line in text.split("\n")[:-1]]


def test_a_response_without_steps_abstains() -> None:
    for aggregate in (None, "min"):
        assert Calculations(aggregate)([said("<answer>3</answer>"), said("")]).values == [None] * 2


def test_an_aggregate_is_one_score_for_any_tokens() -> None:
    rows = [replace(solution(1), tokens=range(9)), solution()]
    for aggregate, value in (("min", 0.0), ("mean", 5 / 6), ("last", 1.0), ("product", 0.0)):
        scores = Calculations(aggregate)(rows)  # type: ignore[arg-type]
        assert scores.values == [pytest.approx(value), 1.0]
        assert scores.tokens is None


def test_special_tokens_between_the_characters_are_no_text() -> None:
    [first, *rest] = solution(1).tokens
    special = [TOKENIZER.pad_token_id, TOKENIZER.bos_token_id or TOKENIZER.pad_token_id]
    sampled = replace(solution(1), tokens=[first, *special, *rest])
    scores = Calculations()([sampled, solution(1)])
    assert scores.tokens is not None
    shifted, plain = scores.tokens
    assert shifted[3:] == plain[1:]
    assert shifted[:3] == [None] * 3
    assert scores.columns["steps"][0] == scores.columns["steps"][1]


@pytest.mark.parametrize("tokens", [range(9), [10**6] * 50])
def test_other_tokens_are_refused(tokens: Sequence[int]) -> None:
    with pytest.raises(UserError, match="type policy=tiny"):
        Calculations()([replace(solution(), tokens=tokens)])


def test_the_wrong_step_gets_the_blame_that_outcomes_spread() -> None:
    rows = [solution(3), solution()]
    length = max(len(row.tokens) for row in rows)
    scores = Calculations()(rows).tokens
    assert scores is not None
    rewards = torch.zeros(2, length)
    steps = torch.zeros(2, length, dtype=torch.bool)
    mask = torch.zeros(2, length, dtype=torch.bool)
    for i, row in enumerate(scores):
        rewards[i, : len(row)] = torch.tensor([x or 0.0 for x in row])
        steps[i, : len(row)] = torch.tensor([x is not None for x in row])
        mask[i, : len(row)] = True
    group = torch.zeros(2, dtype=torch.long)
    advantages = Process()(rewards, mask, group, values=None, steps=steps).advantages
    _, _, before, wrong, *after = steps[0].nonzero().flatten().tolist()
    assert (advantages[0, : wrong + 1] < 0).all()
    assert (advantages[0, wrong + 1 : after[-1] + 1] > 0).all()
    assert (advantages[1, : after[0]] > 0).all()
    assert advantages[0, before + 1] == advantages[0, wrong]
