"""Hooks that the learner calls on callbacks, in addition to Lightning's.

Callbacks of Lightning that monitor a metric work too: `trainer.callback_metrics` holds the latest
metrics, as in `metrics.jsonl`, and the learner calls `on_validation_end` after each validation
but the first, as `EarlyStopping` and `ModelCheckpoint` expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from lightning import LightningModule, Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from rlmods.algo import Learner
    from rlmods.training.train_step import MicroLoss, Source

Metrics = Mapping[str, float]
Row = Mapping[str, Any]
"""Row of the sample log: one response."""
Rows = Sequence[Row]


class Hooks(Protocol):
    """All hooks; a callback implements any of them, or none."""

    def on_preflight(self, trainer: Trainer, learner: Learner, line: str) -> None:
        """Called before training with the peak memory of the largest microbatches in words, if they
        were run (`batch.preflight`)."""

    def on_iteration_metrics(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        """Called once after each iteration, before its validation, with its logged metrics. Set
        `trainer.should_stop` here to end the run with a last validation."""

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        """Called once after each iteration, also after its validation, with its logged metrics.
        Parts and extensions have changed by then, and `IterationCheckpoint` is called last, so a
        checkpoint holds the state that the next iteration begins with."""

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Called after each validation with its metrics and scored responses."""

    def on_safe_point(self, trainer: Trainer, learner: Learner) -> None:
        """Called often within an iteration, where raising an exception leaves no state half
        written."""

    def on_nonfinite_batch(
        self,
        trainer: Trainer,
        learner: Learner,
        reason: str,
        sources: Sequence[Source],
        losses: Sequence[MicroLoss],
        norms: Mapping[str, Tensor],
    ) -> None:
        """Called on every rank before non-finite optimizer steps end the run, with the rows of the
        last one, the losses of its microbatches and the gradient norms of the networks."""


def is_due(iteration: int, every: int) -> bool:
    """Return True in every `every`-th iteration; 0: in none."""
    return every > 0 and iteration % every == 0


def as_learner(module: LightningModule) -> Learner:
    """Return the module that Lightning passes to its own hooks, with its type."""
    return cast("Learner", module)
