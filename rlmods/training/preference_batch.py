"""Candidate responses to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.policy.scalar import ScalarModel, pool
from rlmods.policy.text import TokenizerMixin
from rlmods.types import PreferenceBatch, Prompt


def collate_preferences(prompts: Sequence[Prompt], speaker: TokenizerMixin) -> PreferenceBatch:
    """Right-padded rows of `prompt.meta["candidates"]` with their `ranks`, and `margin` and `finished` where the data has them.

    A prompt without a margin among others with one gets 0. Where a prompt has fewer candidates than another, padding ids without a mask
    stand in for the rest.
    """
    said = []
    for prompt in prompts:
        candidates = prompt.meta["candidates"]
        finished = prompt.meta.get("finished") or [True] * len(candidates)
        said.append([speaker.encode_response(text, finished=end) for text, end in zip(candidates, finished, strict=True)])
    ranks = [list(prompt.meta["ranks"]) for prompt in prompts]
    margins = [prompt.meta.get("margin") for prompt in prompts]
    margin = None if all(m is None for m in margins) else torch.tensor([float(m or 0.0) for m in margins])
    return stack([speaker.encode(prompt) for prompt in prompts], said, ranks, speaker.pad_id, margin)


def stack(
    asked: Sequence[list[int]], said: Sequence[list[list[int]]], ranks: Sequence[list[int]], pad_id: int, margin: Tensor | None = None
) -> PreferenceBatch:
    """Prompt ids, and ids and rank of each of a prompt's responses, as tensors."""
    lengths = torch.zeros(len(asked), max(len(responses) for responses in said), dtype=torch.long)
    for p, responses in enumerate(said):
        for k, response in enumerate(responses):
            lengths[p, k] = len(asked[p]) + len(response)
    tokens = torch.full((*lengths.shape, int(lengths.max())), pad_id)
    mask, rank = torch.zeros(tokens.shape, dtype=torch.bool), torch.zeros_like(lengths)
    for p, responses in enumerate(said):
        for k, response in enumerate(responses):
            tokens[p, k, : lengths[p, k]] = torch.tensor([*asked[p], *response])
            mask[p, k, len(asked[p]) : lengths[p, k]] = True
            rank[p, k] = ranks[p][k]
    return PreferenceBatch(tokens=tokens, mask=mask, lengths=lengths, rank=rank, margin=margin)


def scored(network: ScalarModel, rows: PreferenceBatch) -> Tensor:
    """Pooled numbers of each response [P, K], without the offset; 0 where there is none."""
    numbers, mask = network(rows.tokens.flatten(0, 1)), rows.mask.flatten(0, 1)
    return pool(numbers, mask, network.metadata.get("pooling", "last")).view(rows.rank.shape)


def mismatched(rows: PreferenceBatch, context_length: int) -> PreferenceBatch:
    """Every prompt followed by the responses to the next one (the last by those to the first), cut off at `context_length` tokens."""
    start = rows.lengths - rows.mask.sum(2)
    there = start.argmax(1)  # a candidate that is not there has no prompt
    asked = [rows.tokens[p, k, : start[p, k]].tolist() for p, k in enumerate(there.tolist())]
    said = [[row[where].tolist() for row, where in zip(*of_prompt, strict=True)] for of_prompt in zip(rows.tokens, rows.mask, strict=True)]
    moved = said[1:] + said[:1]
    cut = [[response[: context_length - len(prompt)] for response in responses] for prompt, responses in zip(asked, moved, strict=True)]
    return stack(asked, cut, rows.rank.tolist(), 0)
