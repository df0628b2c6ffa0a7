"""Packing of several texts into one row, without attention between them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlmods.policy.base import Policy, PolicyOutput
from rlmods.types import RowInts, UserError


def packed(policy: Policy, lengths: RowInts, pack_length: int) -> Callable[[Tensor, Tensor], PolicyOutput]:
    """Return the policy's forward of tokens and mask [N, T], right-padded from `lengths` on, in rows of at most `pack_length` tokens.

    Position ids start at 0 in every text, by which attention separates them. Rows are not packed if that saves nothing.
    """

    def forward(tokens: Tensor, mask: Tensor) -> PolicyOutput:
        row, start = assign_rows(lengths.tolist(), pack_length)
        position = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        is_text = position < lengths[:, None]
        corner = torch.tensor([row, start], device=tokens.device)[:, :, None]
        index = (corner[0].expand_as(tokens)[is_text], (corner[1] + position)[is_text])
        shape = (max(row) + 1, int(index[1].max()) + 1)
        if shape[0] * shape[1] >= tokens.numel():
            output: PolicyOutput = policy(tokens, mask)
            return output
        mask = mask & (position > 0)  # the first token of a text has no predecessor
        inputs = [torch.zeros(shape, dtype=x.dtype, device=x.device).index_put(index, x[is_text]) for x in (tokens, mask, position)]
        output = policy(inputs[0], inputs[1], positions=inputs[2])
        logprobs, entropy = (x.new_zeros(tokens.shape).masked_scatter(is_text, x[index]) for x in (output.logprobs, output.entropy))
        return PolicyOutput(logprobs, entropy)

    return forward


def assign_rows(lengths: list[int], pack_length: int) -> tuple[list[int], list[int]]:
    """Return the row and first column of each text by first-fit decreasing; a text longer than `pack_length` has a row of its own."""
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
    """Compare packed and unpacked log-probabilities of two short texts.

    Raises:
        UserError: the model's attention crosses the boundary between texts.
    """
    size = policy.model.config.get_text_config().vocab_size
    tokens = (torch.arange(8, device=policy.device) % size).view(2, 4)
    mask, lengths = torch.ones_like(tokens, dtype=torch.bool), torch.tensor([4, 3], device=policy.device)
    mask[1, 3] = False
    unpacked_logprobs, packed_logprobs = policy(tokens, mask).logprobs, packed(policy, lengths, 7)(tokens, mask).logprobs
    if not torch.allclose(unpacked_logprobs, packed_logprobs, atol=1e-3):
        name = type(policy.model).__name__
        raise UserError(f"algo.packing=true: texts in one row attend to each other in {name}; type algo.packing=false")
