"""Process reward models from labelled steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlmods.aggregation import TokenMean
from rlmods.algo.scalar import Scalar
from rlmods.distributed.collectives import all_gather
from rlmods.reward.process import tokens_at
from rlmods.training.collate import collate
from rlmods.training.measures import auc
from rlmods.training.metrics import Meter
from rlmods.types import Experience, Prompt, Response, Scores, Totals, UserError


class ProcessRewardModel(Scalar):
    """Say of each step whether it is right: `-mean over steps of l log p + (1 - l) log(1 - p)`, with l the label and p = sigmoid of the
    number at the step's last token. The end-of-text token belongs to the last step.

    Reads `prompt.meta["steps"]`, whose concatenation is the response, and `["step_labels"]`, 0 to 1. "Let's verify step by step" (arXiv
    2305.20050, section 2.6) and Math-Shepherd (arXiv 2312.08935, equation 2).
    """

    metadata: ClassVar[dict[str, Any]] = {"kind": "process"}
    column: ClassVar[str] = "steps"
    needs_columns: ClassVar[tuple[str, ...]] = ("steps",)

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        """`mask` and `steps` are True on the last token of each step, and `rewards` hold the labels there."""
        responses, ends = zip(*(self.response(prompt) for prompt in prompts), strict=True)
        scores, group = Scores([0.0] * len(responses)), torch.arange(len(responses))
        rows = collate(responses, scores, group, version=self.iteration, pad_id=self.scalar.pad_id)
        steps, labels = torch.zeros_like(rows.mask), torch.zeros_like(rows.rewards)
        for i, (prompt, at) in enumerate(zip(prompts, ends, strict=True)):
            steps[i, at] = True
            labels[i, at] = torch.tensor([float(label) for label in prompt.meta["step_labels"]])
        return replace(rows, mask=steps, steps=steps, rewards=labels).to(self.device)

    def response(self, prompt: Prompt) -> tuple[Response, list[int]]:
        """The ids of the whole text, as they would be of a sampled one, and the column of each step's last one.

        Raises:
            UserError: a step without a token of its own.
        """
        steps = prompt.meta["steps"]
        asked, tokens = self.scalar.encode(prompt), self.scalar.encode_response("".join(steps))
        lengths = [len(step) for step in steps]
        ends = [*tokens_at(self.scalar.decode, tokens, list(accumulate(lengths))[:-1]), len(tokens) - 1]
        if not all(lengths) or len(set(ends)) < len(steps):
            raise UserError(f"prompt {prompt.id}: a step is empty, or ends within a token; join it with its neighbour")
        return Response(prompt, asked, tokens, [0.0] * len(tokens)), [len(asked) + end for end in ends]

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        numbers = self.scalar(micro.tokens)
        each = cross_entropy(numbers, micro)
        self.meter.mean("train/loss", each, micro.mask)
        self.meter.mean("train/step_accuracy", right(numbers, micro.rewards), micro.mask)
        return TokenMean()(each, micro.mask, totals)

    def measure(self, rows: Experience) -> dict[str, float]:
        meter, parts = Meter(self.device), []
        for micro, _ in self.microbatches(rows):
            numbers, steps = self.scalar(micro.tokens), micro.mask
            meter.mean("val/loss", cross_entropy(numbers, micro), steps)
            meter.mean("val/step_accuracy", right(numbers, micro.rewards), steps)
            found, true = first(steps & (numbers < 0)), first(steps & (micro.rewards < 0.5))
            meter.mean("val/first_error_accuracy", (found == true).double(), steps.any(1))
            parts.append((numbers[steps], (micro.rewards >= 0.5)[steps]))
        mine = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
        numbers, good = (torch.cat(ranks) for ranks in zip(*all_gather(mine), strict=True))
        return meter.compute() | {"val/auc": auc(numbers, good)}


def cross_entropy(numbers: Tensor, rows: Experience) -> Tensor:
    """-l log p - (1 - l) log(1 - p) [N, T], with p = sigmoid of the number and l the label; where no step ends, l is taken to be 0."""
    return binary_cross_entropy_with_logits(numbers, torch.where(rows.mask, rows.rewards, 0.0), reduction="none")


def right(numbers: Tensor, labels: Tensor) -> Tensor:
    """1 where number and label say the same of a step: p at least a half, label at least a half."""
    return ((numbers >= 0) == (labels >= 0.5)).double()


def first(where: Tensor) -> Tensor:
    """Column of each row's first true slot [N]; the width where there is none."""
    return torch.where(where.any(1), where.int().argmax(1), where.shape[1])
