"""Rankings of sampled responses by a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from rlmods.judge import rankings
from rlmods.protocols import Judge, counts_of
from rlmods.training.meter import Meter
from rlmods.types import Prompt, Response

T = TypeVar("T")


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


def group_by_prompt(responses: Sequence[T], samples: int) -> list[Sequence[T]]:
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
    distinct: list[list[Response]] = []
    to_rank: list[tuple[Prompt, list[Response]]] = []
    for group in groups:
        by_text = {(r.text, r.finish): r for r in group if r.tokens}
        distinct.append(list(by_text.values()))
        if len(by_text) > 1:
            to_rank.append((group[0].prompt, distinct[-1]))
    results = iter(rankings(judge, to_rank))
    ranked: list[RankedResponses] = []
    unjudged: list[float] = []
    for responses in distinct:
        ranks: list[int | None] = [0] * len(responses)
        if len(responses) > 1:
            ranks = next(results)[0]
        ranked.append(RankedResponses(responses, ranks))
        unjudged += [float(rank is None) for rank in ranks]
    flat = [float(not group.preferences) for group in ranked]
    meter.mean("judge/unjudged_fraction", torch.tensor(unjudged))
    meter.mean("judge/flat_group_fraction", torch.tensor(flat))
    for event, count in counts_of(judge).items():
        meter.sum(f"judge/{event}", count - counts_before[event])
    return ranked
