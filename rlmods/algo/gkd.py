"""Generalised knowledge distillation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlmods import protocols
from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.needs import FrozenModelNeeds, needs_of
from rlmods.ops import keyed_uniforms, kl_divergence
from rlmods.reward.scores import grade
from rlmods.rollout.order import generate_in_order
from rlmods.training.collate import collate_unscored, data_response
from rlmods.training.extensions import MovingModel
from rlmods.training.frozen import FrozenPolicy, Teacher
from rlmods.training.metrics import correctness_or_reward, log_lengths, log_responses
from rlmods.training.scorer import LogprobScorer
from rlmods.training.settings import GKDSettings
from rlmods.types import Experience, Prompt, Response, RowInts, RowMask, Scores, Totals


@dataclass(frozen=True, slots=True)
class DistillBatch:
    """Responses after the policy's prompts and after the teacher's, the input of optimizer steps
    that compare whole distributions."""

    student: Experience
    """Rows as the policy sees them."""
    teacher: Experience
    """The same responses as the teacher sees them, row by row."""

    def __len__(self) -> int:
        return len(self.student)

    @property
    def group(self) -> RowInts:
        """Id of the group of each row."""
        return self.student.group

    @property
    def forward_tokens(self) -> RowInts:
        """Number of tokens in a forward of the longer of the two rows."""
        return torch.maximum(self.student.lengths, self.teacher.lengths)

    @property
    def loss_counts(self) -> Int[Tensor, " 2"]:
        """Number of tokens and of sequences with loss: this rank's part of `Totals`."""
        return self.student.loss_counts

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors of the policy's rows by field name."""
        return self.student.tensors()

    def select(self, rows: Tensor) -> DistillBatch:
        """Return the rows selected by an index [n] or a bool mask [N]."""
        return DistillBatch(self.student.select(rows), self.teacher.select(rows))

    def to(self, device: torch.device | str) -> DistillBatch:
        """Move all tensors to a device."""
        return DistillBatch(self.student.to(device), self.teacher.to(device))

    def computed_tokens(self, order: RowInts) -> tuple[RowInts, RowInts]:
        """Return `Experience.computed_tokens` of the side that computes more."""
        of_student = self.student.computed_tokens(order)
        of_teacher = self.teacher.computed_tokens(order)
        alone = torch.maximum(of_student[0], of_teacher[0])
        added = torch.maximum(of_student[1], of_teacher[1])
        return alone, added

    def split(self, chunks: Sequence[Tensor]) -> Iterator[DistillBatch]:
        """Yield the rows of each chunk of indices, trimmed."""
        teacher = self.teacher.split(chunks)
        for student in self.student.split(chunks):
            yield DistillBatch(student, next(teacher))

    def masked(self, rows: RowMask) -> DistillBatch:
        """Return rows of the same shape, with a loss on the true ones [N] only."""
        keep = rows[:, None].to(self.student.mask.device)
        student = replace(self.student, mask=self.student.mask & keep)
        return DistillBatch(student, replace(self.teacher, mask=self.teacher.mask & keep))

    def without_loss(self) -> DistillBatch:
        """Return rows of the same shape with empty masks."""
        return DistillBatch(self.student.without_loss(), self.teacher.without_loss())


