"""Rows of earlier iterations that are trained on again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlmods.training.rank_state import reshard_rows, share
from rlmods.types import Experience


@dataclass
class Replay:
    """Keeps what was trained on for `staleness` iterations and hands out a fraction of it again.

    A replayed row keeps the log-probabilities of the policy that sampled it, so the ratio weighs it by importance and the clip bounds how
    much it can say."""

    fraction: float = 0.0
    """Replayed rows by fresh rows. 0: none are kept."""
    staleness: int = 4
    """Iterations a row is kept for."""
    rows: Experience | None = field(default=None, init=False)

    def draw(self, num_fresh: int, iteration: int, generator: torch.Generator) -> Experience | None:
        """Rows to train on again, without repetition; fewer where there are not so many."""
        if not self.fraction or self.rows is None:
            return None
        self.rows = self.rows.select(iteration - self.rows.version <= self.staleness)
        count = min(len(self.rows), round(self.fraction * num_fresh))
        return self.rows.select(torch.randperm(len(self.rows), generator=generator)[:count].to(self.rows.group.device)) if count else None

    def keep(self, rows: Experience) -> None:
        """Remember rows of this iteration, with their old log-probabilities."""
        if self.fraction:
            fresh = rows.select(rows.mask.any(1))
            self.rows = fresh if self.rows is None else Experience.concat([self.rows, fresh])

    def to(self, device: torch.device) -> None:
        self.rows = None if self.rows is None else self.rows.to(device)

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """It moves with the rows, not with metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing that ranks have in common."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def share(self) -> dict[str, Any]:
        return share(self.rows)

    def load_rank_states(self, ranks: Sequence[Mapping[str, Any]], rank: int, num_ranks: int) -> None:
        self.rows = reshard_rows(ranks, rank, num_ranks)
