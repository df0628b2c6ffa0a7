"""End of a run by the number of sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer

from rlmods.callbacks.hooks import Metrics
from rlmods.settings.bounds import Count, bounded

if TYPE_CHECKING:
    from rlmods.algo import Learner


@dataclass(eq=False)
@bounded("callbacks.budget")
class TokenBudget(Callback):
    """Ends the run after the iteration that has sampled the last of `max_tokens` response tokens,
    those of discarded groups included. Algorithms that draw more prompts, or write longer
    responses, then cost the same."""

    max_tokens: Count | None = None
    """Number of response tokens; null: no limit."""
    num_tokens: int = field(default=0, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if its tokens are spent: one that is resumed at its end makes no further
        iteration."""
        if self.max_tokens is not None and self.num_tokens >= self.max_tokens:
            trainer.should_stop = True

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self.num_tokens += int(metrics.get("perf/sampled_tokens", 0))
        self.on_train_start(trainer, learner)

    def state_dict(self) -> dict[str, Any]:
        return {"num_tokens": self.num_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_tokens = state["num_tokens"]
