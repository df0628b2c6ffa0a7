"""The types of tensors name shapes, which are checked while tests run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from rlmods.advantage import GroupMean
from rlmods.aggregation import TokenMean
from rlmods.kl import Penalty
from rlmods.ops import broadcast_to_tokens, constant_group
from rlmods.ratio import Clipped
from rlmods.training.collate import collate_unscored
from rlmods.training.preferences import PreferenceBatch, pad_preferences
from rlmods.types import Credit, Experience, Prompt, Response, Totals
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


def prefixes(rows: Experience | PreferenceBatch) -> int:
    """Return the number of different beginnings of the rows, group by group."""
    if isinstance(rows, PreferenceBatch):
        found = 0
        for tokens, lengths in zip(rows.tokens.tolist(), rows.lengths.tolist(), strict=True):
            pairs = zip(tokens, lengths, strict=True)
            found += len({tuple(row[:end]) for row, n in pairs for end in range(1, n + 1)})
        return found
    ids = zip(rows.tokens.tolist(), rows.lengths.tolist(), rows.group.tolist(), strict=True)
    return len({(g, *row[:end]) for row, n, g in ids for end in range(1, n + 1)})


GROUPED = [[7, 7, 1, 2], [7, 7, 3], [7, 7, 4, 2, 5], [7, 8, 9], [7, 8, 9, 9], [7, 8, 6]]
"""Two groups: responses to the prompt 7, and 7 again with ends that repeat."""


def test_computed_tokens_are_the_distinct_beginnings_of_a_group() -> None:
    prompt = Prompt(id="a")
    responses = [Response(prompt, ids[:1], ids[1:], [0.0] * (len(ids) - 1)) for ids in GROUPED]
    rows = collate_unscored(responses, 0)
    rows = replace(rows, group=torch.tensor([0, 0, 0, 1, 1, 1]))
    alone, added = rows.computed_tokens(torch.arange(6))
    assert alone.tolist() == [len(ids) for ids in GROUPED]
    for start in range(6):
        for stop in range(start + 1, 7):
            part = rows.select(torch.arange(start, stop))
            assert int(alone[start] + added[start + 1 : stop].sum()) == prefixes(part)
    unordered = torch.tensor([5, 0, 3, 1, 4, 2])  # rows of a group do not follow each other
    assert rows.computed_tokens(unordered)[1].tolist() == alone[unordered].tolist()


def test_computed_tokens_of_preferences() -> None:
    answers = [[[1, 2], [1, 3], [4]], [[5], [5, 6, 7]]]
    rows = pad_preferences([[7, 7], [8]], answers, [[0, 1, 2], [0, 1]], 0)
    alone, added = rows.computed_tokens(torch.tensor([1, 0]))
    expected = [prefixes(rows.select(torch.tensor([i]))) for i in (1, 0)]
    assert alone.tolist() == added.tolist() == expected


def test_split_rows_are_trimmed_rows() -> None:
    made = tiny_setup.collected(tiny_setup.attached(tiny_setup.learner()))
    chunks = list(torch.arange(len(made)).split([1, 5, 10]))
    for part, rows in zip(made.split(chunks), chunks, strict=True):
        expected = made.select(rows).trim().tensors()
        assert part.tokens.shape[1] == int(made.lengths[rows].max())
        assert all(
            x is None or torch.equal(x, expected[name]) for name, x in part.tensors().items()
        )
