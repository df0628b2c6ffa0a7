"""Checkpointing of rows that differ by rank, and their redistribution if a run resumes with another
number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlmods.types import Experience

T = TypeVar("T")

Columns = Mapping[str, Tensor | None] | None
"""Tensors of some rows by field name; None or empty for no rows."""


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
