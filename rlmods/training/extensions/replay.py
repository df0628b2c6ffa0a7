"""Replay of rows from earlier iterations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlmods.training.buffer import append
from rlmods.training.checkpoint import rank_state, reshard_rows
from rlmods.training.extensions.base import Extension
from rlmods.types import Experience

GENERATOR = 1_000_000
"""Purpose of the random numbers, for `generator`. Epochs are smaller numbers."""


class Replay(Extension):
    """Keep the rows of the last `staleness` iterations and train again on a random fraction of
    them.

    A replayed row keeps its `old_logprobs`, so the ratio is its importance weight, and clipping
    bounds its influence."""

    needs_old_logprobs = True
    depends_on_grading = "rows"

    def __init__(self, fraction: float, staleness: int = 4) -> None:
        """
        Args:
            fraction: number of replayed rows by number of fresh rows.
            staleness: iterations for which a row is kept.
        """
        self.fraction = fraction
        self.added_fraction = fraction
        self.staleness = staleness
        self.rows: Experience | None = None

    def before_update(self, batch: Experience) -> Experience:
        loop = self.loop
        replayed = self.draw(len(batch), loop.iteration, loop.generator(GENERATOR))
        if replayed is None:
            return batch
        return Experience.concat([batch, replayed.to(batch.tokens.device)])

    def after_update(self, batch: Experience, num_fresh: int) -> None:
        fresh = batch.select(torch.arange(num_fresh))
        fresh = fresh.select(fresh.mask.any(1))
        self.rows = append(self.rows, fresh)

    def draw(self, num_fresh: int, iteration: int, generator: torch.Generator) -> Experience | None:
        """Return rows to train on again, without repetition; fewer if there are not enough."""
        if self.rows is None:
            return None
        self.rows = self.rows.select(iteration - self.rows.policy_version <= self.staleness)
        count = min(len(self.rows), round(self.fraction * num_fresh))
        if not count:
            return None
        drawn = torch.randperm(len(self.rows), generator=generator)[:count]
        return self.rows.select(drawn.to(self.rows.group.device))

    def rank_state(self) -> dict[str, Any]:
        return rank_state(self.rows)

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        self.rows = reshard_rows(states, rank, world_size)
