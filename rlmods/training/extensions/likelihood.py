"""Likelihood of some tokens in addition to the RL loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlmods.ops import masked_sum
from rlmods.policy.base import PolicyOutput
from rlmods.training.extensions.base import Extension
from rlmods.training.train_step import Loss
from rlmods.types import Experience, TokenMask, Totals

CORRECT = 0.5
"""Lowest score of a correct response."""


class Likelihood(Extension):
    """Add `-coefficient * mean of log pi` over some tokens of the rows of an optimizer step.

    The denominator is the number of these tokens in the step over all ranks, so that the other
    tokens do not dilute the term, nor it the objective."""

    def __init__(
        self, name: str, coefficient: float, choose: Callable[[Experience], TokenMask]
    ) -> None:
        """
        Args:
            name: name of the term in metrics, `train/<name>_loss`.
            choose: returns a mask of the tokens of rows.
        """
        self.name = name
        self.coefficient = coefficient
        self.choose = choose
        self.num_tokens = torch.ones(())

    def scored_tokens(self, micro: Experience) -> TokenMask:
        return self.choose(micro)

    def before_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        self.num_tokens = self.loop.ranks.reduce(self.choose(minibatch).sum()).clamp(min=1)
        return []

    def loss_term(self, micro: Experience, output: PolicyOutput, totals: Totals) -> Tensor | None:
        chosen = self.choose(micro)
        self.loop.meter.mean(f"train/{self.name}_loss", -output.logprobs, chosen)
        total = masked_sum(output.logprobs, chosen).sum()
        return -self.coefficient * (total / self.num_tokens.to(total))


def correct_tokens(rows: Experience) -> TokenMask:
    """Return the sampled tokens of correct responses: positive examples of VAPO, arXiv:2504.05118,
    equation 13. Rows without a score, as in trial steps, count as correct."""
    if rows.score is None:
        return rows.mask
    return rows.mask & (rows.score >= CORRECT)[:, None]


def observed_tokens(rows: Experience) -> TokenMask:
    """Return the tokens that the policy observed after a turn of its own in the same segment, in
    rows with loss: those of ECHO, arXiv:2605.24517, with the chat template around them. The prompt,
    and what a cut repeats of the conversation, are not among them."""
    columns = torch.arange(rows.mask.shape[1], device=rows.mask.device).expand_as(rows.mask)
    begin = torch.zeros_like(columns)
    if rows.cuts is not None:
        begin = torch.where(rows.cuts, columns, 0).cummax(1).values
    last_sampled = torch.where(rows.mask, columns, -1).cummax(1).values
    in_response = columns < rows.lengths[:, None]
    return in_response & ~rows.mask & (last_sampled >= begin)
