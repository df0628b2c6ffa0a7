"""Entries of a tensor, gathered with gradients that are summed in a fixed order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import embedding_bag

Array = np.ndarray[Any, Any]


class Index(NamedTuple):
    """Entries to gather along the first dimension of a tensor, any of them several times."""

    entries: Int[Tensor, " *shape"]
    order: Int[Tensor, " n"]
    """Places in the flat `entries`, ordered by the entry that they name."""
    starts: Int[Tensor, " size"]
    """For each entry of the tensor, where its places begin in `order`."""

    @staticmethod
    def of(entries: Array, size: int, device: torch.device) -> Index:
        """Index a tensor of this size."""
        order = np.argsort(entries, axis=None, kind="stable")
        starts = np.searchsorted(entries.ravel()[order], np.arange(size))
        flat = np.concatenate([entries.ravel(), order, starts])
        # one copy to the device
        parts = torch.split(torch.from_numpy(flat).to(device), [entries.size, order.size, size])
        return Index(parts[0].view(entries.shape), parts[1], parts[2])


class _Gather(torch.autograd.Function):
    """`x[entries]`. The gradients of an entry that is gathered several times are added in a fixed
    order, in 32 bits at least, and without a sort: the index, the same in every layer, is ordered
    once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Index) -> Tensor:
        ctx.save_for_backward(index.order, index.starts)
        entries = index.entries
        ctx.num_dimensions = entries.ndim
        return x.index_select(0, entries.flatten()).view(*entries.shape, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        order, starts = ctx.saved_tensors
        shape = gradient.shape[ctx.num_dimensions :]
        flat = gradient.reshape(len(order), shape.numel())
        sums = embedding_bag(order, flat, starts, mode="sum")
        return sums.view(len(starts), *shape), None


def gather(x: Tensor, index: Index) -> Tensor:
    """Return `x[index.entries]` along the first dimension."""
    entries: Tensor = _Gather.apply(x, index)  # type: ignore[no-untyped-call]
    return entries
