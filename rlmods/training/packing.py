"""Several texts in one row of a forward, each read as if it were alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from rlmods.policy.base import Policy, PolicyOutput
from rlmods.types import UserError


def packed(policy: Policy, lengths: Int[Tensor, " N"], pack_length: int) -> Callable[[Tensor, Tensor], PolicyOutput]:
    """The policy's forward of tokens and mask [N, T], right-padded at `lengths`, in rows of at most `pack_length` tokens.

    Positions start anew with every text, by which attention knows where one ends. Rows stay as they are where packing saves nothing.
    """

    def forward(tokens: Tensor, mask: Tensor) -> PolicyOutput:
        row, start = place(lengths.tolist(), pack_length)
        at = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        real = at < lengths[:, None]
        corner = torch.tensor([row, start], device=tokens.device)[:, :, None]
        to = (corner[0].expand_as(tokens)[real], (corner[1] + at)[real])
        shape = (max(row) + 1, int(to[1].max()) + 1)
        if shape[0] * shape[1] >= tokens.numel():
            alone: PolicyOutput = policy(tokens, mask)
            return alone
        mask = mask & (at > 0)  # a text's first token is nobody's continuation
        filled = [torch.zeros(shape, dtype=x.dtype, device=x.device).index_put(to, x[real]) for x in (tokens, mask, at)]
        scored: PolicyOutput = policy(filled[0], filled[1], positions=filled[2])
        logprobs, entropy = (x.new_zeros(tokens.shape).masked_scatter(real, x[to]) for x in (scored.logprobs, scored.entropy))
        return PolicyOutput(logprobs, entropy)

    return forward


def place(lengths: list[int], pack_length: int) -> tuple[list[int], list[int]]:
    """Row and first column of each text: longest first, into the first row that has room; one longer than `pack_length` goes alone."""
    used: list[int] = []
    row, start = [0] * len(lengths), [0] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row[i] = next((r for r, n in enumerate(used) if n + lengths[i] <= pack_length), len(used))
        used += [0] * (row[i] == len(used))
        start[i] = used[row[i]]
        used[row[i]] += lengths[i]
    return row, start


@torch.no_grad()
def check_packing(policy: Policy) -> None:
    """Try it on two short texts.

    Raises:
        UserError: the model's attention does not stop where a text ends.
    """
    size = policy.model.config.get_text_config().vocab_size
    tokens = (torch.arange(8, device=policy.device) % size).view(2, 4)
    mask, lengths = torch.ones_like(tokens, dtype=torch.bool), torch.tensor([4, 3], device=policy.device)
    mask[1, 3] = False
    alone, together = policy(tokens, mask).logprobs, packed(policy, lengths, 7)(tokens, mask).logprobs
    if not torch.allclose(alone, together, atol=1e-3):
        name = type(policy.model).__name__
        raise UserError(f"algo.packing=true: {name} lets texts in one row see each other; type algo.packing=false")
