"""Frozen models that follow the policy: the reference in jumps, the teacher in small steps."""

from __future__ import annotations

from collections.abc import Mapping

from rlmods.training.extensions.base import Extension, LoopView
from rlmods.training.frozen import FrozenPolicy
from rlmods.types import Experience


class MovingReference(Extension):
    """Set the reference to the policy after every `every` iterations (iterative GRPO,
    arXiv:2402.03300, algorithm 1; iterative DPO, arXiv:2312.16682).

    This happens after the validation at the end of a round, which still uses the round's
    reference."""

    def __init__(self, every: int) -> None:
        self.every = every

    def attach(self, loop: LoopView) -> None:
        super().attach(loop)
        if self.loop.reference is not None:
            self.loop.reference.follow(self.loop.policy)

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.loop.reference is not None and self.loop.iteration % self.every == 0:
            self.loop.reference.copy_from(self.loop.policy)

    def before_update(self, batch: Experience) -> Experience:
        """Score rows of earlier iterations (buffered or replayed) with the current reference;
        theirs was an earlier one."""
        loop = self.loop
        if loop.full_kl:  # compares distributions in the loss
            return batch
        num_old = (batch.policy_version < loop.iteration).sum()
        if loop.reference is not None and loop.ranks.reduce(num_old) > 0:
            with loop.timer("score"):
                batch = loop.scorer.add_ref_logprobs(batch, loop.reference.policy)
        return batch


class MovingTeacher(Extension):
    """Move the weights of the teacher towards the policy after each iteration: an exponential
    moving average, w_T <- (1 - rate) w_T + rate w (SDPO, arXiv:2601.20802)."""

    def attach(self, loop: LoopView) -> None:
        super().attach(loop)
        self.model.follow(self.loop.policy)

    @property
    def model(self) -> FrozenPolicy:
        """The weights that move."""
        teacher = self.loop.teacher
        assert teacher is not None
        assert teacher.model is not None
        return teacher.model

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        assert self.loop.teacher is not None
        self.model.step_towards(self.loop.policy, self.loop.teacher.rate)
