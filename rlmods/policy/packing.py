"""Rows of tokens as one sequence in which equal prefixes are computed once, and padding is not.

The responses to a prompt share it, and branches of a response share the tokens before them. These
follow the same tokens in each of their rows, so that all the network computes for them is the same.
A `Packing` lays the distinct tokens out one after the other: all linear layers of the network see
each of them once, and attention, which alone lets a token see others, is computed row by row, in
each row for the tokens that no earlier row has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlmods.ops import autocast_dtype
from rlmods.types import TokenInts, TokenMask

IMPLEMENTATION = "rlmods_packed_sdpa"
"""Name of the attention under transformers: `sdpa`, apart from forwards with a packing."""
MIN_USED = 0.7
"""Minimum fraction of the queries in one call of attention that are tokens of their rows alone. The
others are padding, or tokens that another row has computed."""


class Chunk(NamedTuple):
    """One call of attention on r rows: the packed tokens of their columns, with any token behind
    the end of a row."""

    queries: Int[Tensor, "r Q"]
    """The last Q columns."""
    keys: Int[Tensor, "r L"]
    """All columns."""
    visible: Bool[Tensor, "Q L"] | None
    """The keys that each query sees, those of its column and before; None if Q = L."""


@dataclass(frozen=True)
class Packing:
    """S distinct tokens of N rows: the columns of a row that a later scored token depends on, with
    equal prefixes of rows once."""

    tokens: Int[Tensor, " S"]
    positions: Int[Tensor, " S"]
    """Position of each token in its row."""
    states: Int[Tensor, " m"]
    """For each distinct scored token, the packed token before it."""
    distinct: Int[Tensor, " m"]
    """For each distinct scored token, its place among all scored tokens, row by row."""
    scored: Int[Tensor, " n"]
    """For each scored token, row by row, its place among the distinct ones."""
    chunks: Sequence[Chunk]
    """Calls of attention, which together have every packed token among their queries."""
    outputs: Int[Tensor, " S"]
    """For each packed token, the place of its output among those of all chunks."""

    @staticmethod
    def of(tokens: TokenInts, mask: TokenMask) -> Packing:
        """Lay out right-padded rows, of which the tokens in the mask are scored: each depends on
        all columns before it."""
        device, (ids, scored) = tokens.device, (x.cpu().numpy() for x in (tokens, mask))
        scored = scored & (np.arange(scored.shape[1]) > 0)  # nothing precedes the first column
        row, column = np.arange(len(ids))[:, None], np.arange(ids.shape[1])
        lengths = np.where(scored, column, 0).max(1)  # columns that a scored token depends on
        if not scored.any():
            lengths[0] = 1  # a forward of no token is none
        first, needed = _first_equal(ids, lengths), column < lengths[:, None]
        own = needed & (first == row)
        number = np.zeros(ids.shape, dtype=np.int64)
        number[own] = np.arange(own.sum())
        number = np.where(needed, number[first, column], 0)
        states, targets = number[:, :-1][scored[:, 1:]], ids[:, 1:][scored[:, 1:]]
        # The distribution of a token depends on the packed token before it alone.
        _, distinct, repeats = np.unique(
            states * (targets.max(initial=0) + 1) + targets, return_index=True, return_inverse=True
        )

        def tensor(x: np.ndarray[Any, Any]) -> Tensor:
            return torch.from_numpy(x).to(device)

        chunks, places, offset = [], np.zeros_like(number), 0
        first_query = np.zeros_like(lengths) if attends_whole_rows(device) else lengths - own.sum(1)
        for rows in _chunks(first_query, lengths):
            start, end = first_query[rows].min(), lengths[rows].max()
            visible = None if start == 0 else tensor(np.tri(end - start, end, start, dtype=bool))
            chunks.append(
                Chunk(tensor(number[rows, start:end]), tensor(number[rows, :end]), visible)
            )
            places[rows, start:end] = offset + np.arange(len(rows) * (end - start)).reshape(
                len(rows), -1
            )
            offset += len(rows) * (end - start)

        return Packing(
            tokens=tensor(ids[own]),
            positions=tensor(np.broadcast_to(column, own.shape)[own]),
            states=tensor(states[distinct]),
            distinct=tensor(distinct),
            scored=tensor(repeats),
            chunks=chunks,
            outputs=tensor(places[own]),
        )

    def __len__(self) -> int:
        return len(self.tokens)


def attends_whole_rows(device: torch.device) -> bool:
    """Return True if all tokens of a row are queries, also those that another row has computed: on
    GPUs, where the fast kernels for heads that share keys take no mask."""
    return device.type == "cuda"


def _first_equal(ids: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row i and column t < lengths[i] one row for all that equal row i in the
    columns up to t and have as many: the first of them in the order of the rows' tokens."""
    order = np.array(sorted(range(len(ids)), key=lambda i: ids[i, : lengths[i]].tobytes()))
    ids, lengths, column = ids[order], lengths[order], np.arange(ids.shape[1])
    # In this order, rows with an equal prefix follow each other, those that end with it first.
    common = (
        np.where(ids[1:] == ids[:-1], ids.shape[1], column)
        .min(1)
        .clip(max=np.minimum(lengths[1:], lengths[:-1]))
    )
    begins = column >= np.concatenate([[0], common])[:, None]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(ids))[:, None], 0))
    rows = np.empty_like(first)
    rows[order] = order[first]
    return rows


