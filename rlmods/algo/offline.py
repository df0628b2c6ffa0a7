"""Learning from rows of data: nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from rlmods.algo.learner import Learner
from rlmods.types import Experience, PreferenceBatch, Prompt


class Offline(Learner):
    """One batch of prompts is one iteration: epochs x minibatches of optimizer steps on what their rows of data say."""

    column: ClassVar[str]
    """Of `prompt.meta`: what a row says."""

    def rows(self, prompts: Sequence[Prompt]) -> Any:
        """The rows of these prompts as tensors, on the device."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its rows are")

    def measure(self, rows: Any) -> dict[str, float]:
        """Metrics of held-out rows of this rank, over all ranks."""
        return {}

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """One batch of rows."""
        rows = self.rows(prompts)
        self.response_tokens += int(self.across_ranks(rows.counts[0]))
        self.learn(rows)
        self.finish_iteration()

    def learn(self, rows: Experience | PreferenceBatch) -> None:
        """Epochs x minibatches of optimizer steps."""
        with self.timed("update"):
            for network in self.networks.values():
                network.train(getattr(network, "gradient_checkpointing", False))
            for chosen in self.minibatches(len(rows)):
                self.update(rows.select(chosen))
            for network in self.networks.values():
                network.eval()

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Metrics of the validation prompts whose data has the column; those of a rank without any count for nothing."""
        prompts = [p for p in self.validation_prompts[: self.validation.max_prompts] if self.column in p.meta]
        if not prompts:
            return {}
        mine = prompts[self.global_rank :: self.trainer.world_size]
        return self.measure(self.rows(mine) if mine else self.rows(prompts[:1]).without_loss())
