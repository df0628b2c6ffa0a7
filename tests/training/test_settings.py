"""Sizes of an iteration, and whether ranks can share it."""

import pytest

from rlmods.algo import Batch
from rlmods.errors import UserError


def test_ranks_take_the_steps_that_one_takes() -> None:
    Batch(prompts=8, minibatches=4).check_ranks(2, 1)
    Batch(prompts=12, minibatches=4).check_ranks(1, 1)
    with pytest.raises(
        UserError,
        match=r"batch\.minibatches=4 does not divide the 6 rows of each of 2 ranks: type one of 1, "
        r"2, 3, 6",
    ):
        Batch(prompts=12, minibatches=4).check_ranks(2, 1)
    Batch(prompts=12, minibatches=4).check_ranks(2, 8)