def _chunks(
    starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """Return the rows that have own columns, from `starts` to `lengths`, in chunks: the queries of
    a chunk are the columns from the first start to the last end, and `MIN_USED` of them are own
    columns. Rows with many own columns come first."""
    chunks: list[list[int]] = []
    spans: list[tuple[int, int, int]] = []  # first start, last end and own columns of a chunk
    own = lengths - starts
    order = np.argsort(-own, kind="stable")
    for row in order[own[order] > 0].tolist():
        for i in reversed(range(len(chunks))):
            start, end, used = (
                min(spans[i][0], int(starts[row])),
                max(spans[i][1], int(lengths[row])),
                spans[i][2] + int(own[row]),
            )
            if used >= MIN_USED * (len(chunks[i]) + 1) * (end - start):
                chunks[i].append(row)
                spans[i] = start, end, used
                break
        else:
            chunks.append([row])
            spans.append((int(starts[row]), int(lengths[row]), int(own[row])))
    return [np.array(rows) for rows in chunks]


class _Gather(torch.autograd.Function):
    """`x[index]` along the first dimension. The gradients of a row that is gathered several times
    are added in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = len(x)
        return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        # sums in at least 32 bits
        flat = gradient.flatten(0, index.ndim - 1).to(
            torch.promote_types(gradient.dtype, torch.float32)
        )
        rows = flat.new_zeros(ctx.num_rows, *gradient.shape[index.ndim :])
        if gradient.device.type == "cuda":  # where index_add_ adds in the order of arrival
            rows.index_put_((index.flatten(),), flat, accumulate=True)
        else:
            rows.index_add_(0, index.flatten(), flat)
        return rows.to(gradient.dtype), None


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
    """Attention of transformers (`sdpa`): of a batch, or, with `packing`, of its rows, given its
    tokens [1, H, S, D].

    In a row each token sees itself and those before it."""
    if packing is None:
        if (
            attention_mask is None
            and query.shape[2] == 1
            and query.device.type == "cpu"
            and query.dtype == torch.bfloat16
        ):
            # PyTorch's kernel for one token without a mask is five times as slow in 16 bits.
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
    dtype = attention_dtype(query.device.type, query.dtype, autocast_dtype(query))
    queries, keys, values = (x.squeeze(0).transpose(0, 1).to(dtype) for x in (query, key, value))
    outputs = []
    for chunk in packing.chunks:
        indexed = ((queries, chunk.queries), (keys, chunk.keys), (values, chunk.keys))
        q, k, v = (gather(x, index).transpose(1, 2) for x, index in indexed)
        with torch.autocast(query.device.type, enabled=False):
            if chunk.visible is None:
                output, _ = sdpa_attention_forward(
                    module, q, k, v, attention_mask=None, **(kwargs | {"is_causal": True})
                )
            else:  # that function copies keys and values for each head if there is a mask
                shares_keys = query.shape[1] != key.shape[1]
                output = scaled_dot_product_attention(
                    q, k, v, chunk.visible, scale=kwargs.get("scaling"), enable_gqa=shares_keys
                )
                output = output.transpose(1, 2)
        outputs.append(output.flatten(0, 1).to(query.dtype))
    return gather(torch.cat(outputs), packing.outputs)[None], None


class States(NamedTuple):
    """Last hidden states before the n scored tokens of some rows."""

    hidden: Float[Tensor, "m H"]
    """Before each of them, row by row (m = n), or, with a packing, before each distinct one."""
    packing: Packing | None = None

    def distinct(self, x: Tensor) -> Tensor:
        """Return what belongs to the states, of a tensor with one entry for each scored token."""
        return x if self.packing is None else x[self.packing.distinct]

    def by_token(self, x: Tensor) -> Tensor:
        """Return an entry for each scored token, of a tensor with one for each state."""
        return x if self.packing is None else gather(x, self.packing.scored)


def packed_states(trunk: Any, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, of a trunk whose model accepts `packing`
    (`enable_packing`)."""
    packing = Packing.of(tokens, mask)
    # transformers leaves masks with four dimensions as they are; attention with a packing reads
    # none.
    inputs = {
        "position_ids": packing.positions[None],
        "attention_mask": mask.new_ones(1, 1, 1, 1),
        "packing": packing,
    }
    hidden = trunk(input_ids=packing.tokens[None], use_cache=False, **inputs).last_hidden_state[0]
    return States(gather(hidden, packing.states), packing)


def padded_states(trunk: Any, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, from a forward of all columns."""
    hidden: Tensor = trunk(input_ids=tokens, use_cache=False).last_hidden_state
    return States(hidden[:, :-1][mask[:, 1:]])


def enable_packing(model: Any, device: torch.device) -> bool:
    """Let a model of transformers accept `packing`, and return True if the states of packed rows
    are then those of padded ones. Otherwise leave it with its own attention. `device`: where its
    forward runs."""
    if not use_packed_attention(model):
        return False
    if packing_agrees(model, device):
        return True
    use_plain_attention(model)
    return False


def attention_dtype(device: str, dtype: torch.dtype, autocast: torch.dtype | None) -> torch.dtype:
    """Return the data type in which attention of packed rows is computed, given that of the queries
    and that of autocast: on GPUs that of autocast, which the fast kernels need (queries with rotary
    positions are float32); on processors at least 32 bits, as PyTorch's backward takes three times
    as long there in 16 bits."""
    if device == "cpu":
        return torch.promote_types(dtype, torch.float32)
    return autocast or dtype


def use_packed_attention(model: Any) -> bool:
    """Select `packed_attention`. Return False, and change nothing, for a model with another
    attention than `sdpa`, or with layers that do not see all tokens before them (sliding windows,
    recurrence)."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = (
        getattr(config, "sliding_window", None)
        if getattr(config, "use_sliding_window", True)
        else None
    )
    if is_packed(model):
        return True
    if (
        config._attn_implementation != "sdpa"
        or kinds - {"full_attention"}
        or (window and not kinds)
    ):
        return False
    model.set_attn_implementation(IMPLEMENTATION)
    return is_packed(model)


def is_packed(model: Any) -> bool:
    """Return True after `use_packed_attention`."""
    return bool(model.config.get_text_config()._attn_implementation == IMPLEMENTATION)


def use_plain_attention(model: Any) -> None:
    """Undo `use_packed_attention`."""
    model.set_attn_implementation("sdpa")


@torch.no_grad()
def packing_agrees(model: Any, device: torch.device) -> bool:
    """Return True if packed and padded rows have the same states: the architecture passes the
    packing on to its attention, and tokens see each other in no other way."""
    if device.type == "meta":
        return False
    size = model.config.get_text_config().vocab_size
    tokens = torch.tensor([[3, 1, 4, 1, 5], [3, 1, 4, 2, 0], [2, 7, 1, 8, 2]], device=device) % size
    mask = torch.tensor(
        [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 1]], dtype=torch.bool, device=device
    )
    with torch.autocast(device.type, enabled=False):
        try:
            states = packed_states(model.base_model, tokens, mask)
        except TypeError:  # forward without further arguments
            return False
        padded = padded_states(model.base_model, tokens, mask).hidden
    tolerance = 1e-3 if padded.dtype == torch.float32 else 3e-2
    packed, padded = states.by_token(states.hidden).float(), padded.float()
    return torch.allclose(
        packed, padded, rtol=tolerance, atol=tolerance * float(padded.abs().max())
    )


AttentionInterface.register(IMPLEMENTATION, packed_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
