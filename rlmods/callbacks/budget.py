"""End of a run by the number of sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer

from rlmods.callbacks.hooks import Metrics
from rlmods.errors import UserError

if TYPE_CHECKING:
    from rlmods.algo import Learner


class TokenBudget(Callback):
    """Ends the run after the iteration that has sampled the last of `max_tokens` response tokens,
    those of discarded groups included. Algorithms that draw more prompts, or write longer
    responses, then cost the same."""

    def __init__(self, max_tokens: int | None = None) -> None:
        """
        Args:
            max_tokens: number of response tokens; null: no limit.

        Raises:
            UserError: a number below 1.
        """
        is_count = isinstance(max_tokens, int) and max_tokens >= 1
        if max_tokens is not None and not is_count:
            raise UserError(f"callbacks.budget.max_tokens={max_tokens}: must be null or at least 1")
        self.max_tokens = max_tokens
        self.num_tokens = 0

    @property
    def is_spent(self) -> bool:
        """True if the run ends here."""
        return self.max_tokens is not None and self.num_tokens >= self.max_tokens

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that is resumed at its end makes no further iteration."""
        if self.is_spent:
            trainer.should_stop = True

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self.num_tokens += int(metrics.get("perf/sampled_tokens", 0))
        if self.is_spent:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"num_tokens": self.num_tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_tokens = state["num_tokens"]
