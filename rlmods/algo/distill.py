"""On-policy distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods import protocols
from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.training.frozen import FrozenPolicy, Teacher
from rlmods.training.settings import DistillSettings
from rlmods.types import Experience, Prompt, Response, Scores


class Distill(PolicyGradient):
    """On-policy distillation: the policy samples, and the teacher grades each token (Thinking
    Machines Lab 2025, "On-Policy Distillation"; the reverse KL on the policy's own samples of
    MiniLLM, arXiv:2306.08543, and GKD, arXiv:2306.13649).

    `1/sum|y| sum_i sum_t r A_t`, with `A_t = A^R_t + c (log p_T(y_t | x', y_<t) - log pi_old(y_t |
    x, y_<t))`

    Each token's advantage is the negative of its own k1 estimate of the reverse KL from the
    teacher, without the tokens after it (discount 0). Its expected gradient is that of KL(pi ||
    p_T) at each token. x' is the teacher's prompt, which may contain a demonstration that x does
    not. A^R, the advantage of the reward, is 0 in the recipe (`advantage=none`); with another
    `advantage` the policy learns from both."""

    trains_on_turns: ClassVar[bool] = False
    config_groups: ClassVar[tuple[str, ...]] = (*PolicyGradient.config_groups, "teacher")
    settings_type: ClassVar[type[Any]] = DistillSettings
    settings: DistillSettings

    def __init__(self, *, teacher: protocols.Teacher, **loop: Any) -> None:
        """
        Args:
            teacher: loads the teacher, given the policy.
            loop: arguments of `PolicyGradient`.
        """
        super().__init__(**loop)
        self.teacher = Teacher(teacher, self.policy)

    @property
    def frozen(self) -> dict[str, FrozenPolicy]:
        return super().frozen | self.teacher.frozen

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.teacher.check_context(self.splits.train, self.rollout.max_tokens)

    def build_batch(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], scores: Scores
    ) -> Experience:
        """Return the responses as rows, scored by the teacher."""
        batch = super().build_batch(prompts, responses, scores)
        with self.timer("teacher"):
            logprobs = self.teacher.logprobs(responses, batch, self.scorer)
            return replace(batch, teacher_logprobs=logprobs)

    def estimate_advantages(self, batch: Experience, scores: Scores) -> Experience:
        """Estimate the advantages of the reward, and log the teacher's."""
        batch = super().estimate_advantages(batch, scores)
        batch = self.scorer.add_old_logprobs(batch, torch.ones_like(batch.on_policy))
        gap = teacher_gap(batch)
        self.meter.mean("train/kl_teacher", -gap, batch.mask)
        self.meter.mean("train/teacher_above_fraction", (gap > 0).double(), batch.mask)
        return batch

    @property
    def normalizes_advantages(self) -> bool:
        """True: the teacher's advantages are added to the normalised ones."""
        return True

    def normalize_advantages(self, batch: Experience) -> Experience:
        """Normalise the advantages of the reward, if the estimator does so, and add the
        teacher's."""
        batch = super().normalize_advantages(batch)
        of_teacher = self.settings.teacher_coefficient * teacher_gap(batch)
        return replace(batch, advantages=batch.advantages + of_teacher)


def teacher_gap(batch: Experience) -> Tensor:
    """Return log p_T - log pi_old [N, T] of the tokens with loss; 0 elsewhere."""
    assert batch.teacher_logprobs is not None
    return torch.where(batch.mask, batch.teacher_logprobs - batch.old_logprobs, 0.0)
