"""Rows of tokens as one sequence that has equal prefixes once, and no padding.

The responses to a prompt share it, and branches of a response share the tokens before them. The
network computes the same for such tokens in each row. A `Packing` lays the distinct tokens out one
after the other: linear layers see each of them once. Attention, which alone lets a token see
others, is computed row by row, in each row for the tokens that no earlier row has (`Rows`), or for
all tokens at once (`Tree`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlmods.policy.gathering import Index, gather
from rlmods.policy.linear import autocast_dtype
from rlmods.policy.row_attention import Rows, equal_heads
from rlmods.policy.tree_attention import Tree, check_kernels
from rlmods.types import TokenInts, TokenMask

Array = np.ndarray[Any, Any]

IMPLEMENTATION = "rlmods_packed_sdpa"
"""Name of the attention under transformers: `sdpa`, apart from forwards with a packing."""
FLEX_IMPLEMENTATION = "rlmods_packed_flex"
"""The same, with FlexAttention in forwards with a packing."""


# torch before 2.12 compiles a block again for each content of a frozen dataclass
@dataclass(eq=False)
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
    attention: Rows | Tree
    """Computes the attention of all packed tokens."""

    @staticmethod
    def of(tokens: TokenInts, mask: TokenMask, *, is_tree: bool = False) -> Packing:
        """Lay out right-padded rows. The tokens in the mask are scored, and each depends on all
        columns before it.

        Args:
            is_tree: lay out the tokens in preorder, for attention in one call (`Tree`).
        """
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
        prefixes = Prefixes.of(ids, lengths)
        needed = column < lengths[:, None]
        own = needed & (prefixes.first == row)
        order = prefixes.order if is_tree else np.arange(len(ids))
        in_order = own[order]
        num_packed = int(own.sum())
        numbers = np.zeros(ids.shape, dtype=np.int64)
        numbers[in_order] = np.arange(num_packed)
        number = np.empty_like(numbers)
        number[order] = numbers
        number = np.where(needed, number[prefixes.first, column], 0)
        # The distribution of a token depends on the packed token before it alone.
        states = number[:, :-1][scored[:, 1:]]
        targets = ids[:, 1:][scored[:, 1:]]
        pairs = states * (targets.max(initial=0) + 1) + targets
        _, distinct, repeats = np.unique(pairs, return_index=True, return_inverse=True)

        def tensor(x: Array) -> Tensor:
            return torch.from_numpy(x).to(device)

        attention: Rows | Tree
        if is_tree:
            attention = Tree.of(prefixes.common, lengths[order], device)
        else:
            attention = Rows.of(number, own, lengths, device)
        return Packing(
            tokens=tensor(ids[order][in_order]),
            positions=tensor(np.broadcast_to(column, own.shape)[in_order]),
            states=Index.of(states[distinct], num_packed, device),
            targets=tensor(targets[distinct]),
            scored=Index.of(repeats, len(distinct), device),
            attention=attention,
        )

    def __len__(self) -> int:
        return len(self.tokens)


class Prefixes(NamedTuple):
    """Equal prefixes of N rows."""

    order: Int[Array, " N"]
    """The rows in the order of their tokens, so that rows with an equal prefix follow each other,
    those that end with it first."""
    common: Int[Array, " N"]
    """In this order, the number of columns that each row shares with the one before it."""
    first: Int[Array, "N T"]
    """For each row i and column t < lengths[i], one row for all that equal row i in the columns up
    to t and have as many: the first in this order."""

    @staticmethod
    def of(ids: Int[Array, "N T"], lengths: Int[Array, " N"]) -> Prefixes:
        """Find them in the first columns of each row."""
        order = np.array(sorted(range(len(ids)), key=lambda i: ids[i, : lengths[i]].tobytes()))
        ids = ids[order]
        lengths = lengths[order]
        column = np.arange(ids.shape[1])
        shorter = np.minimum(lengths[1:], lengths[:-1])
        differs = np.where(ids[1:] == ids[:-1], ids.shape[1], column).min(1)
        common = np.concatenate([[0], differs.clip(max=shorter)])
        begins = column >= common[:, None]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(ids))[:, None], 0))
        rows = np.empty_like(first)
        rows[order] = order[first]
        return Prefixes(order, common, rows)


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
    with torch.autocast(query.device.type, enabled=False):
        output = packing.attention.attend(queries, keys, values, kwargs.get("scaling"))
    return output.to(query.dtype)[None], None


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


def packed_states(model: PreTrainedModel, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, of a model that accepts `packing`
    (`enable_packing`)."""
    packing = Packing.of(tokens, mask, is_tree=implementation(model) == FLEX_IMPLEMENTATION)
    output = model.base_model(
        input_ids=packing.tokens[None],
        position_ids=packing.positions[None],
        # transformers leaves masks with four dimensions as they are; attention with a packing reads
        # none
        attention_mask=mask.new_ones(1, 1, 1, 1),
        packing=packing,
        use_cache=False,
    )
    return States(gather(output.last_hidden_state[0], packing.states), packing)


