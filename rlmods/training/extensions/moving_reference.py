"""Frozen models that follow the policy: the reference in jumps, the teacher in small steps."""

from collections.abc import Mapping

from rlmods.training.extensions.base import Extension, LoopView
from rlmods.training.frozen import FrozenPolicy
from rlmods.types import Experience


class MovingModel(Extension):
    """Move the weights of a frozen model towards the policy after every `every` iterations: w <-
    (1 - rate) w + rate w_policy.

    The reference is set to the policy, with a rate of 1 (iterative GRPO, arXiv:2402.03300,
    algorithm 1; iterative DPO, arXiv:2312.16682). This happens after the validation at the end of a
    round, which still uses the round's reference. The teacher is an exponential moving average
    (SDPO, arXiv:2601.20802)."""

    def __init__(self, model: FrozenPolicy, every: int = 1, rate: float = 1.0) -> None:
        self.model = model
        self.every = every
        self.rate = rate

    def attach(self, loop: LoopView) -> None:
        super().attach(loop)
        self.model.follow(loop.policy)

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.loop.iteration % self.every == 0:
            self.model.step_towards(self.loop.policy, self.rate)

    def before_update(self, batch: Experience) -> Experience:
        """Score rows of earlier iterations (buffered or replayed) with the current reference;
        theirs was an earlier one."""
        loop = self.loop
        # with kl=full distributions are compared in the loss
        if self.model is not loop.reference or loop.full_kl:
            return batch
        num_old = (batch.policy_version < loop.iteration).sum()
        if loop.ranks.reduce(num_old) > 0:
            with loop.timer("score"):
                batch = loop.scorer.add_ref_logprobs(batch, self.model.policy)
        return batch
