"""Candidate responses to prompts: their tensors and scores, and rankings of sampled responses by a
judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rlmods.judge import rankings
from rlmods.policy.scalar import ScalarModel, pool
from rlmods.policy.text import TokenizerMixin
from rlmods.protocols import Judge, counts_of
from rlmods.training.meter import Meter
from rlmods.types import (
    CandidateFloats,
    CandidateInts,
    CandidateMask,
    Prompt,
    PromptFloats,
    PromptInts,
    Response,
    Rows,
    equal_columns,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceBatch(Rows):
    """K candidate responses to each of P prompts as right-padded tensors, the input of preference
    and ranking losses.

    K = 2 is a pair, K > 2 a ranking, K = 1 a single response with a label (KTO)."""

    tokens: Int[Tensor, "P K T"]
    """Prompt, response, then padding ids (never read)."""
    mask: Bool[Tensor, "P K T"]
    """True on the tokens of the response, EOS included."""
    lengths: CandidateInts
    """Number of prompt and response tokens; 0 for the missing candidates of a prompt with fewer
    than K."""
    rank: CandidateInts
    """0 is the best response to the prompt; equal ranks are ties. For K = 1: 0 desirable, 1
    undesirable."""
    margin: PromptFloats | None = None
    """Margin by which the better response should win, in units of the score; None without
    margins."""
    ref_logprobs: CandidateFloats | None = None
    """Log-probability of the whole response under the frozen reference; None without a
    reference."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def group(self) -> None:
        """Rows of different prompts share nothing."""
        return None

    @property
    def present(self) -> CandidateMask:
        """True for candidates that exist."""
        return self.lengths > 0

    @property
    def forward_tokens(self) -> Int[Tensor, " P"]:
        """Number of tokens in a forward of the prompt's candidates."""
        return self.lengths.amax(1) * self.lengths.shape[1]

    @property
    def loss_counts(self) -> Int[Tensor, " 2"]:
        """Number of response tokens, and of prompts with any: this rank's part of `Totals`."""
        return torch.stack([self.mask.sum(), self.mask.any(2).any(1).sum()])

    def computed_tokens(self, order: PromptInts) -> tuple[PromptInts, PromptInts]:
        """Return `Experience.computed_tokens`: the candidates of a prompt share what they begin
        with."""
        lengths = self.lengths[order]
        tokens = self.tokens[order]
        common = equal_columns(
            tokens[:, 1:], tokens[:, :-1], torch.minimum(lengths[:, 1:], lengths[:, :-1])
        )
        alone = lengths.sum(1) - common.sum(1)
        return alone, alone

    def first_columns(self, width: int) -> PreferenceBatch:
        return replace(self, tokens=self.tokens[..., :width], mask=self.mask[..., :width])

    def without_loss(self) -> PreferenceBatch:
        """Return rows of the same shape with an empty mask."""
        return replace(self, mask=torch.zeros_like(self.mask))


def collate_preferences(prompts: Sequence[Prompt], tokenizer: TokenizerMixin) -> PreferenceBatch:
    """Collate `prompt.meta["candidates"]` with their `ranks`, and `margin` and `finished` if the
    data has them, into right-padded rows.

    A prompt without a margin among others with one gets 0. A prompt with fewer candidates than
    another is filled up with padding."""
    responses: list[list[list[int]]] = []
    for prompt in prompts:
        candidates = prompt.meta["candidates"]
        finished = prompt.meta.get("finished") or [True] * len(candidates)
        encoded = []
        for text, is_finished in zip(candidates, finished, strict=True):
            encoded.append(tokenizer.encode_response(text, prompt, finished=is_finished))
        responses.append(encoded)
    margins = [prompt.meta.get("margin") for prompt in prompts]
    has_margins = any(margin is not None for margin in margins)
    return pad_preferences(
        list(map(tokenizer.encode, prompts)),
        responses,
        [list(prompt.meta["ranks"]) for prompt in prompts],
        tokenizer.pad_id,
        torch.tensor([float(margin or 0.0) for margin in margins]) if has_margins else None,
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
    width = max(len(prompts[p]) + max(map(len, group)) for p, group in enumerate(responses))
    tokens = torch.full((len(prompts), max(map(len, responses)), width), pad_id)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    lengths = torch.zeros(tokens.shape[:2], dtype=torch.long)
    rank = torch.zeros_like(lengths)
    for p, group in enumerate(responses):
        for k, response in enumerate(group):
            lengths[p, k] = len(prompts[p]) + len(response)
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


@dataclass(frozen=True)
class RankedResponses:
    """The distinct responses to one prompt with their ranks."""

    responses: list[Response]
    ranks: list[int | None]
    """0 is the best, equal ranks are a tie; None: no verdict. A single response has rank 0."""

    @property
    def preferences(self) -> list[tuple[Response, int]]:
        """Ranked responses if one is better than another; otherwise empty, because equal ranks
        carry no preference."""
        pairs = zip(self.responses, self.ranks, strict=True)
        ranked = [(response, rank) for response, rank in pairs if rank is not None]
        return ranked if len({rank for _, rank in ranked}) > 1 else []


def group_by_prompt(responses: Sequence[Response], samples: int) -> list[Sequence[Response]]:
    """Split prompt-major responses into groups of `samples`."""
    return [responses[i : i + samples] for i in range(0, len(responses), samples)]


def rank_responses(
    judge: Judge, groups: Sequence[Sequence[Response]], meter: Meter
) -> list[RankedResponses]:
    """Rank the responses to each prompt. Duplicates (equal text and finish) are ranked once, empty
    responses are dropped.

    Logs `judge/unjudged_fraction` of the responses, `judge/flat_group_fraction` of the prompts, and
    the judge's own counts."""
    counts_before = counts_of(judge)
    distinct: list[tuple[Prompt, list[Response]]] = []
    for group in groups:
        by_text = {(r.text, r.finish): r for r in group if r.tokens}
        distinct.append((group[0].prompt, list(by_text.values())))
    ranked: list[RankedResponses] = []
    unjudged: list[float] = []
    for (_, responses), (ranks, _) in zip(distinct, rankings(judge, distinct), strict=True):
        if len(responses) == 1:
            ranks = [0]
        ranked.append(RankedResponses(responses, ranks))
        unjudged += [float(rank is None) for rank in ranks]
    flat = [float(not group.preferences) for group in ranked]
    meter.mean("judge/unjudged_fraction", torch.tensor(unjudged))
    meter.mean("judge/flat_group_fraction", torch.tensor(flat))
    for event, count in counts_of(judge).items():
        meter.sum(f"judge/{event}", count - counts_before[event])
    return ranked
