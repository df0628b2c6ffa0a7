"""Reward models from rankings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlmods.algo.learner import Learner
from rlmods.policy.modes import set_dropout
from rlmods.policy.scalar import ScalarModel
from rlmods.ranking.pairs import is_better, pair_correctness, pairwise_differences
from rlmods.training.meter import Meter
from rlmods.training.preferences import PreferenceBatch, candidate_scores, collate_preferences
from rlmods.training.ranking_metrics import auc, calibration_error, concat_ranks, correlation
from rlmods.training.settings import RewardModelSettings
from rlmods.types import Prompt, Totals


class RewardModel(Learner):
    """Train a reward model with a `ranking` loss (InstructGPT, arXiv:2203.02155, section 3.5): the
    policy's trunk with a scalar head, so that better responses score higher. The policy itself is
    neither trained nor saved.

    Reads `prompt.meta["candidates"]` and `["ranks"]`.
    """

    # no adapter: all weights are trained
    config_groups = ("data", "policy", "ranking")
    settings_type = RewardModelSettings
    needs_columns = ("candidates",)
    validation_column = "candidates"

    def __init__(self, *, ranking: Any, **learner: Any) -> None:
        """
        Args:
            ranking: loss of each prompt's scores.
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.ranking = ranking
        self.scalar = ScalarModel.from_policy(self.policy)
        self.scalar.metadata.update(
            {"kind": "reward", "offset": 0.0, "pooling": self.settings.pooling}
        )
        if self.settings.dropout:
            set_dropout(self.scalar, self.settings.dropout)
        self.networks = {"reward_model": self.scalar}
        del self.policy

    def export(self, folder: Path) -> None:
        self.scalar.export(folder)

    def rows(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        return collate_preferences(prompts, self.scalar).to(self.device)

    def scores(self, rows: PreferenceBatch) -> Tensor:
        """Return the score of each response [P, K]; 0 for missing candidates."""
        return candidate_scores(self.scalar, rows)

    def losses(self, scores: Tensor, rows: PreferenceBatch) -> Tensor:
        """Return the loss of each prompt [P]."""
        losses: Tensor = self.ranking(scores, rows.rank, rows.mask.any(2), rows.margin)
        if self.settings.centre:
            losses = losses + self.settings.centre * scores.sum(1).square()
        return losses

    def loss(self, micro: PreferenceBatch, totals: Totals) -> Tensor:
        scores = self.scores(micro)
        present = micro.mask.any(2)
        losses = self.losses(scores, micro)
        correct = pair_correctness(pairwise_differences(scores, present))
        self.meter.mean("train/loss", losses, present.any(1))
        self.meter.mean("train/pair_accuracy", correct, is_better(micro.rank, present))
        self.meter.mean("train/score", scores, present)
        return losses.sum() / totals.sequences

    def measure(self, rows: PreferenceBatch) -> dict[str, float]:
        meter = Meter(self.device)
        parts: dict[str, list[Tensor]] = {}
        for micro, _ in self.microbatches(rows):
            scores = self.scores(micro)
            present = micro.mask.any(2)
            pairs = is_better(micro.rank, present)
            differences = pairwise_differences(scores, present)
            compared = present & pairs.flatten(1).any(1)[:, None]
            meter.mean("val/loss", self.losses(scores, micro), present.any(1))
            meter.mean("val/pair_accuracy", pair_correctness(differences), pairs)
            for name, x in {
                "difference": differences[pairs],
                "score": scores[present],
                "num_tokens": micro.mask.sum(2)[present].float(),
                "compared_score": scores[compared],
                "is_best": (micro.rank == 0)[compared],
            }.items():
                parts.setdefault(name, []).append(x)
        columns = concat_ranks(parts)
        if self.settings.zero_mean:
            self.scalar.metadata["offset"] = float(columns["score"].double().mean())
        both_orders = torch.cat([columns["difference"], -columns["difference"]])
        is_first = torch.arange(len(both_orders)) < len(columns["difference"])
        return meter.compute() | {
            "val/auc": auc(columns["compared_score"], columns["is_best"]),
            "val/calibration": calibration_error(both_orders.sigmoid(), is_first),
            "val/length_correlation": correlation(columns["score"], columns["num_tokens"]),
        }

    def counters(self) -> dict[str, Any]:
        return super().counters() | {"offset": self.scalar.metadata["offset"]}

    def load_counters(self, state: Mapping[str, Any]) -> None:
        super().load_counters(state)
        self.scalar.metadata["offset"] = state["offset"]
