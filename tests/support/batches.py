"""Ragged batches to test losses on: holes inside rows, rows without a token, groups that are not
contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import settings, strategies as st
from torch import Tensor

from rlmods.types import Totals

few = settings(deadline=None, max_examples=25, derandomize=True)

POISON = (torch.nan, torch.inf, -torch.inf, 1e6, -1e6)


@dataclass(frozen=True)
class Batch:
    log_ratio: Tensor
    advantages: Tensor
    rewards: Tensor
    values: Tensor
    mask: Tensor
    group: Tensor

    @property
    def totals(self) -> Totals:
        return Totals(max(1.0, float(self.mask.sum())), max(1.0, float(self.mask.any(1).sum())))

    @property
    def old_logprobs(self) -> Tensor:
        """Log-probabilities of the old policy, between 0.02 and 1 for most tokens."""
        return -self.values.abs()

    def poisoned(self) -> Batch:
        """The same batch with something terrible in every masked slot."""
        kinds = torch.tensor(POISON, dtype=torch.float64)
        poison = kinds[torch.arange(self.mask.numel()) % len(kinds)].view(self.mask.shape)
        return self._fields(lambda x: torch.where(self.mask, x, poison))

    def padded(self, columns: int) -> Batch:
        wide = self._fields(lambda x: torch.nn.functional.pad(x, (0, columns), value=7.0))
        return replace(wide, mask=torch.nn.functional.pad(self.mask, (0, columns)))

    def select(self, rows: Tensor) -> Batch:
        return replace(
            self._fields(lambda x: x[rows]), mask=self.mask[rows], group=self.group[rows]
        )

    def _fields(self, change) -> Batch:
        return replace(
            self,
            **{
                name: change(getattr(self, name))
                for name in ("log_ratio", "advantages", "rewards", "values")
            },
        )


def batch(rows: int, width: int, seed: int, holes: float = 0.2) -> Batch:
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return torch.randn(rows, width, generator=g, dtype=torch.float64) * scale

    lengths = torch.randint(0, width + 1, (rows, 1), generator=g)
    mask = (torch.arange(width) < lengths) & (torch.rand(rows, width, generator=g) >= holes)
    group = torch.randint(0, max(1, rows // 3) + 1, (rows,), generator=g) * 1000 - 7
    return Batch(normal(0.4), normal(1.0), normal(1.0), normal(1.0), mask, group)


batches = st.builds(batch, st.integers(1, 8), st.integers(1, 7), st.integers(0, 10**6))
"""Drawn by hypothesis."""


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    """d loss / d x; 0 where the loss is a constant."""
    return torch.autograd.grad(loss, x)[0] if loss.requires_grad else torch.zeros_like(x)
