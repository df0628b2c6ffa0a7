from __future__ import annotations

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
