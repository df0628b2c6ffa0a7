"""Collation of candidate responses to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.policy.scalar import ScalarModel, pool
from rlmods.policy.text import TokenizerMixin
from rlmods.types import PreferenceBatch, Prompt


def collate_preferences(prompts: Sequence[Prompt], tokenizer: TokenizerMixin) -> PreferenceBatch:
    """Collate `prompt.meta["candidates"]` with their `ranks`, and `margin` and `finished` if the
    data has them, into right-padded rows.

    A prompt without a margin among others with one gets 0. A prompt with fewer candidates than
    another is filled up with padding."""
    responses: list[list[list[int]]] = []
    margins: list[float] = []
    for prompt in prompts:
        candidates = prompt.meta["candidates"]
        finished = prompt.meta.get("finished") or [True] * len(candidates)
        encoded = []
        for text, is_finished in zip(candidates, finished, strict=True):
            encoded.append(tokenizer.encode_response(text, prompt, finished=is_finished))
        responses.append(encoded)
        margins.append(float(prompt.meta.get("margin") or 0.0))
    has_margins = any(prompt.meta.get("margin") is not None for prompt in prompts)
    return pad_preferences(
        [tokenizer.encode(prompt) for prompt in prompts],
        responses,
        [list(prompt.meta["ranks"]) for prompt in prompts],
        tokenizer.pad_id,
        torch.tensor(margins) if has_margins else None,
    )


def pad_preferences(
    prompts: Sequence[list[int]],
    responses: Sequence[list[list[int]]],
    ranks: Sequence[list[int]],
    pad_id: int,
    margin: Tensor | None = None,
) -> PreferenceBatch:
    """Pad token ids of prompts and of the responses to each of them into one batch.

    Args:
        prompts: ids of each prompt.
        responses: ids of each response, by prompt.
        ranks: rank of each response, by prompt.
    """
    lengths = torch.zeros(len(prompts), max(len(group) for group in responses), dtype=torch.long)
    for p, group in enumerate(responses):
        for k, response in enumerate(group):
            lengths[p, k] = len(prompts[p]) + len(response)
    tokens = torch.full((*lengths.shape, int(lengths.max())), pad_id)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    rank = torch.zeros_like(lengths)
    for p, group in enumerate(responses):
        for k, response in enumerate(group):
            tokens[p, k, : lengths[p, k]] = torch.tensor([*prompts[p], *response])
            mask[p, k, len(prompts[p]) : lengths[p, k]] = True
            rank[p, k] = ranks[p][k]
    return PreferenceBatch(tokens=tokens, mask=mask, lengths=lengths, rank=rank, margin=margin)


def candidate_scores(network: ScalarModel, rows: PreferenceBatch) -> Tensor:
    """Return the pooled score of each response [P, K], without the model's offset; 0 for missing
    candidates."""
    scores = network(rows.tokens.flatten(0, 1))
    pooling = network.metadata.get("pooling", "last")
    return pool(scores, rows.mask.flatten(0, 1), pooling).view(rows.rank.shape)


def shift_responses(rows: PreferenceBatch, context_length: int) -> PreferenceBatch:
    """Pair every prompt with the responses to the next one (the last with the responses to the
    first), truncated to `context_length` tokens."""
    starts = rows.lengths - rows.mask.sum(2)
    prompts: list[list[int]] = []
    for p, first in enumerate(starts.argmax(1).tolist()):  # missing candidates have no prompt
        prompts.append(rows.tokens[p, first, : starts[p, first]].tolist())
    responses: list[list[list[int]]] = []
    for p, prompt in enumerate(prompts):
        other = (p + 1) % len(prompts)
        limit = context_length - len(prompt)
        masked = zip(rows.tokens[other], rows.mask[other], strict=True)
        responses.append([row[mask].tolist()[:limit] for row, mask in masked])
    return pad_preferences(prompts, responses, rows.rank.tolist(), 0)
