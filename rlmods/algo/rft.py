"""Rejection-sampling fine-tuning."""

import torch
from torch import Tensor

from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.types import Experience


class RFT(PolicyGradient):
    """Sample K responses, keep the correct and distinct ones, and train on them (arXiv:2308.01825;
    in rounds as ReST, arXiv:2308.08998).

    `1/sum|y| sum_i sum_t log pi(y_t)` over the accepted responses: supervised fine-tuning on the
    policy's own best responses. `sampling=best_of` leaves rejected responses out; with
    `sampling=fixed` their tokens count in the denominator. It needs neither a ratio nor a baseline,
    and does not learn from incorrect responses. Fine-tuning is the same on samples of any
    distribution, so there is no
    `correction`."""

    config_groups = tuple(group for group in PolicyGradient.config_groups if group != "correction")

    def select(self, scores: Tensor, batch: Experience) -> Tensor:
        """`sampling` selects among distinct responses: of equal ones to a prompt, only the first is
        considered."""
        is_first = first_of_equals(batch)
        self.meter.mean("train/duplicate_fraction", (~is_first).double())
        return super().select(scores.masked_fill(~is_first, torch.nan), batch)


def first_of_equals(batch: Experience) -> Tensor:
    """Return a mask [N] that is False on rows whose tokens equal those of an earlier row of their
    group."""
    seen: set[tuple[int, ...]] = set()
    is_first = torch.ones(len(batch), dtype=torch.bool)
    columns = (batch.group.tolist(), batch.tokens.tolist(), batch.lengths.tolist())
    for i, (group, tokens, length) in enumerate(zip(*columns, strict=True)):
        key = (group, *tokens[:length])
        is_first[i] = key not in seen
        seen.add(key)
    return is_first.to(batch.group.device)
