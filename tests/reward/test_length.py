from __future__ import annotations

import pytest

from rlmods.reward import Length
from rlmods.rollout import Local
from rlmods.types import Prompt, UserError
from tests.policy.test_base import policy
from tests.reward.samples import response


def test_every_token_costs_and_the_end_of_text_is_one() -> None:
    assert list(Length(0.5)([response(tokens=n) for n in range(4)])) == [0.0, -0.5, -1.0, -1.5]
    made = policy()
    rollout = Local(max_tokens=8)
    rollout.sync(made, iteration=0)
    said = rollout.generate([Prompt(id="p", text="1+1=")], samples=8, iteration=0)
    ended = [len(made.encode_response("x" * (len(r.tokens) - 1))) for r in said]
    assert list(Length(0.5)(said)) == [-0.5 * n for n in ended]


def test_longer_is_worse() -> None:
    short, long = Length()([response(tokens=10), response(tokens=11)])
    assert short is not None
    assert long is not None
    assert long - short == pytest.approx(-0.01)


def test_tokens_count_not_characters() -> None:
    assert list(Length(1.0)([response("x" * 100, tokens=2)])) == [-2.0]


def test_paying_for_length_is_refused() -> None:
    with pytest.raises(UserError, match="coefficient=-1 would pay for length"):
        Length(-1)
