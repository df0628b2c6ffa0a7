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
    responses = []
    for prompt in prompts:
        candidates = prompt.meta["candidates"]
        finished = prompt.meta.get("finished") or [True] * len(candidates)
        pairs = zip(candidates, finished, strict=True)
        responses.append(
            [
                tokenizer.encode_response(text, prompt, finished=is_finished)
                for text, is_finished in pairs
            ]
        )
    ranks = [list(prompt.meta["ranks"]) for prompt in prompts]
    margins = [prompt.meta.get("margin") for prompt in prompts]
    margin = (
        None
        if all(m is None for m in margins)
        else torch.tensor([float(m or 0.0) for m in margins])
    )
    return pad_preferences(
        [tokenizer.encode(prompt) for prompt in prompts], responses, ranks, tokenizer.pad_id, margin
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
    mask, rank = torch.zeros(tokens.shape, dtype=torch.bool), torch.zeros_like(lengths)
    for p, group in enumerate(responses):
        for k, response in enumerate(group):
            tokens[p, k, : lengths[p, k]] = torch.tensor([*prompts[p], *response])
            mask[p, k, len(prompts[p]) : lengths[p, k]] = True
            rank[p, k] = ranks[p][k]
    return PreferenceBatch(tokens=tokens, mask=mask, lengths=lengths, rank=rank, margin=margin)


def candidate_scores(network: ScalarModel, rows: PreferenceBatch) -> Tensor:
    """Return the pooled score of each response [P, K], without the model's offset; 0 for missing
    candidates."""
    scores, mask = network(rows.tokens.flatten(0, 1)), rows.mask.flatten(0, 1)
    return pool(scores, mask, network.metadata.get("pooling", "last")).view(rows.rank.shape)


def shift_responses(rows: PreferenceBatch, context_length: int) -> PreferenceBatch:
    """Pair every prompt with the responses to the next one (the last with those to the first),
    truncated to `context_length` tokens."""
    start = rows.lengths - rows.mask.sum(2)
    first = start.argmax(1)  # missing candidates have no prompt tokens
    prompts = [rows.tokens[p, k, : start[p, k]].tolist() for p, k in enumerate(first.tolist())]
    responses = [
        [row[mask].tolist() for row, mask in zip(*group, strict=True)]
        for group in zip(rows.tokens, rows.mask, strict=True)
    ]
    shifted = responses[1:] + responses[:1]
    truncated = [
        [ids[: context_length - len(prompt)] for ids in group]
        for prompt, group in zip(prompts, shifted, strict=True)
    ]
    return pad_preferences(prompts, truncated, rows.rank.tolist(), 0)
