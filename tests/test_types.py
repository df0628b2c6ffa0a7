"""The types of tensors name shapes, which are checked while tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from rlmods.advantage import GroupMean
from rlmods.aggregation import TokenMean
from rlmods.kl import Penalty
from rlmods.ops import broadcast_to_tokens, constant_group
from rlmods.ratio import Clipped
from rlmods.types import Credit, Totals
from tests.support import tiny_setup

X, ROW, MASK, GROUP = (
    torch.ones(2, 3),
    torch.ones(2),
    torch.ones(2, 3, dtype=torch.bool),
    torch.zeros(2, dtype=torch.long),
)
KL = Penalty("k1", 0.1, "loss")
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "another width": (GroupMean(), (X, MASK, GROUP), (X, MASK[:, :2], GROUP)),
    "another number of rows": (GroupMean(), (X, MASK, GROUP), (X, MASK, GROUP[:1])),
    "float for int": (GroupMean(), (X, MASK, GROUP), (X, MASK, ROW)),
    "float for bool": (Clipped(), (X, X, MASK), (X, X, X)),
    "int for float": (KL, (X, X), (X, X.long())),
    "per response for per token": (TokenMean(), (X, MASK, Totals(6, 2)), (ROW, MASK, Totals(6, 2))),
    "per token for per response": (broadcast_to_tokens, (ROW, MASK), (X, MASK)),
    "int for float per response": (
        constant_group,
        (ROW, MASK[:, 0], GROUP),
        (ROW.long(), MASK[:, 0], GROUP),
    ),
    "float for bool per response": (constant_group, (ROW, MASK[:, 0], GROUP), (ROW, ROW, GROUP)),
    "in a record": (Credit, (X,), (ROW,)),
}
"""A function, arguments that it accepts, and arguments of a shape or type that it does not."""


@pytest.mark.parametrize("name", CASES)
def test_wrong_shapes_and_types_are_refused(name: str) -> None:
    function, right, wrong = CASES[name]
    function(*right)
    with pytest.raises(TypeCheckError):
        function(*wrong)


def test_selected_rows_keep_the_order_of_the_index() -> None:
    rows = tiny_setup.collected(tiny_setup.learner())
    index = torch.tensor([2, 0, 1, 0])
    torch.testing.assert_close(rows.select(index).tokens, rows.tokens[index], rtol=0, atol=0)