class GKD(Learner):
    """Generalised knowledge distillation (arXiv:2306.13649, algorithm 1): the policy's distribution
    of every next token is trained towards the teacher's, on responses of the policy and of the
    data.

    `1/sum|y| sum_i sum_t D(p_T(. | x', y_<t), pi(. | x, y_<t))`, with the generalised
    Jensen-Shannon divergence D of `beta` over the vocabulary (`divergence`), and no gradient
    through sampling. Responses that the teacher does not score are left out of both sums.

    `beta=1 on_policy_fraction=1` is on-policy distillation with the exact KL at each token instead
    of an estimate from the sampled one, as SDFT (arXiv:2601.19897) and OPSD (arXiv:2601.18734) do
    with a demonstration in the teacher's prompt x'. Both distributions are those of logits divided
    by the sampling temperature. Reads `prompt.meta["response"]` for the responses of the data."""

    config_groups = (
        *Learner.config_groups,
        "rollout",
        "environment",
        "reward",
        "teacher",
    )
    settings_type = GKDSettings
    samples_responses = True

    def __init__(self, *, teacher: protocols.Teacher, **learner: Any) -> None:
        """
        Args:
            teacher: loads the teacher, given the policy.
            learner: arguments of `Learner`.
        """
        super().__init__(**learner)
        self.teacher = Teacher(teacher, self.policy)
        self.reads_scores = needs_of(teacher, FrozenModelNeeds).scores
        if self.teacher.model is not None and self.teacher.rate:
            self.add_extension(MovingModel(self.teacher.model, rate=self.teacher.rate))
        self.scorer = LogprobScorer(self.policy, None, self.rollout, self.microbatches, self.ranks)

    @property
    def frozen(self) -> dict[str, FrozenPolicy]:
        return super().frozen | self.teacher.frozen

    @classmethod
    def columns(cls, settings: GKDSettings) -> tuple[str, ...]:
        """Return `response`, unless all responses are sampled."""
        return ("response",) if settings.on_policy_fraction < 1 else ()

    def on_fit_start(self) -> None:
        super().on_fit_start()
        prompts = self.trainer.datamodule.splits.train  # type: ignore[attr-defined]
        self.teacher.check_context(prompts, self.rollout.max_tokens, self.columns(self.settings))

    # Rows

    def example_rows(self, responses: Sequence[Response], group: Tensor) -> DistillBatch:
        prompts = [self.teacher.part.prompt(response.prompt) for response in responses]
        seen = self.teacher.after_prompts(responses, prompts)
        return self.as_rows(responses, seen, group)

    def as_rows(
        self, responses: Sequence[Response], seen: Sequence[Response], group: Tensor
    ) -> DistillBatch:
        """Return the responses as the policy and as the teacher sees them, on the device.

        Args:
            group: id of the group of each response [N].
        """
        student = collate_unscored(responses, self.policy.pad_id)
        teacher = collate_unscored(seen, self.policy.pad_id)
        rows = DistillBatch(replace(student, group=group), replace(teacher, group=group))
        return rows.to(self.device)

    def collate(self, responses: Sequence[Response], scores: Scores, group: Tensor) -> DistillBatch:
        """Return the rows of responses, without loss on those that the teacher does not score."""
        has_reward = torch.ones_like(group, dtype=torch.bool)
        if self.reads_scores:
            has_reward = ~correctness_or_reward(scores).isnan()
        seen, scored = self.teacher.as_seen(responses, scores, group, has_reward, self.meter)
        return self.as_rows(responses, seen, group).masked(scored)

    @torch.no_grad()
    def rows(self, prompts: Sequence[Prompt]) -> DistillBatch:
        responses, scores = self.responses(prompts)
        num_rows = len(responses) // len(prompts)
        group = torch.arange(len(prompts)).repeat_interleave(num_rows)
        rows = self.collate(responses, scores, group)
        num_tokens = sum(response.num_sampled for response in responses)
        num_left_out = num_tokens - int(rows.loss_counts[0])
        self.response_tokens += self.ranks.reduce_count(num_left_out)
        return rows

    def responses(self, prompts: Sequence[Prompt]) -> tuple[list[Response], Scores]:
        """Return `batch.samples` sampled responses to each prompt, or one of the data, and their
        rewards if the teacher reads them, else None for each."""
        is_sampled = list(map(self.is_sampled, prompts))
        chosen = [prompt for prompt, sampled in zip(prompts, is_sampled, strict=True) if sampled]
        with self.timer("rollout"):
            samples = generate_in_order(
                self.rollout, chosen, samples=self.batch.samples, iteration=self.iteration
            )
        self.meter.sum("perf/sampled_tokens", sum(sample.num_new for sample in samples))
        self.meter.mean("train/on_policy_fraction", torch.tensor(is_sampled, dtype=torch.float64))
        scores = self.score(samples)
        self.sample_log.add(samples, scores, self.iteration + 1)
        if all(is_sampled):
            return samples, scores
        # one to each prompt, and not graded
        remaining = iter(samples)
        responses = [
            next(remaining) if sampled else data_response(prompt, self.policy)
            for prompt, sampled in zip(prompts, is_sampled, strict=True)
        ]
        return responses, Scores([None] * len(responses))

    def score(self, samples: Sequence[Response]) -> Scores:
        """Return the rewards of sampled responses if the teacher reads them, else None for
        each."""
        if not self.reads_scores:
            log_lengths(self.meter, "train", samples)
            return Scores([None] * len(samples))
        with self.timer("reward"):
            scores = grade(self.reward, samples)
        group = torch.arange(len(samples)) // self.batch.samples
        log_responses(self.meter, samples, scores, group, torch.ones_like(group, dtype=torch.bool))
        return scores

    def is_sampled(self, prompt: Prompt) -> bool:
        """Return True if the policy samples the response to this prompt; depends on seed, prompt,
        pass and iteration alone."""
        draw = keyed_uniforms(1, "gkd", self.seed, prompt.id, prompt.time, self.iteration)
        return bool(draw[0] < self.settings.on_policy_fraction)

    # Optimizer steps

    def loss(self, micro: DistillBatch, totals: Totals) -> Tensor:
        rows = micro.student
        compare = partial(divergence, beta=self.settings.beta, top_k=self.settings.top_k)
        other = self.scorer.other(micro.teacher, self.teacher.network, compare)
        output = self.scorer.forward(rows, self.policy, other=other)
        assert output.divergence is not None
        self.meter.mean("train/entropy", output.entropy, rows.mask)
        self.meter.mean("train/loss", output.divergence, rows.mask)
        loss: Tensor = TokenMean()(output.divergence, rows.mask, totals)
        return loss


