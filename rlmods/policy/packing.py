"""Rows of tokens as one sequence that has equal prefixes once, and no padding.

The responses to a prompt share it, and branches of a response share the tokens before them. The
network computes the same for such tokens in each row. A `Packing` lays the distinct tokens out one
after the other: linear layers see each of them once. Attention, which alone lets a token see
others, is computed row by row, in each row for the tokens that no earlier row has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlmods.policy.linear import autocast_dtype
from rlmods.types import TokenInts, TokenMask

Array = np.ndarray[Any, Any]

IMPLEMENTATION = "rlmods_packed_sdpa"
"""Name of the attention under transformers: `sdpa`, apart from forwards with a packing."""
MIN_USED = 0.7
"""Minimum fraction of the queries in one call of attention that are tokens of their rows alone. The
others are padding, or tokens that another row has computed."""


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
class Packing:
    """S distinct tokens of N rows: the columns of a row that a later scored token depends on, with
    equal prefixes of rows once."""

    tokens: Int[Tensor, " S"]
    positions: Int[Tensor, " S"]
    """Position of each token in its row."""
    states: Index
    """For each of m distinct scored tokens, the packed token before it."""
    targets: Int[Tensor, " m"]
    """The id of each distinct scored token."""
    scored: Index
    """For each of n scored tokens, row by row, its place among the distinct ones."""
    chunks: Sequence[Chunk]
    """Calls of attention, which together have every packed token among their queries."""
    outputs: Index
    """For each packed token, the place of its output among the outputs of all chunks."""

    @staticmethod
    def of(tokens: TokenInts, mask: TokenMask) -> Packing:
        """Lay out right-padded rows. The tokens in the mask are scored, and each depends on all
        columns before it."""
        device = tokens.device
        # one copy, because the host waits for it
        ids, is_scored = torch.stack([tokens, mask.to(tokens.dtype)]).cpu().numpy()
        scored = is_scored.astype(bool)
        row = np.arange(len(ids))[:, None]
        column = np.arange(ids.shape[1])
        scored = scored & (column > 0)  # nothing precedes the first column
        lengths = np.where(scored, column, 0).max(1)  # columns that a scored token depends on
        if not scored.any():
            lengths[0] = 1  # a forward of no token is none
        first = _first_equal(ids, lengths)
        needed = column < lengths[:, None]
        own = needed & (first == row)
        number = np.zeros(ids.shape, dtype=np.int64)
        num_packed = int(own.sum())
        number[own] = np.arange(num_packed)
        number = np.where(needed, number[first, column], 0)
        # The distribution of a token depends on the packed token before it alone.
        states = number[:, :-1][scored[:, 1:]]
        targets = ids[:, 1:][scored[:, 1:]]
        pairs = states * (targets.max(initial=0) + 1) + targets
        _, distinct, repeats = np.unique(pairs, return_index=True, return_inverse=True)

        def tensor(x: Array) -> Tensor:
            return torch.from_numpy(x).to(device)

        chunks = []
        places = np.zeros_like(number)
        offset = 0
        first_query = np.zeros_like(lengths) if attends_whole_rows(device) else lengths - own.sum(1)
        for rows in _chunks(first_query, lengths):
            start = first_query[rows].min()
            end = lengths[rows].max()
            num_queries = len(rows) * (end - start)
            visible = None if start == 0 else tensor(np.tri(end - start, end, start, dtype=bool))
            keys = Index.of(number[rows, :end], num_packed, device)
            queries = keys
            if start > 0:
                queries = Index.of(number[rows, start:end], num_packed, device)
            chunks.append(Chunk(queries, keys, visible))
            outputs = offset + np.arange(num_queries)
            places[rows, start:end] = outputs.reshape(len(rows), -1)
            offset += num_queries
        return Packing(
            tokens=tensor(ids[own]),
            positions=tensor(np.broadcast_to(column, own.shape)[own]),
            states=Index.of(states[distinct], num_packed, device),
            targets=tensor(targets[distinct]),
            scored=Index.of(repeats, len(distinct), device),
            chunks=chunks,
            outputs=Index.of(places[own], offset, device),
        )

    def __len__(self) -> int:
        return len(self.tokens)


def attends_whole_rows(device: torch.device) -> bool:
    """Return True if all tokens of a row are queries, also those that another row has computed: on
    GPUs, where the fast kernels for heads that share keys take no mask."""
    return device.type == "cuda"


def _first_equal(ids: Array, lengths: Array) -> Array:
    """Return for each row i and column t < lengths[i] one row for all that equal row i in the
    columns up to t and have as many: the first of them in the order of the rows' tokens."""
    order = np.array(sorted(range(len(ids)), key=lambda i: ids[i, : lengths[i]].tobytes()))
    ids = ids[order]
    lengths = lengths[order]
    column = np.arange(ids.shape[1])
    # In this order, rows with an equal prefix follow each other, those that end with it first.
    shorter = np.minimum(lengths[1:], lengths[:-1])
    differs = np.where(ids[1:] == ids[:-1], ids.shape[1], column).min(1)
    common = np.concatenate([[0], differs.clip(max=shorter)])
    begins = column >= common[:, None]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(ids))[:, None], 0))
    rows = np.empty_like(first)
    rows[order] = order[first]
    return rows


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
    tokens [1, H, S, D]. In a row each token sees itself and those before it."""
    if packing is None:
        is_16_bit_on_cpu = query.device.type == "cpu" and query.dtype == torch.bfloat16
        if attention_mask is None and query.shape[2] == 1 and is_16_bit_on_cpu:
            # PyTorch's kernel for one token without a mask is five times as slow in 16 bits.
            attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
        if attention_mask is None:  # else transformers repeats them
            key, value = equal_heads(query, key, value, autocast_dtype(query) or query.dtype)
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    dtype = attention_dtype(query.device.type, query.dtype, autocast_dtype(query))
    queries, keys, values = (x.squeeze(0).transpose(0, 1).to(dtype) for x in (query, key, value))
    outputs = []
    for chunk in packing.chunks:
        q = gather(queries, chunk.queries).transpose(1, 2)
        k = gather(keys, chunk.keys).transpose(1, 2)
        v = gather(values, chunk.keys).transpose(1, 2)
        k, v = equal_heads(q, k, v, dtype)
        with torch.autocast(query.device.type, enabled=False):
            if chunk.visible is None:
                causal = kwargs | {"is_causal": True}
                output, _ = sdpa_attention_forward(module, q, k, v, attention_mask=None, **causal)
            else:  # that function copies keys and values for each head if there is a mask
                shares_keys = q.shape[1] != k.shape[1]
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

    def targets(self, tokens: TokenInts, mask: TokenMask) -> Int[Tensor, " m"]:
        """Return the id that follows each state, given the rows."""
        return tokens[:, 1:][mask[:, 1:]] if self.packing is None else self.packing.targets

    def by_token(self, x: Tensor) -> Tensor:
        """Return an entry for each scored token, of a tensor with one for each state."""
        return x if self.packing is None else gather(x, self.packing.scored)


def packed_states(trunk: torch.nn.Module, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, of a trunk whose model accepts `packing`
    (`enable_packing`)."""
    packing = Packing.of(tokens, mask)
    output = trunk(
        input_ids=packing.tokens[None],
        position_ids=packing.positions[None],
        # transformers leaves masks with four dimensions as they are; attention with a packing reads
        # none
        attention_mask=mask.new_ones(1, 1, 1, 1),
        packing=packing,
        use_cache=False,
    )
    return States(gather(output.last_hidden_state[0], packing.states), packing)


