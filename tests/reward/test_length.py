from __future__ import annotations

import pytest

from rlmods.errors import UserError
from rlmods.reward import Length
from rlmods.rollout import Local
from rlmods.types import Prompt
from tests.reward.samples import response
from tests.support.models import policy


def test_every_token_is_penalized_including_the_end_of_text() -> None:
    assert list(Length(0.5)([response(tokens=n) for n in range(4)])) == [0.0, -0.5, -1.0, -1.5]
    tiny = policy()
    rollout = Local(max_tokens=8)
    rollout.sync(tiny, iteration=0)
    responses = rollout.generate([Prompt(id="p", text="1+1=")], samples=8, iteration=0)
    lengths = [len(tiny.encode_response("x" * (len(r.tokens) - 1))) for r in responses]
    assert list(Length(0.5)(responses)) == [-0.5 * n for n in lengths]


def test_longer_responses_score_lower() -> None:
    short, long = Length()([response(tokens=10), response(tokens=11)])
    assert short is not None
    assert long is not None
    assert long - short == pytest.approx(-0.01)


def test_counts_tokens_not_characters() -> None:
    assert list(Length(1.0)([response("x" * 100, tokens=2)])) == [-2.0]


def test_rejects_a_negative_coefficient() -> None:
    with pytest.raises(UserError, match="coefficient=-1 would reward length"):
        Length(-1)
