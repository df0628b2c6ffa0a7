"""Rows that ranks hold of their own, in a checkpoint of all ranks, reshard anew where another number of them goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from rlmods.types import Experience

T = TypeVar("T")

Plain = Mapping[str, Tensor | None] | None
"""The columns of some rows; None or empty: no rows."""


def share(rows: Experience | None) -> dict[str, Any]:
    """Plain tensors on the CPU, for the checkpoint."""
    return {} if rows is None or not len(rows) else dict(rows.trim().to("cpu").tensors())


def reshard_rows(ranks: Sequence[Plain], rank: int, num_ranks: int) -> Experience | None:
    """This rank's rows. Where the number of ranks has changed, every rank gets whole groups in turn, in the order in which they were drawn,
    under ids below those of any group yet to come."""
    held = [None if not part else Experience(**part) for part in ranks]  # type: ignore[arg-type]
    if len(held) == num_ranks:
        return held[rank]
    places = [_numbered(part.group) if part is not None else torch.zeros(0, dtype=torch.long) for part in held]
    # The k-th group of every rank was drawn at about the same time: in turn over ranks.
    order = [place * len(held) + i for i, place in enumerate(places)]
    known = [part for part in held if part is not None]
    if not known:
        return None
    groups = _numbered(torch.cat(order))
    num_groups = int(groups.max()) + 1
    rows = Experience.concat(known)
    rows = rows.select(groups % num_ranks == rank) if num_groups else rows
    mine = groups[groups % num_ranks == rank]
    return None if not len(rows) else Experience(**dict(rows.tensors()) | {"group": mine - num_groups})  # type: ignore[arg-type]


def reshard(ranks: Sequence[Sequence[T]], rank: int, num_ranks: int) -> list[T]:
    """This rank's items; in turn, where the number of ranks has changed."""
    if len(ranks) == num_ranks:
        return list(ranks[rank])
    return [item for part in ranks for item in part][rank::num_ranks]


def _numbered(x: Tensor) -> Tensor:
    """0 for the smallest value, 1 for the next."""
    _, place = torch.unique(x, return_inverse=True)
    return cast(Tensor, place)
