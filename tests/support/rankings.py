"""Ragged rankings to test losses on: prompts with one candidate or none, ties, numbers that mean
nothing where there is no candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.support.batches import POISON


@dataclass(frozen=True)
class Rankings:
    logprobs: Tensor
    ref_logprobs: Tensor
    num_tokens: Tensor
    rank: Tensor
    margin: Tensor

    @property
    def present(self) -> Tensor:
        return self.num_tokens > 0

    def poisoned(self) -> Rankings:
        """The same with something terrible wherever there is no candidate."""
        kinds = torch.tensor(POISON, dtype=torch.float64)
        poison = kinds[torch.arange(self.rank.numel()) % len(kinds)].view(self.rank.shape)
        logprobs, ref = (
            torch.where(self.present, x, poison) for x in (self.logprobs, self.ref_logprobs)
        )
        return replace(self, logprobs=logprobs, ref_logprobs=ref)

    def prompts(self, rows: Tensor) -> Rankings:
        return Rankings(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def candidates(self, columns: Tensor) -> Rankings:
        return self._wide(lambda x: x[:, columns])

    def widened(self, columns: int) -> Rankings:
        """More candidates that are not there."""
        return self._wide(lambda x: torch.nn.functional.pad(x, (0, columns)))

    def pairs(self, p: int) -> list[tuple[int, int]]:
        """(better, worse) of one prompt."""
        there = [k for k in range(self.rank.shape[1]) if self.present[p, k]]
        return [(i, j) for i in there for j in there if self.rank[p, i] < self.rank[p, j]]

    def over_pairs(self, loss: Callable[[int, int, int], Tensor]) -> Tensor:
        """Mean of loss(prompt, better, worse) over the pairs of each prompt; 0 without any. A loop,
        one scalar at a time."""
        zero = torch.zeros((), dtype=torch.float64)
        each = [[loss(p, i, j) for i, j in self.pairs(p)] for p in range(len(self.rank))]
        return torch.stack([sum(found, zero) / max(1, len(found)) for found in each])

    def _wide(self, change: Callable[[Tensor], Tensor]) -> Rankings:
        return replace(
            self,
            **{f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "margin"},
        )


def ranking(prompts: int, candidates: int, seed: int) -> Rankings:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    shape = (prompts, candidates)
    num_tokens = torch.randint(0, 6, shape, generator=g)
    rank = torch.randint(0, candidates, shape, generator=g)
    return Rankings(
        -4 * normal(*shape).abs() - 0.1,
        -4 * normal(*shape).abs() - 0.1,
        num_tokens,
        rank,
        normal(prompts).abs(),
    )


rankings = st.builds(ranking, st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
"""Drawn by hypothesis."""
