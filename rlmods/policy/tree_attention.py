"""Attention of packed tokens in one call, without copies of keys: FlexAttention
(arXiv 2412.05496)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from rlmods.errors import UserError, in_one_line
from rlmods.policy.variants import limit_variants

Array = np.ndarray[Any, Any]

BLOCK_SIZE = 128
"""Number of queries, and of keys, in a block of scores, which is computed or left out."""
KERNELS = {"FORCE_USE_FLEX_ATTENTION": True}
"""Use the same kernel for few queries too. torch would choose its decoding kernel."""
MAX_DISTANCE = 0.03
"""Largest difference from exact attention, over the largest value: about four roundings of
bfloat16."""


@dataclass(frozen=True)
class Tree:
    """Which of S packed tokens see which. The tokens are in preorder: each is followed by all
    tokens that continue its prefix. A query q sees a key k if k <= q < ends[k]."""

    ends: Int[Tensor, " S"]
    """For each token, the place behind the last one that continues its prefix."""
    blocks: BlockMask
    """Blocks of scores with a visible key."""

    @staticmethod
    def of(common: Int[Array, " N"], lengths: Int[Array, " N"], device: torch.device) -> Tree:
        """Find what the tokens of N rows see, which are ordered by their tokens.

        Args:
            common: for each row, the number of columns that it shares with the row before it. Its
                own tokens are in the other columns.
            lengths: number of columns of each row.
        """
        ends = _ends(common, lengths)
        num_tokens = len(ends)
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        padded = np.zeros(num_blocks * BLOCK_SIZE, dtype=np.int64)
        padded[:num_tokens] = ends
        ends_in_block = padded.reshape(num_blocks, BLOCK_SIZE)
        first_query = np.arange(num_blocks)[:, None] * BLOCK_SIZE
        last_query = np.minimum(first_query + BLOCK_SIZE, num_tokens) - 1
        # a key in an earlier block comes before every query
        is_earlier = np.tri(num_blocks, k=-1, dtype=bool)
        is_full = is_earlier & (ends_in_block.min(1) > last_query)
        is_seen = is_earlier & (ends_in_block.max(1) > first_query)
        is_partial = (is_seen & ~is_full) | np.eye(num_blocks, dtype=bool)
        # of each row of blocks, then of each column
        has_block = np.stack([is_partial, is_full, is_partial.T, is_full.T])
        counts = has_block.sum(2)
        indices = np.argsort(~has_block, axis=2, kind="stable")
        flat = np.concatenate([ends, counts.ravel(), indices.ravel()]).astype(np.int32)
        # one copy to the device
        parts = torch.split(
            torch.from_numpy(flat).to(device), [len(ends), counts.size, indices.size]
        )
        on_device = parts[0]
        kv_num, full_kv_num, q_num, full_q_num = parts[1].view(4, 1, 1, num_blocks)
        kv, full_kv, q, full_q = parts[2].view(4, 1, 1, num_blocks, num_blocks)

        def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < on_device[key])

        blocks = BlockMask(
            seq_lengths=(num_tokens, num_tokens),
            kv_num_blocks=kv_num,
            kv_indices=kv,
            full_kv_num_blocks=full_kv_num,
            full_kv_indices=full_kv,
            q_num_blocks=q_num,
            q_indices=q,
            full_q_num_blocks=full_q_num,
            full_q_indices=full_q,
            BLOCK_SIZE=(BLOCK_SIZE, BLOCK_SIZE),
            mask_mod=is_visible,
        )
        return Tree(on_device, blocks)

    def attend(
        self,
        query: Float[Tensor, "S H D"],
        key: Float[Tensor, "S K D"],
        value: Float[Tensor, "S K D"],
        scale: float | None,
    ) -> Float[Tensor, "S H D"]:
        """Return the attention of each token to those that it sees."""
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        shares_keys = q.shape[1] != k.shape[1]
        output = kernels()(q, k, v, block_mask=self.blocks, scale=scale, enable_gqa=shares_keys)
        return output.squeeze(0).transpose(0, 1)


@cache
def kernels() -> Callable[..., Tensor]:
    """Return FlexAttention, compiled for any number of tokens. Without kernels it would compute all
    scores at once."""
    limit_variants()
    compiled: Any = torch.compile(flex_attention, dynamic=True)

    def attend(*tensors: Tensor, **options: Any) -> Tensor:
        # also while the learner keeps blocks from being compiled
        with torch.compiler.set_stance("default"):
            output: Tensor = compiled(*tensors, kernel_options=KERNELS, **options)
            return output

    return attend


def has_kernels(device: torch.device) -> bool:
    """Return True if FlexAttention has kernels there, also for the backward."""
    return device.type != "cpu"


def check_kernels(
    num_heads: int, num_key_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Compare FlexAttention, forward and backward, with a matrix of all scores.

    Raises:
        UserError: the kernels do not run, or they compute something else.
    """
    # two responses of 300 tokens to a prompt: blocks that are seen in full, in part and not at all
    tree = Tree.of(np.array([0, 150]), np.array([450, 450]), device)
    generator = torch.Generator().manual_seed(0)

    def random(heads: int) -> Tensor:
        x = torch.randn(len(tree.ends), heads, head_dim, generator=generator)
        return x.to(device, dtype).requires_grad_()

    inputs = random(num_heads), random(num_key_heads), random(num_key_heads)
    direction = random(num_heads).detach()
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        try:
            output = tree.attend(*inputs, None)
            found = (output, *torch.autograd.grad(output, inputs, direction))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the compiler, of Triton or of the driver
            raise UserError(
                f"policy.attention=flex_attention does not run here ({in_one_line(error, 160)}): "
                "type policy.attention=null"
            ) from error
        exact = dense(tree, *inputs)
        expected = (exact, *torch.autograd.grad(exact, inputs, direction.float()))
    gaps = [_distance(x, y) for x, y in zip(found, expected, strict=True)]
    if not max(gaps) <= MAX_DISTANCE:
        raise UserError(
            f"policy.attention=flex_attention computes something else here (by {max(gaps):.1%}): "
            "type policy.attention=null"
        )


def dense(tree: Tree, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return `Tree.attend` from a matrix of all scores, in float32."""
    places = torch.arange(len(tree.ends), device=query.device)
    is_visible = tree.blocks.mask_mod(places, places, places[:, None], places)
    num_shared = query.shape[1] // key.shape[1]
    keys, values = (x.float().repeat_interleave(num_shared, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) / query.shape[2] ** 0.5
    weights = scores.masked_fill(~is_visible, -torch.inf).softmax(2)
    return torch.einsum("hqk,khd->qhd", weights, values)


def _distance(found: Tensor, expected: Tensor) -> float:
    difference = (found.detach().float() - expected.detach().float()).abs().max()
    return float(difference / expected.detach().abs().max())


def _ends(common: Int[Array, " N"], lengths: Int[Array, " N"]) -> Int[Array, " S"]:
    """Return `Tree.ends`."""
    first_place = np.concatenate([[0], np.cumsum(lengths - common)])
    columns = np.arange(lengths.max())
    ends = np.empty((len(lengths), len(columns)), dtype=np.int64)
    behind = np.full(len(columns), first_place[-1])
    for row in reversed(range(len(lengths))):
        ends[row] = behind
        # the rows before it share the columns before `common`: this row ends their other tokens
        behind = np.where(columns >= common[row], first_place[row], behind)
    is_own = (columns >= common[:, None]) & (columns < lengths[:, None])
    own_ends: Array = ends[is_own]
    return own_ends
