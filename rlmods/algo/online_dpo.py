"""Direct preference optimisation on the policy's own responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from rlmods.algo.dpo import DPO
from rlmods.protocols import Judge
from rlmods.training.batch import Batch
from rlmods.training.evaluation import row
from rlmods.training.judging import Judged, by_prompt, judged
from rlmods.training.preference_batch import stack
from rlmods.types import PreferenceBatch, Prompt, Response, Scores


class OnlineDPO(DPO):
    """Sample, let a judge rank, make the better responses likelier than the worse ones, repeat (arXiv 2402.04792).

    Preferences stay about what the policy says today, where those of a data set are about what another policy said once. With
    `reference_every` the reference follows in rounds (iterative DPO, arXiv 2312.16682).
    """

    groups: ClassVar[tuple[str, ...]] = (*DPO.groups, "judge")
    samples_responses: ClassVar[bool] = True
    needs_columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, judge: Judge, reference_every: int | None = None, **shared: Any) -> None:
        """
        Args:
            judge: ranks the responses to a prompt.
            reference_every: iterations after which the reference becomes the policy; None: never.
        """
        super().__init__(**shared)
        self.judge, self.reference.every = judge, reference_every

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """A row holds all responses to a prompt."""
        return 1

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """One batch of prompts, answered by the policy."""
        self.learn(self.ranked(prompts))
        self.finish_iteration()

    @torch.no_grad()
    def ranked(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        """Responses to each prompt with the judge's ranks, where one is better than another."""
        with self.timed("rollout"):
            responses = self.rollout.generate(prompts, samples=self.batch.samples, iteration=self.iteration)
        with self.timed("reward"):
            found = judged(self.judge, by_prompt(responses, self.batch.samples), self.meter)
        self.watch(responses, found)
        known = [group.preferences for group in found]
        rows = stack(
            [list(first.prompt_tokens) for first in responses[:: self.batch.samples]],
            [[list(r.tokens) for r, _ in pairs] or [[]] for pairs in known],
            [[rank for _, rank in pairs] or [0] for pairs in known],
            self.policy.pad_id,
        )
        with self.timed("score"):
            return self.referenced(rows.to(self.device))

    def watch(self, responses: list[Response], groups: list[Judged]) -> None:
        """What was sampled, and how the judge found it."""
        said, told = [r for group in groups for r in group.responses], [rank for group in groups for rank in group.ranks]
        self.meter.total("train/responses", len(responses))
        self.meter.mean("train/response_tokens", torch.tensor([float(len(r.tokens)) for r in responses]))
        self.meter.mean("train/truncated_fraction", torch.tensor([float(r.finish == "length") for r in responses]))
        self.meter.mean("train/unique_fraction", len(said) / len(responses))
        self.meter.mean("train/flat_group_fraction", torch.tensor([float(not group.preferences) for group in groups]))
        scores = Scores([None] * len(told), columns={"rank": told})
        self.samples += [row(response, scores, i) | {"iteration": self.iteration + 1} for i, response in enumerate(said)]
        self.response_tokens += int(self.across_ranks(torch.tensor(sum(len(r.tokens) for r in responses))))
