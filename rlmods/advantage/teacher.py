"""Advantage of a teacher's log-probabilities."""

from dataclasses import dataclass

import torch

from rlmods.needs import AdvantageNeeds
from rlmods.types import Credit, RowInts, TokenFloats, TokenMask


@dataclass(frozen=True)
class TeacherLogRatio:
    """A_t = log p_T(y_t | x', y_<t) - log pi_old(y_t | x, y_<t)

    p_T is the part `teacher`, and x' its prompt, which may show what x does not. The advantage of a
    token is the negative of its own k1 estimate of the reverse KL from the teacher, without the
    tokens after it (discount 0). Its expected gradient is that of KL(pi || p_T) at each token: the
    signal of on-policy distillation (Thinking Machines Lab 2025) and, with `teacher=self`, of SDPO
    at the sampled token (arXiv:2601.20802). It is 0 for a response whose teacher's
    prompt would show nothing.

    Add it to another estimator with `advantage=sum`:

        advantage=sum
        +advantage@advantage.terms.reward.estimator=group_mean
        +advantage@advantage.terms.teacher.estimator=teacher
        +advantage.terms.teacher.weight=0.1

    A KL in the reward is subtracted per token afterwards."""

    needs = AdvantageNeeds(teacher=True, normalizes_rewards=True, credit="token")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
        *,
        teacher_log_ratio: TokenFloats,
    ) -> Credit:
        """Return the advantages.

        Args:
            teacher_log_ratio: log p_T - log pi_old of each token.
        """
        return Credit(torch.where(mask, teacher_log_ratio, 0.0))
