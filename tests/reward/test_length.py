from rlmods.reward import Length
from tests.reward.samples import response


def test_every_sampled_token_is_penalized() -> None:
    rows = [response("x" * 100, tokens=n) for n in range(4)]
    assert list(Length(0.5)(rows)) == [0.0, -0.5, -1.0, -1.5]
