"""Periodic update of the reference to the current policy."""

from __future__ import annotations

from rlmods.training.extensions.base import Extension


class MovingReference(Extension):
    """Set the reference to the policy after every `every` iterations (iterative GRPO, arXiv:2402.03300, algorithm 1; iterative DPO,
    arXiv:2312.16682).

    This happens before the first batch of the next iteration, so the validation at the end of a round still uses the round's reference."""

    def __init__(self, every: int) -> None:
        self.every = every

    def attach(self, loop: object) -> None:
        super().attach(loop)
        if self.loop.reference is not None:
            self.loop.reference.moves = True

    def on_iteration_start(self) -> None:
        if self.loop.reference is not None and self.loop.iteration > 0 and self.loop.iteration % self.every == 0:
            self.loop.reference.copy_from(self.loop.policy)
