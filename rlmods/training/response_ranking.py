"""Rankings of sampled responses by a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from rlmods.judge import rankings
from rlmods.protocols import Judge, counts_of
from rlmods.training.metrics import Meter
from rlmods.types import Response

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
        ranked = [
            (r, rank)
            for r, rank in zip(self.responses, self.ranks, strict=True)
            if rank is not None
        ]
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
    distinct = [
        list({(r.text, r.finish): r for r in group if r.tokens}.values()) for group in groups
    ]
    to_rank = [group for group in distinct if len(group) > 1]
    results = iter(rankings(judge, [(group[0].prompt, group) for group in to_rank]))
    ranked = [
        RankedResponses(group, next(results)[0] if len(group) > 1 else [0] * len(group))
        for group in distinct
    ]
    meter.mean(
        "judge/unjudged_fraction",
        torch.tensor([float(rank is None) for group in ranked for rank in group.ranks]),
    )
    meter.mean(
        "judge/flat_group_fraction",
        torch.tensor([float(not group.preferences) for group in ranked]),
    )
    for event, count in counts_of(judge).items():
        meter.sum(f"judge/{event}", count - counts_before[event])
    return ranked
