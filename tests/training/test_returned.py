"""What a part returns is checked where it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.types import Credit
from tests.support.tiny_setup import fit, learner


class Part:
    """A part that returns something wrong."""

    coefficient = 0.1
    where = "loss"

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, x: Any, *more: Any, **options: Any) -> Any:
        return self.make(x)


CASES = [
    ("advantage", lambda x: x, "advantage Part returned Tensor, which has no `advantages`"),
    ("advantage", lambda x: Credit(x[:, :1]), r"advantages must be a float tensor of shape \[16"),
    ("advantage", lambda x: Credit(x / 0.0), "advantages is NaN or infinite on"),
    (
        "advantage",
        lambda x: SimpleNamespace(advantages=x, returns=x[0]),
        "returns must be a float tensor",
    ),
    ("ratio", lambda x: x, "ratio Part returned Tensor, which has no `objective`"),
    ("ratio", lambda x: SimpleNamespace(objective=x, clipped=x), "clipped must be a bool tensor"),
    ("kl", lambda x: x.mean(), "kl Part: the divergence must be a float tensor"),
    ("aggregation", lambda x: x, r"aggregation Part: the loss must be .* shape \[\]"),
    ("aggregation", lambda x: float(x.detach().sum()), "the loss must be .* not float"),
    ("sampling", lambda x: x, "sampling Part: the selection must be a bool tensor"),
    ("sampling", lambda x: None, "not NoneType"),
]


@pytest.mark.parametrize(("group", "make", "message"), CASES)
def test_one_line_names_part_and_field(group: str, make: Any, message: str) -> None:
    with pytest.raises((UserError, TypeError), match=message):
        fit(learner(**{group: Part(make)}), 1)
