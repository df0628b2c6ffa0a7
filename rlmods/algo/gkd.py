"""Generalised knowledge distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.errors import check_bounds
from rlmods.ops import jensen_shannon, keyed_uniforms
from rlmods.training.batch import Batch
from rlmods.training.collate import collate_unscored, generate
from rlmods.training.distill_batch import DistillBatch
from rlmods.training.reference import Reference
from rlmods.training.scorer import LogprobScorer
from rlmods.training.sft_batch import data_response
from rlmods.training.teacher import Teacher
from rlmods.types import Prompt, Response, Scores, Totals, objective


@dataclass(frozen=True)
class GKDSettings:
    """Settings of GKD, `algo.*` in the configuration."""

    beta: float = objective(0.5)
    """Divergence: 0 the forward KL(teacher || policy), 1 the reverse KL(policy || teacher), between
    them the generalised Jensen-Shannon divergence."""
    on_policy_fraction: float = objective(0.5)
    """Probability that the policy samples the response to a prompt (the paper's lambda). The others
    take the response of the data."""

    def __post_init__(self) -> None:
        rules = {
            "beta": (0 <= self.beta <= 1, "from 0 to 1"),
            "on_policy_fraction": (0 <= self.on_policy_fraction <= 1, "from 0 to 1"),
        }
        check_bounds(self, "algo", rules)


class GKD(Learner):
    """Generalised knowledge distillation (arXiv:2306.13649, algorithm 1): the policy's distribution
    of every next token is trained towards the teacher's, on responses of the policy and of the
    data.

    `1/sum|y| sum_i sum_t D(p_T(. | x', y_<t), pi(. | x, y_<t))`, with the generalised
    Jensen-Shannon divergence D of `beta` over the whole vocabulary, and no gradient through
    sampling

    `beta=1 on_policy_fraction=1` is on-policy distillation with the exact KL at each token instead
    of an estimate from the sampled one, as SDFT (arXiv:2601.19897) and OPSD (arXiv:2601.18734) do
    with a demonstration in the teacher's prompt x'. Both distributions are those of logits divided
    by the sampling temperature. Reads `prompt.meta["response"]` for the responses of the data."""

    groups: ClassVar[tuple[str, ...]] = (
        *Learner.groups,
        "rollout",
        "environment",
        "reward",
        "teacher",
    )
    settings_type: ClassVar[type[Any]] = GKDSettings
    samples_responses: ClassVar[bool] = True
    needs_distributions: ClassVar[bool] = True
    """True if the teacher's whole distributions are needed, which a server does not return."""

    def __init__(self, *, teacher: Any, **learner: Any) -> None:
        """
        Args:
            teacher: loads the teacher, given the policy.
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.teacher = Teacher(teacher, self.policy)
        self.scorer = LogprobScorer(self.policy, None, self.rollout, self.microbatches, self.ranks)

    @property
    def frozen(self) -> dict[str, Reference]:
        return super().frozen | self.teacher.frozen

    @classmethod
    def columns(cls, settings: GKDSettings) -> tuple[str, ...]:
        """Return `response`, unless all responses are sampled."""
        return ("response",) if settings.on_policy_fraction < 1 else ()

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Return 1: one response to each prompt."""
        return 1

    def on_fit_start(self) -> None:
        super().on_fit_start()
        prompts = self.trainer.datamodule.splits.train  # type: ignore[attr-defined]
        longest = self.rollout.max_tokens
        for prompt in prompts if self.settings.on_policy_fraction < 1 else ():
            response = self.policy.encode_response(prompt.meta["response"], prompt)
            longest = max(longest, len(response))
        self.teacher.check_context(prompts, longest)

    # Rows

    def prompt_length(self, prompt: Prompt) -> int:
        """Return the length of the longer of the policy's and the teacher's prompt."""
        seen = self.policy.encode(self.teacher.part.prompt(prompt))
        return max(super().prompt_length(prompt), len(seen))

    def example_rows(self, responses: Sequence[Response], group: Tensor) -> DistillBatch:
        return self.collate(responses)

    def collate(self, responses: Sequence[Response]) -> DistillBatch:
        """Collate responses after the policy's prompts and after the teacher's."""
        student = collate_unscored(responses, self.policy.pad_id)
        return DistillBatch(student, self.teacher.rows(responses)).to(self.device)

    @torch.no_grad()
    def rows(self, prompts: Sequence[Prompt]) -> DistillBatch:
        responses = self.responses(prompts)
        num_tokens = torch.tensor([float(len(r.tokens)) for r in responses])
        self.meter.mean("train/response_tokens", num_tokens)
        return self.collate(responses)

    def responses(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return one response to each prompt, sampled or of the data."""
        is_sampled = [self.is_sampled(prompt) for prompt in prompts]
        chosen = [prompt for prompt, sampled in zip(prompts, is_sampled, strict=True) if sampled]
        with self.timer("rollout"):
            samples = generate(self.rollout, chosen, samples=1, iteration=self.iteration)
        truncated = torch.tensor([float(r.finish == "length") for r in samples])
        self.meter.mean("train/on_policy_fraction", torch.tensor(is_sampled, dtype=torch.float64))
        self.meter.mean("train/truncated_fraction", truncated)
        self.sample_log.add(samples, Scores([None] * len(samples)), self.iteration + 1)
        responses: list[Response] = []
        remaining = iter(samples)
        for prompt, sampled in zip(prompts, is_sampled, strict=True):
            responses.append(next(remaining) if sampled else data_response(prompt, self.policy))
        return responses

    def is_sampled(self, prompt: Prompt) -> bool:
        """Return True if the policy samples the response to this prompt; depends on seed, prompt,
        pass and iteration alone."""
        draw = keyed_uniforms(1, "gkd", self.seed, prompt.id, prompt.time, self.iteration)
        return bool(draw[0] < self.settings.on_policy_fraction)

    # Optimizer steps

    def loss(self, micro: DistillBatch, totals: Totals) -> Tensor:
        rows = micro.student
        divergence = partial(jensen_shannon, beta=self.settings.beta)
        other = self.scorer.other(micro.teacher, self.teacher.network, divergence)
        output = self.scorer.forward(rows, self.policy, other=other)
        assert output.divergence is not None
        self.meter.mean("train/entropy", output.entropy, rows.mask)
        self.meter.mean("train/loss", output.divergence, rows.mask)
        loss: Tensor = TokenMean()(output.divergence, rows.mask, totals)
        return loss
