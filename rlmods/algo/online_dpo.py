"""Direct preference optimisation on sampled responses."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.algo.dpo import DPO
from rlmods.protocols import Judge
from rlmods.rollout.order import generate_in_order
from rlmods.training.extensions import MovingModel
from rlmods.training.metrics import log_lengths
from rlmods.training.preferences import (
    PreferenceBatch,
    RankedResponses,
    group_by_prompt,
    pad_preferences,
    rank_responses,
)
from rlmods.training.settings import Batch, OnlineDPOSettings
from rlmods.types import Prompt, Response, Scores


class OnlineDPO(DPO):
    """Sample responses, rank them with a judge, and make the better ones likelier than the worse
    ones (arXiv:2402.04792). Unlike the preferences of a data set, which compare responses of
    another policy, these compare responses of the current one."""

    config_groups = (*DPO.config_groups, "judge")
    settings_type = OnlineDPOSettings
    samples_responses = True
    needs_columns = ()

    def __init__(self, *, judge: Judge, **learner: Any) -> None:
        """
        Args:
            judge: ranks the responses to a prompt.
            learner: arguments of `DPO`.
        """
        super().__init__(**learner)
        self.judge = judge
        if self.settings.reference_every is not None and self.reference is not None:
            self.add_extension(MovingModel(self.reference, self.settings.reference_every))

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Return 1: a row holds all responses to a prompt."""
        return 1

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Sample and rank responses to one batch of prompts, and train on them."""
        self.train_on(self.sample(prompts))
        self.end_iteration()

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        """Sample and rank responses; a prompt without a preference between its responses gets an
        empty row."""
        samples = self.batch.samples
        with self.timer("rollout"):
            responses = generate_in_order(
                self.rollout, prompts, samples=samples, iteration=self.iteration
            )
        with self.timer("reward"):
            ranked = rank_responses(self.judge, group_by_prompt(responses, samples), self.meter)
        self.log_responses(responses, ranked)
        firsts = [list(first.prompt_tokens) for first in responses[::samples]]
        rows = self.pad(firsts, [group.preferences for group in ranked])
        with self.timer("score"):
            return self.add_ref_logprobs(rows)

    @torch.no_grad()
    def example_rows(self, responses: Sequence[Response], group: Tensor) -> PreferenceBatch:
        groups = group_by_prompt(responses, self.batch.samples)
        ranked = [[(response, rank) for rank, response in enumerate(group)] for group in groups]
        firsts = [list(group[0].prompt_tokens) for group in groups]
        return self.add_ref_logprobs(self.pad(firsts, ranked))

    def pad(
        self, prompts: list[list[int]], ranked: Sequence[Sequence[tuple[Response, int]]]
    ) -> PreferenceBatch:
        """Return the tokens of ranked responses to each prompt as a batch on the device; a prompt
        without any gets one empty response."""
        tokens: list[list[list[int]]] = []
        ranks: list[list[int]] = []
        for group in ranked:
            tokens.append([list(response.tokens) for response, _ in group] or [[]])
            ranks.append([rank for _, rank in group] or [0])
        return pad_preferences(prompts, tokens, ranks, self.policy.pad_id).to(self.device)

    def log_responses(self, responses: list[Response], groups: list[RankedResponses]) -> None:
        """Log the sampled responses and their ranks."""
        distinct: list[Response] = []
        ranks: list[int | None] = []
        for group in groups:
            distinct += group.responses
            ranks += group.ranks
        flat = torch.tensor([float(not group.preferences) for group in groups])
        self.meter.sum("train/responses", len(responses))
        self.meter.sum("perf/sampled_tokens", sum(x.num_new for x in responses))
        log_lengths(self.meter, "train", responses)
        self.meter.mean("train/unique_fraction", len(distinct) / len(responses))
        self.meter.mean("train/flat_group_fraction", flat)
        scores = Scores([None] * len(ranks), columns={"rank": ranks})
        self.sample_log.add(distinct, scores, self.iteration + 1)
        self.response_tokens += self.ranks.reduce_count(sum(len(r.tokens) for r in responses))
