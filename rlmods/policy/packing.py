"""Rows of tokens as one sequence in which equal prompts, and no padding, are computed once.

The responses to a prompt share it, so its tokens are the same in each of their rows. A `Packing` lays the distinct tokens out one after the
other: all linear layers of the network see each of them once, and attention, which alone lets a token see others, is computed row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlmods.types import TokenInts, TokenMask

IMPLEMENTATION = "rlmods_packed_sdpa"
"""Name of the attention under transformers: `sdpa`, apart from forwards with a packing."""
SAME_CHUNK = 0.7
"""Rows at least this fraction as long as the longest are in the same call of attention, where they are padded to it."""


@dataclass(frozen=True)
class Packing:
    """S distinct tokens of N rows: the columns of a row that a later scored token depends on, with the prompts of equal rows once."""

    tokens: Int[Tensor, " S"]
    positions: Int[Tensor, " S"]
    """Position of each token in its row."""
    states: Int[Tensor, " n"]
    """For each scored token, row by row, the packed token before it."""
    chunks: Sequence[Int[Tensor, "r L"]]
    """For each call of attention, the packed tokens of its rows, in order; 0 behind the end of a row."""
    outputs: Int[Tensor, " S"]
    """For each packed token, the place of its output among those of all chunks."""

    @staticmethod
    def of(tokens: TokenInts, mask: TokenMask) -> Packing:
        """Lay out right-padded rows, of which the tokens in the mask are scored: each depends on all columns before it.

        What a row has in common with earlier ones is its prompt, the columns before its first scored token, if all of it is equal."""
        device, (ids, scored) = tokens.device, (x.cpu().numpy() for x in (tokens, mask))
        scored = scored & (np.arange(scored.shape[1]) > 0)  # nothing precedes the first column
        column = np.arange(ids.shape[1])
        lengths = np.where(scored, column, 0).max(1)  # columns that a scored token depends on
        prompts = np.minimum(np.where(scored, column, len(column)).min(1), lengths)
        if not scored.any():
            lengths[0] = prompts[0] = 1  # a forward of no token is none
        first = _first_equal(ids, prompts)
        own = (column < lengths[:, None]) & ((column >= prompts[:, None]) | (first == np.arange(len(ids)))[:, None])
        number = np.zeros(ids.shape, dtype=np.int64)
        number[own] = np.arange(own.sum())
        number = np.where(column < prompts[:, None], number[first], number)
        chunks, places, offset = [], np.zeros_like(number), 0
        for rows in _chunks(lengths):
            longest = lengths[rows[0]]
            chunks.append(np.where(column[:longest] < lengths[rows, None], number[rows, :longest], 0))
            places[rows, :longest] = offset + np.arange(len(rows) * longest).reshape(len(rows), longest)
            offset += len(rows) * longest

        def tensor(x: np.ndarray[Any, Any]) -> Tensor:
            return torch.from_numpy(x).to(device)

        return Packing(
            tokens=tensor(ids[own]),
            positions=tensor(np.broadcast_to(column, own.shape)[own]),
            states=tensor(number[:, :-1][scored[:, 1:]]),
            chunks=[tensor(chunk) for chunk in chunks],
            outputs=tensor(places[own]),
        )

    def __len__(self) -> int:
        return len(self.tokens)


def _first_equal(ids: np.ndarray[Any, Any], prompts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row the first row with the same prompt."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(ids[i, :length].tobytes(), i) for i, length in enumerate(prompts)])


def _chunks(lengths: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the rows with tokens in chunks of similar lengths, longest first."""
    order = np.argsort(-lengths, kind="stable")
    chunks: list[list[int]] = []
    for row in order[lengths[order] > 0].tolist():
        if chunks and lengths[row] >= SAME_CHUNK * lengths[chunks[-1][0]]:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return [np.array(chunk) for chunk in chunks]


class _Gather(torch.autograd.Function):
    """`x[index]` along the first dimension. The gradients of a row that is gathered several times are added in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = len(x)
        return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        rows = gradient.new_zeros(ctx.num_rows, *gradient.shape[index.ndim :])
        flat = gradient.flatten(0, index.ndim - 1)
        if gradient.device.type == "cuda":  # where index_add_ adds in the order of arrival
            return rows.index_put_((index.flatten(),), flat, accumulate=True), None
        return rows.index_add_(0, index.flatten(), flat), None


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Return `x[index]` along the first dimension, for an index that names rows several times."""
    rows: Tensor = _Gather.apply(x, index)  # type: ignore[no-untyped-call]
    return rows


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers (`sdpa`): of a batch, or, with `packing`, of its rows, given its tokens [1, H, S, D].

    In a row each token sees those before it. Queries of shared tokens are computed in each of their rows, and the first one counts."""
    if packing is None:
        if attention_mask is None and query.shape[2] == 1 and query.device.type == "cpu" and query.dtype == torch.bfloat16:
            # PyTorch's kernel for one token without a mask is five times as slow in 16 bits.
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
    # PyTorch's backward of attention on processors takes three times as long in 16 bits.
    dtype = torch.float32 if query.device.type == "cpu" and query.dtype == torch.bfloat16 else query.dtype
    by_token = [x[0].transpose(0, 1).to(dtype) for x in (query, key, value)]
    outputs = []
    for chunk in packing.chunks:
        states = (gather(x, chunk).transpose(1, 2) for x in by_token)
        with torch.autocast(query.device.type, enabled=False):
            output, _ = sdpa_attention_forward(module, *states, attention_mask=None, **(kwargs | {"is_causal": True}))
        outputs.append(output.flatten(0, 1).to(query.dtype))
    return gather(torch.cat(outputs), packing.outputs)[None], None


def use_packed_attention(model: Any) -> bool:
    """Let a model of transformers accept `packing`. Return False, and change nothing, for one with another attention than `sdpa`, or with
    layers that do not see all tokens before them (sliding windows, recurrence)."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if is_packed(model):
        return True
    if config._attn_implementation != "sdpa" or kinds - {"full_attention"} or (window and not kinds):
        return False
    model.set_attn_implementation(IMPLEMENTATION)
    return is_packed(model)


def is_packed(model: Any) -> bool:
    """Return True after `use_packed_attention`."""
    return bool(model.config.get_text_config()._attn_implementation == IMPLEMENTATION)


def use_plain_attention(model: Any) -> None:
    """Undo `use_packed_attention`."""
    model.set_attn_implementation("sdpa")


AttentionInterface.register(IMPLEMENTATION, packed_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
