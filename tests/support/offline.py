"""Rankings, and changes of rows that change no gradient."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import torch

from rlmods.training.preferences import PreferenceBatch
from rlmods.types import Prompt
from tests.support.tiny_setup import OneRank, close, gradients

__all__ = [
    "RAGGED",
    "alone",
    "assert_invariant",
    "close",
    "gradients",
    "padded",
    "pairs",
    "shuffled",
    "widened",
]

RAGGED = [
    Prompt(
        id="0",
        text="1+1=",
        meta={"candidates": ("<answer>2</answer>", "3", "4444"), "ranks": (0, 1, 2), "margin": 0.5},
    ),
    Prompt(
        id="1",
        text="2+10=",
        meta={
            "candidates": ("5", "<answer>12</answer>"),
            "ranks": (1, 0),
            "finished": (False, True),
        },
    ),
    Prompt(id="2", text="7-3=", meta={"candidates": ("4",), "ranks": (0,)}),
    Prompt(
        id="3",
        text="9-9=",
        meta={"candidates": ("0", "zero", "1"), "ranks": (0, 0, 1), "margin": 1.0},
    ),
]
"""Rankings of different length, a cut-off candidate, a tie, a single response."""


def alone(made: Any) -> Any:
    """Without a Trainer: for losses and gradients only."""
    made.trainer = OneRank()
    return made


def pairs(prompt: Prompt) -> list[tuple[int, int]]:
    """Indices of the better and the worse candidate, of all pairs."""
    ranks = prompt.meta["ranks"]
    both = product(range(len(ranks)), repeat=2)
    return [(i, j) for i, j in both if ranks[i] < ranks[j]]


def padded(rows: Any, columns: int = 30) -> Any:
    """The same rows with more padding to the right."""
    width = rows.tokens.shape[-1]
    wide = {
        k: torch.nn.functional.pad(x, (0, columns))
        for k, x in rows.tensors().items()
        if x is not None and x.ndim > 1 and x.shape[-1] == width
    }
    return replace(rows, **wide)


def shuffled(rows: Any) -> Any:
    """The same rows in another order."""
    return rows.select(torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)))


def widened(rows: PreferenceBatch) -> PreferenceBatch:
    """The same comparison with one more candidate that is not there, in front, its ids garbage."""
    absent = {"tokens": 7, "mask": False, "lengths": 0, "rank": 0, "ref_logprobs": torch.nan}
    more = {}
    for name, value in absent.items():
        x = getattr(rows, name)
        if x is not None:
            more[name] = torch.cat([torch.full_like(x[:, :1], value), x], 1)
    return replace(rows, **more)


def assert_invariant(made: Any, rows: Any, *changes: Callable[[Any], Any]) -> None:
    """Assert that the gradient does not depend on padding, order and microbatches, nor on further
    `changes` of the rows, and that rows without a loss have none."""
    expected = gradients(made, rows)
    for change in (padded, shuffled, *changes):
        close(gradients(made, change(rows)), expected)
    for budget in (1, 40, 10**6):
        with patch.object(made.microbatches, "token_budget", budget):
            close(gradients(made, rows), expected)
    silent = (rows.without_loss(), made.loss)
    assert torch.equal(gradients(made, rows, None, silent), expected)
