"""What a judge says of the policy's own responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlmods.judge import rankings
from rlmods.protocols import Judge
from rlmods.training.metrics import Meter
from rlmods.types import Response


@dataclass(frozen=True)
class Judged:
    """The different responses to one prompt."""

    responses: list[Response]
    ranks: list[int | None]
    """0 is the best, equal ranks are a tie; None: no verdict. A response that is alone has rank 0."""

    @property
    def preferences(self) -> list[tuple[Response, int]]:
        """Responses that have a rank, where one is better than another; otherwise nothing says whether they are good, and none is here."""
        told = [(r, rank) for r, rank in zip(self.responses, self.ranks, strict=True) if rank is not None]
        return told if len({rank for _, rank in told}) > 1 else []


def by_prompt(responses: Sequence[Response], samples: int) -> list[Sequence[Response]]:
    """Prompt-major responses in groups of `samples`."""
    return [responses[i : i + samples] for i in range(0, len(responses), samples)]


def judged(judge: Judge, groups: Sequence[Sequence[Response]], meter: Meter) -> list[Judged]:
    """Have the responses to each prompt ranked. Of those with the same text one stays; empty ones leave.

    Logs `judge/unjudged_fraction` of the responses, `judge/flat_group_fraction` of the prompts, and what the judge counts.
    """
    before = Counter(getattr(judge, "counts", {}))
    differing = [list({r.text: r for r in group if r.tokens}.values()) for group in groups]
    asked = [group for group in differing if len(group) > 1]
    found = iter(rankings(judge, [(group[0].prompt, [r.text for r in group]) for group in asked]))
    said = [Judged(group, next(found)[0] if len(group) > 1 else [0] * len(group)) for group in differing]
    meter.mean("judge/unjudged_fraction", torch.tensor([float(rank is None) for group in said for rank in group.ranks]))
    meter.mean("judge/flat_group_fraction", torch.tensor([float(not group.preferences) for group in said]))
    for event, count in getattr(judge, "counts", {}).items():
        meter.total(f"judge/{event}", count - before[event])
    return said