def padded_states(trunk: torch.nn.Module, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, from a forward of all columns."""
    hidden: Tensor = trunk(input_ids=tokens, use_cache=False).last_hidden_state
    return States(hidden[:, :-1][mask[:, 1:]])


def attention_dtype(device: str, dtype: torch.dtype, autocast: torch.dtype | None) -> torch.dtype:
    """Return the data type of attention of packed rows, given the queries' and autocast's: on GPUs
    autocast's, which the fast kernels need (queries with rotary positions are float32); on
    processors at least 32 bits, as PyTorch's backward takes three times as long there in 16
    bits."""
    if device == "cpu":
        return torch.promote_types(dtype, torch.float32)
    return autocast or dtype


def use_packed_attention(model: PreTrainedModel) -> bool:
    """Select `packed_attention`. Return False, and change nothing, for a model with another
    attention than `sdpa`, or with layers that do not see all tokens before them (sliding windows,
    recurrence)."""
    if is_packed(model):
        return True
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    is_windowed = bool(kinds - {"full_attention"}) or bool(window and not kinds)
    if config._attn_implementation != "sdpa" or is_windowed:
        return False
    model.set_attn_implementation(IMPLEMENTATION)
    return is_packed(model)


def is_packed(model: PreTrainedModel) -> bool:
    """Return True after `use_packed_attention`."""
    return bool(model.config.get_text_config()._attn_implementation == IMPLEMENTATION)


@torch.no_grad()
def packing_agrees(model: PreTrainedModel, device: torch.device) -> bool:
    """Return True if packed and padded rows have the same states: the architecture passes the
    packing on to its attention, and tokens see each other in no other way."""
    if device.type == "meta":
        return False
    size = model.config.get_text_config().vocab_size
    tokens = torch.tensor([[3, 1, 4, 1, 5], [3, 1, 4, 2, 0], [2, 7, 1, 8, 2]], device=device) % size
    scored = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 1]], device=device)
    mask = scored.bool()
    try:
        states = packed_states(model.base_model, tokens, mask)
    except TypeError:  # forward without further arguments
        return False
    padded = padded_states(model.base_model, tokens, mask).hidden
    is_exact = padded.dtype == torch.float32 and autocast_dtype(padded) is None
    tolerance = 1e-3 if is_exact else 3e-2
    packed = states.by_token(states.hidden).float()
    padded = padded.float()
    limit = tolerance * float(padded.abs().max())
    return torch.allclose(packed, padded, rtol=tolerance, atol=limit)


def enable_packing(model: PreTrainedModel, device: torch.device) -> bool:
    """Let a model of transformers accept `packing`, and return True if the states of packed rows
    are then those of padded ones. Otherwise leave it with its own attention. `device`: where its
    forward runs."""
    if not use_packed_attention(model):
        return False
    if packing_agrees(model, device):
        return True
    model.set_attn_implementation("sdpa")
    return False


AttentionInterface.register(IMPLEMENTATION, packed_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