def divergence(
    student: Float[Tensor, "n V"],
    teacher: Float[Tensor, "n V"],
    beta: float,
    top_k: int | None = None,
) -> Float[Tensor, " n"]:
    """Return the divergence `jensen_shannon` of two distributions, given log-probabilities. With
    `top_k`, it is the divergence of the probabilities of the k tokens that are most likely under
    the student, and of all other tokens together (SDPO, arXiv:2601.20802): at most the divergence
    over all tokens."""
    if top_k is not None and top_k < student.shape[-1]:
        ids = student.topk(top_k).indices
        student = with_tail(student, ids)
        teacher = with_tail(teacher, ids)
    return jensen_shannon(student, teacher, beta)


def with_tail(logprobs: Float[Tensor, "n V"], ids: Int[Tensor, "n k"]) -> Float[Tensor, "n k+1"]:
    """Return the log-probabilities of the tokens `ids`, and of all others together."""
    tail = logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logprobs.gather(-1, ids), tail], -1)


def jensen_shannon(
    student: Float[Tensor, "n V"], teacher: Float[Tensor, "n V"], beta: float
) -> Float[Tensor, " n"]:
    """Return the generalised Jensen-Shannon divergence in nats, given log-probabilities (GKD,
    arXiv:2306.13649, equation 1):

        beta KL(P || M) + (1 - beta) KL(Q || M),   M = beta P + (1 - beta) Q

    P is the teacher's distribution, Q the student's. At the ends it is replaced by its limits up to
    scale: KL(P || Q) for beta = 0, since JSD / beta approaches it, and KL(Q || P) for beta = 1."""
    if beta in (0, 1):
        return kl_divergence(student, teacher) if beta else kl_divergence(teacher, student)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * kl_divergence(teacher, mixture) + (1 - beta) * kl_divergence(student, mixture)
