"""Groups that are worth training on, waiting until an iteration has enough of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.training.rank_state import reshard_rows, share
from rlmods.types import Experience


class Pool:
    """Kept groups in the order in which they were drawn, and rejected ones to stand in, without loss, where too few were kept."""

    def __init__(self) -> None:
        self.kept: Experience | None = None
        self.rejected: Experience | None = None

    def add(self, experience: Experience, keep: Tensor) -> None:
        """Sort the rows of whole groups into kept and rejected ones."""
        self.kept = _append(self.kept, experience.select(keep))
        self.rejected = _append(self.rejected, experience.select(~keep))

    @property
    def num_groups(self) -> int:
        """Kept groups."""
        return 0 if self.kept is None else len(torch.unique(self.kept.group))

    def take(self, num_groups: int) -> Experience:
        """Remove and return the oldest kept groups, topped up with rejected ones whose mask is empty: always `num_groups` groups."""
        assert self.kept is not None
        assert self.rejected is not None
        oldest = torch.unique(self.kept.group)[:num_groups]
        spare = torch.unique(self.rejected.group)[: num_groups - len(oldest)]
        taken = torch.isin(self.kept.group, oldest)
        rows = [self.kept.select(taken), self.rejected.select(torch.isin(self.rejected.group, spare)).without_loss()]
        self.kept = self.kept.select(~taken)
        return Experience.concat(rows)

    def newest(self, num_groups: int) -> Experience:
        """Keep that many kept groups, those drawn last, and return them."""
        assert self.kept is not None
        groups = torch.unique(self.kept.group)
        self.kept = self.kept.select(torch.isin(self.kept.group, groups[max(0, len(groups) - num_groups) :]))
        return self.kept

    def end_iteration(self) -> None:
        """Forget what was rejected."""
        self.rejected = None

    def share(self) -> dict[str, Any]:
        """What waits on this rank."""
        return share(self.kept)

    def load_rank_states(self, ranks: Sequence[Mapping[str, Any]], rank: int, num_ranks: int) -> None:
        self.kept = reshard_rows(ranks, rank, num_ranks)

    def to(self, device: torch.device) -> None:
        """Move what waits, after a checkpoint was read on the CPU."""
        self.kept = None if self.kept is None else self.kept.to(device)


def _append(rows: Experience | None, more: Experience) -> Experience:
    return more if rows is None else Experience.concat([rows, more])
