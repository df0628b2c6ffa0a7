"""Rejection-sampling fine-tuning."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.types import Experience


class RFT(PolicyGradient):
    """Sample K answers, keep those that are right and differ, imitate them, repeat (arXiv 2308.01825; rounds as in ReST, arXiv 2308.08998).

    `1/sum|y| sum_i sum_t log pi(y_t)` over the accepted answers: supervised fine-tuning on the policy's own best work. It needs neither
    ratio nor baseline, and learns from nothing that went wrong.
    """

    recipe: ClassVar = {
        "sampling": "best_of",
        "advantage": "accept",
        "kl": "none",
        "ratio": "log_likelihood",
        "aggregation": "token_mean",
    }

    def keep(self, judged: Tensor, experience: Experience) -> Tensor:
        """Of equal answers to one prompt, only the first counts: `sampling` chooses among those that differ."""
        first = first_of_equals(experience)
        self.meter.mean("train/duplicate_fraction", (~first).double())
        return super().keep(judged.masked_fill(~first, torch.nan), experience)


def first_of_equals(experience: Experience) -> Tensor:
    """[N] False on rows whose response, to the last token, stands in an earlier row of their group."""
    seen: set[tuple[int, ...]] = set()
    first = torch.ones(len(experience), dtype=torch.bool)
    columns = (experience.group.tolist(), experience.tokens.tolist(), experience.lengths.tolist())
    for i, (group, tokens, length) in enumerate(zip(*columns, strict=True)):
        key = (group, *tokens[:length])
        first[i] = key not in seen
        seen.add(key)
    return first.to(experience.group.device)
