"""Attention of packed tokens row by row, in few calls of PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from rlmods.policy.gathering import Index, gather

Array = np.ndarray[Any, Any]

MIN_USED = 0.7
"""Minimum fraction of the queries in one call of attention that are tokens of their rows alone. The
others are padding, or tokens that another row has computed."""


class Chunk(NamedTuple):
    """One call of attention on r rows: the packed tokens of their columns, with any token behind
    the end of a row."""

    queries: Index
    """The last Q columns [r, Q]."""
    keys: Index
    """All columns [r, L]."""
    visible: Bool[Tensor, "Q L"] | None
    """The keys that each query sees, those of its column and before; None if Q = L."""


@dataclass(frozen=True)
class Rows:
    """Calls of attention for S packed tokens of some rows."""

    chunks: Sequence[Chunk]
    """They have every packed token among their queries."""
    outputs: Index
    """For each packed token, the place of its output among the outputs of all chunks."""

    @staticmethod
    def of(
        number: Int[Array, "N T"],
        own: Bool[Array, "N T"],
        lengths: Int[Array, " N"],
        device: torch.device,
    ) -> Rows:
        """Divide rows into chunks.

        Args:
            number: the packed token of each row and column.
            own: True where no other row has computed it.
            lengths: number of columns of each row.
        """
        num_packed = int(own.sum())
        chunks = []
        places = np.zeros_like(number)
        offset = 0
        first_query = np.zeros_like(lengths) if attends_whole_rows(device) else lengths - own.sum(1)
        for rows in _chunks(first_query, lengths):
            start = first_query[rows].min()
            end = lengths[rows].max()
            num_queries = len(rows) * (end - start)
            visible = None
            if start > 0:
                mask = np.tri(end - start, end, start, dtype=bool)
                visible = torch.from_numpy(mask).to(device)
            keys = Index.of(number[rows, :end], num_packed, device)
            queries = keys
            if start > 0:
                queries = Index.of(number[rows, start:end], num_packed, device)
            chunks.append(Chunk(queries, keys, visible))
            outputs = offset + np.arange(num_queries)
            places[rows, start:end] = outputs.reshape(len(rows), -1)
            offset += num_queries
        return Rows(chunks, Index.of(places[own], offset, device))

    def attend(
        self,
        query: Float[Tensor, "S H D"],
        key: Float[Tensor, "S K D"],
        value: Float[Tensor, "S K D"],
        scale: float | None,
    ) -> Float[Tensor, "S H D"]:
        """Return the attention of each token to its row, up to itself."""
        outputs = []
        for chunk in self.chunks:
            q = gather(query, chunk.queries).transpose(1, 2)
            k = gather(key, chunk.keys).transpose(1, 2)
            v = gather(value, chunk.keys).transpose(1, 2)
            k, v = equal_heads(q, k, v, q.dtype)
            output = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                chunk.visible,
                is_causal=chunk.visible is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return gather(torch.cat(outputs), self.outputs)


def attends_whole_rows(device: torch.device) -> bool:
    """Return True if all tokens of a row are queries, also those that another row has computed: on
    GPUs, where the fast kernels for heads that share keys take no mask."""
    return device.type == "cuda"


def _chunks(starts: Array, lengths: Array) -> list[Array]:
    """Return the rows that have own columns, from `starts` to `lengths`, in chunks: the queries of
    a chunk are the columns from the first start to the last end, and `MIN_USED` of them are own
    columns. Rows with many own columns come first."""
    chunks: list[list[int]] = []
    spans: list[tuple[int, int, int]] = []  # first start, last end and own columns of a chunk
    own = lengths - starts
    order = np.argsort(-own, kind="stable")
    for row in order[own[order] > 0].tolist():
        span = (int(starts[row]), int(lengths[row]), int(own[row]))
        for i in reversed(range(len(chunks))):
            start = min(spans[i][0], span[0])
            end = max(spans[i][1], span[1])
            used = spans[i][2] + span[2]
            if used >= MIN_USED * (len(chunks[i]) + 1) * (end - start):
                chunks[i].append(row)
                spans[i] = (start, end, used)
                break
        else:
            chunks.append([row])
            spans.append(span)
    return list(map(np.array, chunks))


def equal_heads(
    query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return keys and values [R, H, L, D], for attention that is computed in this data type: those
    of heads that share them are repeated where PyTorch would compute all scores of a row at once
    instead, of every query and key."""
    num_shared = query.shape[1] // key.shape[1]
    if num_shared == 1 or shares_heads(query.device.type, dtype):
        return key, value
    return key.repeat_interleave(num_shared, 1), value.repeat_interleave(num_shared, 1)


def shares_heads(device: str, dtype: torch.dtype) -> bool:
    """Return True if a fast kernel of attention in this data type lets heads share keys: not in
    float32 on GPUs, as only FlashAttention does, in 16 bits."""
    return device != "cuda" or dtype in (torch.bfloat16, torch.float16)