def padded_states(model: PreTrainedModel, tokens: TokenInts, mask: TokenMask) -> States:
    """Return the states before masked tokens, from a forward of all columns."""
    hidden: Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    return States(hidden[:, :-1][mask[:, 1:]])


def attention_dtype(device: str, dtype: torch.dtype, autocast: torch.dtype | None) -> torch.dtype:
    """Return the data type of attention of packed rows, given the queries' and autocast's: on GPUs
    autocast's, which the fast kernels need (queries with rotary positions are float32); on
    processors at least 32 bits, as PyTorch's backward takes three times as long there in 16
    bits."""
    if device == "cpu":
        return torch.promote_types(dtype, torch.float32)
    return autocast or dtype


def use_packed_attention(model: PreTrainedModel, name: str = IMPLEMENTATION) -> bool:
    """Select `packed_attention` under one of its names. Return False, and change nothing, for a
    model with another attention than `sdpa`, or with layers that do not see all tokens before them
    (sliding windows, recurrence)."""
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
    model.set_attn_implementation(name)
    return is_packed(model)


def implementation(model: PreTrainedModel) -> str:
    """Return the name of the attention of a model."""
    return str(model.config.get_text_config()._attn_implementation)


def is_packed(model: PreTrainedModel) -> bool:
    """Return True after `use_packed_attention`."""
    return implementation(model) in (IMPLEMENTATION, FLEX_IMPLEMENTATION)


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
        states = packed_states(model, tokens, mask)
    except TypeError:  # forward without further arguments
        return False
    padded = padded_states(model, tokens, mask).hidden
    is_exact = padded.dtype == torch.float32 and autocast_dtype(padded) is None
    tolerance = 1e-3 if is_exact else 3e-2
    packed = states.by_token(states.hidden).float()
    padded = padded.float()
    limit = tolerance * float(padded.abs().max())
    return torch.allclose(packed, padded, rtol=tolerance, atol=limit)


def check_flex(model: PreTrainedModel, device: torch.device) -> None:
    """Check FlexAttention with the heads of a model, in the data type of the run.

    Raises:
        UserError: the kernels do not run, or they compute something else.
    """
    if device.type == "meta":  # nothing is computed
        return
    config = model.config.get_text_config()
    num_heads = config.num_attention_heads
    num_key_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    dtype = attention_dtype(device.type, model.dtype, autocast_dtype(torch.empty(0, device=device)))
    check_kernels(num_heads, num_key_heads, head_dim, dtype, device)


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


for _name in (IMPLEMENTATION, FLEX_IMPLEMENTATION):
    AttentionInterface.register(_name, packed_attention)
    AttentionMaskInterface.register(_name, sdpa_mask)
