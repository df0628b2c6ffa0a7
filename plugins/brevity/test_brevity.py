"""Run with `make test ARGS=plugins/brevity`."""

from types import SimpleNamespace

import pytest
from brevity import Brevity


@pytest.mark.parametrize(("length", "score"), [(0, 1.0), (4, 1.0), (8, 0.5)])
def test_short_answers_score_more(length: int, score: float) -> None:
    assert Brevity(target=4)([SimpleNamespace(tokens=[7] * length)]) == [score]
