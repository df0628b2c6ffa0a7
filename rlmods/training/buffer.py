"""Buffer of sampled groups, filled until an iteration has enough of them to train on, and the rows
of ranks in checkpoints, which are redistributed if a run resumes with another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlmods.distributed.collectives import Ranks
from rlmods.types import Experience

T = TypeVar("T")
Columns = Mapping[str, Tensor | None] | None
"""Tensors of some rows by field name; None or empty for no rows."""


class SampleBuffer:
    """Kept groups in the order of sampling, and rejected groups, which fill up an iteration without
    loss if too few are kept."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.kept: Experience | None = None
        self.rejected: Experience | None = None
        self.num_pushed = 0
        """Generation batches pushed for the current iteration."""

    def push(self, batch: Experience, keep: Tensor) -> None:
        """Add one generation batch. `keep` [N] is True on the rows of kept groups."""
        self.kept = append(self.kept, batch.select(keep))
        self.rejected = append(self.rejected, batch.select(~keep))
        self.num_pushed += 1

    @property
    def num_groups(self) -> int:
        """Number of kept groups on this rank."""
        return 0 if self.kept is None else len(torch.unique(self.kept.group))

    def min_groups(self) -> int:
        """Return the smallest number of kept groups of any rank."""
        return int(self.ranks.reduce(torch.tensor(self.num_groups), "min"))

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

    def keep_newest(self, num_groups: int) -> Experience:
        """Drop all kept groups except the `num_groups` newest, and return these."""
        assert self.kept is not None
        groups = torch.unique(self.kept.group)
        newest = groups[max(0, len(groups) - num_groups) :]
        self.kept = self.kept.select(torch.isin(self.kept.group, newest))
        return self.kept

    def end_iteration(self) -> None:
        """Drop rejected groups and reset the number of generation batches."""
        self.rejected = None
        self.num_pushed = 0

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


def rank_state(rows: Experience | None) -> dict[str, Any]:
    """Return the rows as plain CPU tensors, for the checkpoint."""
    return {} if rows is None or not len(rows) else dict(rows.trim().to("cpu").tensors())


def reshard_rows(states: Sequence[Columns], rank: int, world_size: int) -> Experience | None:
    """Return the rows of this rank, given those of all ranks in a checkpoint.

    With an unchanged number of ranks each gets its own rows. Otherwise whole groups are distributed
    round-robin in the order in which they were sampled, with ids below those of all later
    groups."""
    held = [Experience(**part) if part else None for part in states]  # type: ignore[arg-type]
    if len(held) == world_size:
        return held[rank]
    # The k-th groups of all ranks were sampled at about the same time: interleave the ranks.
    parts: list[Experience] = []
    order: list[Tensor] = []
    for i, part in enumerate(held):
        if part is not None:
            parts.append(part)
            order.append(_enumerate(part.group) * len(held) + i)
    if not parts:
        return None
    groups = _enumerate(torch.cat(order))
    num_groups = int(groups.max()) + 1
    own = groups % world_size == rank
    if not own.any():
        return None
    return replace(Experience.concat(parts).select(own), group=groups[own] - num_groups)


def reshard(items: Sequence[Sequence[T]], rank: int, world_size: int) -> list[T]:
    """Return the items of this rank, given those of all ranks; distributed round-robin if the
    number of ranks has changed."""
    if len(items) == world_size:
        return list(items[rank])
    return [item for part in items for item in part][rank::world_size]


def _enumerate(x: Tensor) -> Tensor:
    """Replace each value by its index among the sorted distinct values."""
    index: Tensor = torch.unique(x, return_inverse=True)[1]
    return index
