"""Process reward models from labelled steps."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.errors import UserError
from rlmods.policy.modes import set_dropout
from rlmods.policy.scalar import ScalarModel
from rlmods.reward.process import tokens_at
from rlmods.training.collate import collate_unscored
from rlmods.training.meter import Meter
from rlmods.training.ranking_metrics import auc, concat_ranks
from rlmods.training.settings import ProcessRewardModelSettings
from rlmods.types import Experience, Prompt, Response, Totals


class ProcessRewardModel(Learner):
    """Train a model that classifies each step as correct or not: `-mean over steps of l log p + (1
    - l) log(1 - p)`, with l the label and p the sigmoid of the score at the step's last token. The
    end-of-text token belongs to the last step.

    Reads `prompt.meta["steps"]`, whose concatenation is the response, and `["step_labels"]`, 0 to
    1. "Let's verify step by step" (arXiv:2305.20050, section 2.6) and Math-Shepherd
    (arXiv:2312.08935, equation 2)."""

    # no adapter: all weights are trained
    config_groups = ("data", "policy")
    settings_type = ProcessRewardModelSettings
    needs_columns = ("steps",)
    validation_column = "steps"

    def __init__(self, **learner: Any) -> None:
        """
        Args:
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.scalar = ScalarModel.from_policy(self.policy)
        self.scalar.metadata.update({"kind": "process"})
        if self.settings.dropout:
            set_dropout(self.scalar, self.settings.dropout)
        self.networks = {"reward_model": self.scalar}
        del self.policy

    def export(self, folder: Path) -> None:
        self.scalar.export(folder)

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        """Return rows whose `mask` and `steps` are True on the last token of each step, where
        `rewards` are the labels."""
        responses: list[Response] = []
        ends: list[list[int]] = []
        for prompt in prompts:
            response, columns = self.response(prompt)
            responses.append(response)
            ends.append(columns)
        rows = collate_unscored(responses, self.scalar.pad_id, self.iteration)
        steps = torch.zeros_like(rows.mask)
        labels = torch.zeros_like(rows.rewards)
        for i, prompt in enumerate(prompts):
            steps[i, ends[i]] = True
            labels[i, ends[i]] = torch.tensor([float(x) for x in prompt.meta["step_labels"]])
        return replace(rows, mask=steps, steps=steps, rewards=labels).to(self.device)

    def response(self, prompt: Prompt) -> tuple[Response, list[int]]:
        """Return the token ids of the whole text, encoded like a sampled response, and the column
        of each step's last token.

        Raises:
            UserError: a step that is empty or shares its last token with another step.
        """
        steps = prompt.meta["steps"]
        prompt_tokens = self.scalar.encode(prompt)
        tokens = self.scalar.encode_response("".join(steps), prompt)
        lengths = list(map(len, steps))
        ends = tokens_at(self.scalar.decode, tokens, list(accumulate(lengths))[:-1])
        ends = [*ends, len(tokens) - 1]
        if not all(lengths) or len(set(ends)) < len(steps):
            raise UserError(
                f"prompt {prompt.id}: a step is empty, or ends within a token; join it with "
                "its neighbour"
            )
        columns = [len(prompt_tokens) + end for end in ends]
        return Response(prompt, prompt_tokens, tokens, [0.0] * len(tokens)), columns

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        logits = self.scalar(micro.tokens)
        losses = cross_entropy(logits, micro)
        self.meter.mean("train/loss", losses, micro.mask)
        self.meter.mean("train/step_accuracy", is_correct(logits, micro.rewards), micro.mask)
        return TokenMean()(losses, micro.mask, totals)

    def measure(self, rows: Experience) -> dict[str, float]:
        meter = Meter(self.device)
        parts: dict[str, list[Tensor]] = {"logits": [], "labels": []}
        for micro, _ in self.microbatches(rows):
            logits = self.scalar(micro.tokens)
            steps = micro.mask
            meter.mean("val/loss", cross_entropy(logits, micro), steps)
            meter.mean("val/step_accuracy", is_correct(logits, micro.rewards), steps)
            predicted = first_true(steps & (logits < 0))
            labelled = first_true(steps & (micro.rewards < 0.5))
            meter.mean("val/first_error_accuracy", (predicted == labelled).double(), steps.any(1))
            parts["logits"].append(logits[steps])
            parts["labels"].append((micro.rewards >= 0.5)[steps])
        x = concat_ranks(parts)
        return meter.compute() | {"val/auc": auc(x["logits"], x["labels"])}


def cross_entropy(logits: Tensor, rows: Experience) -> Tensor:
    """Return -l log p - (1 - l) log(1 - p) [N, T], with p = sigmoid(logit) and l the label; l is 0
    where no step ends."""
    return binary_cross_entropy_with_logits(
        logits, torch.where(rows.mask, rows.rewards, 0.0), reduction="none"
    )


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the prediction (p at least a half) equals the label (at least a half)."""
    return ((logits >= 0) == (labels >= 0.5)).double()


def first_true(mask: Tensor) -> Tensor:
    """Return the column of each row's first true slot [N]; the width for a row without any."""
    return torch.where(mask.any(1), mask.int().argmax(1), mask.shape[1])
