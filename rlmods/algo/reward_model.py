"""Reward models from rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.algo.scalar import Scalar
from rlmods.distributed.collectives import all_gather
from rlmods.policy.scalar import POOLINGS
from rlmods.ranking.pairs import better, gaps, right
from rlmods.training.measures import auc, calibration_error, correlation
from rlmods.training.metrics import Meter
from rlmods.training.preference_batch import collate_preferences, scored
from rlmods.types import PreferenceBatch, Prompt, Totals, UserError


class RewardModel(Scalar):
    """Score responses so that better ones score higher: the policy's trunk under a head of one number, trained with a `ranking` loss.

    Reads `prompt.meta["candidates"]` and `["ranks"]`. The second stage of the classic road (InstructGPT, arXiv 2203.02155, section 3.5).
    """

    groups: ClassVar[tuple[str, ...]] = (*Scalar.groups, "ranking")
    metadata: ClassVar[dict[str, Any]] = {"kind": "reward", "offset": 0.0}
    recipe: ClassVar[dict[str, str]] = {"ranking": "bradley_terry"}
    column: ClassVar[str] = "candidates"
    needs_columns: ClassVar[tuple[str, ...]] = ("candidates",)

    def __init__(self, *, ranking: Any, pooling: str = "last", centre: float = 0.0, zero_mean: bool = True, **shared: Any) -> None:
        """
        Args:
            ranking: loss of each prompt's scores.
            pooling: what of the numbers at the response's tokens is the score: `last` (end of text), `mean`, `sum`, `max` or `min`.
            centre: weight of the squared sum of a prompt's scores, which keeps them around 0 (arXiv 2312.09244).
            zero_mean: what is exported subtracts the mean score of the held-out responses (InstructGPT, section 3.5).

        Raises:
            UserError: an unknown pooling, a negative weight.
        """
        super().__init__(**shared)
        if pooling not in POOLINGS:
            raise UserError(f"algo.pooling={pooling}: one of {', '.join(POOLINGS)}")
        if not centre >= 0:
            raise UserError(f"algo.centre={centre}: must be at least 0")
        self.ranking, self.centre, self.zero_mean = ranking, centre, zero_mean
        self.scalar.metadata["pooling"] = pooling

    def rows(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        return collate_preferences(prompts, self.scalar).to(self.device)

    def scores(self, rows: PreferenceBatch) -> Tensor:
        """Pooled numbers of each response [P, K]; 0 where there is none."""
        return scored(self.scalar, rows)

    def objective(self, scores: Tensor, rows: PreferenceBatch) -> Tensor:
        """Loss of each prompt [P]."""
        loss: Tensor = self.ranking(scores, rows.rank, rows.mask.any(2), rows.margin)
        return loss + self.centre * scores.sum(1).square() if self.centre else loss

    def loss(self, micro: PreferenceBatch, totals: Totals) -> Tensor:
        scores, present = self.scores(micro), micro.mask.any(2)
        each = self.objective(scores, micro)
        self.meter.mean("train/loss", each, present.any(1))
        self.meter.mean("train/pair_accuracy", right(gaps(scores, present)), better(micro.rank, present))
        self.meter.mean("train/score", scores, present)
        return each.sum() / totals.sequences

    def measure(self, rows: PreferenceBatch) -> dict[str, float]:
        meter, parts = Meter(self.device), []
        for micro, _ in self.microbatches(rows):
            scores, num_tokens, present = self.scores(micro), micro.mask.sum(2), micro.mask.any(2)
            pairs, gap = better(micro.rank, present), gaps(scores, present)
            meter.mean("val/loss", self.objective(scores, micro), present.any(1))
            meter.mean("val/pair_accuracy", right(gap), pairs)
            told = present & pairs.flatten(1).any(1)[:, None]
            parts.append((gap[pairs], scores[present], num_tokens[present].float(), scores[told], (micro.rank == 0)[told]))
        mine = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
        gap, score, num_tokens, of_pairs, best = (torch.cat(ranks) for ranks in zip(*all_gather(mine), strict=True))
        if self.zero_mean:
            self.scalar.metadata["offset"] = float(score.double().mean())
        both_ways = torch.cat([gap, -gap])
        return meter.compute() | {
            "val/auc": auc(of_pairs, best),
            "val/calibration": calibration_error(both_ways.sigmoid(), torch.arange(len(both_ways)) < len(gap)),
            "val/length_correlation": correlation(score, num_tokens),
        }

    def state(self) -> dict[str, Any]:
        return super().state() | {"offset": self.scalar.metadata["offset"]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.scalar.metadata["offset"] = state["offset"]
