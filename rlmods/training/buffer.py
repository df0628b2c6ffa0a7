"""Buffer of sampled groups, filled until an iteration has enough of them to train on."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.distributed.collectives import Ranks
from rlmods.training.checkpoint import rank_state, reshard_rows
from rlmods.types import Experience


class SampleBuffer:
    """Kept groups in the order of sampling, and rejected groups, which pad a short iteration with
    their masks emptied."""

    depends_on_grading: ClassVar[str] = "rows"

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.kept: Experience | None = None
        self.rejected: Experience | None = None
        self.num_draws = 0
        """Batches of prompts sampled for the current iteration."""

    def push(self, batch: Experience, keep: Tensor) -> None:
        """Add one generation batch. `keep` [N] is True on the rows of kept groups."""
        self.kept = append(self.kept, batch.select(keep))
        self.rejected = append(self.rejected, batch.select(~keep))
        self.num_draws += 1

    @property
    def num_groups(self) -> int:
        """Number of kept groups on this rank."""
        return 0 if self.kept is None else len(torch.unique(self.kept.group))

    def min_groups(self) -> int:
        """Return the smallest number of kept groups of any rank."""
        return self.ranks.reduce_count(self.num_groups, "min")

    def pop(self, num_groups: int) -> Experience:
        """Remove and return the oldest kept groups, filled up to `num_groups` with rejected groups
        whose mask is empty."""
        assert self.kept is not None
        assert self.rejected is not None
        oldest = torch.unique(self.kept.group)[:num_groups]
        spare = torch.unique(self.rejected.group)[: num_groups - len(oldest)]
        popped = torch.isin(self.kept.group, oldest)
        rows = self.kept.select(popped)
        filling = self.rejected.select(torch.isin(self.rejected.group, spare)).without_loss()
        self.kept = self.kept.select(~popped)
        return Experience.concat([rows, filling])

    def keep_newest(self, num_groups: int) -> tuple[Experience, int]:
        """Drop all kept groups except the `num_groups` newest. Returns these, and the number of
        groups dropped."""
        assert self.kept is not None
        groups = torch.unique(self.kept.group)
        num_dropped = max(0, len(groups) - num_groups)
        newest = groups[num_dropped:]
        self.kept = self.kept.select(torch.isin(self.kept.group, newest))
        return self.kept, num_dropped

    def end_iteration(self) -> None:
        """Drop rejected groups and reset the number of generation batches."""
        self.rejected = None
        self.num_draws = 0

    def rank_state(self) -> dict[str, Any]:
        """Return the kept groups of this rank, for the checkpoint."""
        return rank_state(self.kept)

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        """Load this rank's part of the kept groups of all ranks."""
        self.kept = reshard_rows(states, rank, world_size)


def append(rows: Experience | None, more: Experience) -> Experience:
    """Concatenate rows on the device of `more`; those of a checkpoint were loaded on the CPU."""
    return more if rows is None else Experience.concat([rows.to(more.tokens.device), more])
