"""What tests of algorithms that learn from data share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from rlmods.training.preferences import PreferenceBatch
from rlmods.types import Prompt
from tests.support.tiny_setup import OneRank, close, gradients

__all__ = ["RAGGED", "alone", "close", "gradients", "padded", "shuffled", "widened"]

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


def padded(rows: Any, columns: int = 30) -> Any:
    """The same rows with more padding to the right."""
    width = rows.tokens.shape[-1]
    wide = {
        k: torch.nn.functional.pad(x, (0, columns))
        for k, x in rows.tensors().items()
        if x is not None and x.shape[-1] == width
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
