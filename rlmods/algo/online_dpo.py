"""Direct preference optimisation on sampled responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rlmods.algo.dpo import DPO, DPOSettings
from rlmods.errors import check_bounds
from rlmods.protocols import Judge
from rlmods.training.batch import Batch
from rlmods.training.collate import generate
from rlmods.training.extensions import MovingReference
from rlmods.training.metrics import sample_row
from rlmods.training.preference_batch import pad_preferences
from rlmods.training.preflight import synthetic_responses
from rlmods.training.response_ranking import RankedResponses, group_by_prompt, rank_responses
from rlmods.types import PreferenceBatch, Prompt, Response, Scores, objective


@dataclass(frozen=True)
class OnlineDPOSettings(DPOSettings):
    """Settings of online DPO, `algo.*` in the configuration."""

    reference_every: int | None = objective(None)
    """Iterations after which the reference is set to the policy (iterative DPO, arXiv:2312.16682);
    null: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(
            self,
            "algo",
            {
                "reference_every": (
                    self.reference_every is None or self.reference_every >= 1,
                    "at least 1",
                )
            },
        )


class OnlineDPO(DPO):
    """Sample responses, rank them with a judge, and make the better ones likelier than the worse
    ones (arXiv:2402.04792). Unlike the preferences of a data set, which compare responses of
    another policy, these compare responses of the current one."""

    groups: ClassVar[tuple[str, ...]] = (*DPO.groups, "judge")
    settings_type: ClassVar[type[Any]] = OnlineDPOSettings
    samples_responses: ClassVar[bool] = True
    needs_columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, judge: Judge, **learner: Any) -> None:
        """
        Args:
            judge: ranks the responses to a prompt.
            learner: arguments of `DPO`.
        """
        super().__init__(**learner)
        self.judge = judge
        if self.settings.reference_every is not None:
            self.add_extension(MovingReference(self.settings.reference_every))

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Return 1: a row holds all responses to a prompt."""
        return 1

    def largest_rows(self) -> Iterator[PreferenceBatch]:
        samples = self.batch.samples
        for responses in synthetic_responses(self, self.rows_per_step(), samples, samples):
            prompts, groups = (
                [list(r.prompt_tokens) for r in responses[::samples]],
                group_by_prompt(responses, samples),
            )
            tokens = [[list(r.tokens) for r in group] for group in groups]
            rows = pad_preferences(
                prompts, tokens, [list(range(samples))] * len(groups), self.policy.pad_id
            )
            yield self.add_ref_logprobs(rows.to(self.device))

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Sample and rank responses to one batch of prompts, and train on them."""
        self.train_on(self.sample(prompts))
        self.end_iteration()

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        """Sample and rank responses; a prompt without a preference between its responses gets an
        empty row."""
        with self.timer("rollout"):
            responses = generate(
                self.rollout, prompts, samples=self.batch.samples, iteration=self.iteration
            )
        with self.timer("reward"):
            ranked = rank_responses(
                self.judge, group_by_prompt(responses, self.batch.samples), self.meter
            )
        self.log_responses(responses, ranked)
        preferences = [group.preferences for group in ranked]
        rows = pad_preferences(
            [list(first.prompt_tokens) for first in responses[:: self.batch.samples]],
            [[list(r.tokens) for r, _ in group] or [[]] for group in preferences],
            [[rank for _, rank in group] or [0] for group in preferences],
            self.policy.pad_id,
        )
        with self.timer("score"):
            return self.add_ref_logprobs(rows.to(self.device))

    def log_responses(self, responses: list[Response], groups: list[RankedResponses]) -> None:
        """Log the sampled responses and their ranks."""
        distinct, ranks = (
            [r for group in groups for r in group.responses],
            [rank for group in groups for rank in group.ranks],
        )
        self.meter.sum("train/responses", len(responses))
        self.meter.mean(
            "train/response_tokens", torch.tensor([float(len(r.tokens)) for r in responses])
        )
        self.meter.mean(
            "train/truncated_fraction",
            torch.tensor([float(r.finish == "length") for r in responses]),
        )
        self.meter.mean("train/unique_fraction", len(distinct) / len(responses))
        self.meter.mean(
            "train/flat_group_fraction",
            torch.tensor([float(not group.preferences) for group in groups]),
        )
        scores = Scores([None] * len(ranks), columns={"rank": ranks})
        self.samples += [
            sample_row(response, scores, i) | {"iteration": self.iteration + 1}
            for i, response in enumerate(distinct)
        ]
        self.response_tokens += int(
            self.ranks.reduce(torch.tensor(sum(len(r.tokens) for r in responses)))
        )
