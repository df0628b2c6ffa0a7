"""Warning for runs that train nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from lightning import Callback, Trainer

from rlmods.callbacks.hooks import Metrics
from rlmods.errors import UserError

CAUSES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "train/unscored_fraction",
        lambda x: x == 1,
        "the reward abstains on every response: check reward= and the data",
    ),
    (
        "train/greedy_unscored_fraction",
        lambda x: x == 1,
        "the reward abstains on every greedy response: type another advantage=rloo",
    ),
    (
        "train/truncated_fraction",
        lambda x: x == 1,
        "every response is truncated: type a larger rollout.max_tokens",
    ),
    (
        "train/all_wrong_fraction",
        lambda x: x == 1,
        "every response is wrong: type easier data, batch.samples=16, or algo=sft first",
    ),
    ("train/all_correct_fraction", lambda x: x == 1, "every response is correct: type harder data"),
    (
        "train/flat_group_fraction",
        lambda x: x == 1,
        "all responses to a prompt score alike: type batch.samples=8 or more, or other data",
    ),
    (
        "train/kept_fraction",
        lambda x: x == 0,
        "sampling= selects no response: type sampling=fixed, or other bounds",
    ),
)
"""Metric, condition, and the cause that it indicates, the most specific first."""


class Idle(Callback):
    """Warn if iterations in a row have no learning signal, with the likely cause: no optimizer step
    was made (every row was filtered or unscored), or all advantages were 0, so that at most a KL or
    entropy term was trained. The warning is repeated once training has resumed and stopped again.
    It is logged as `alert/idle`, and is part of `summary.json` if the run ends without a signal."""

    def __init__(self, patience: int = 5) -> None:
        """
        Args:
            patience: iterations in a row without a signal after which to warn.

        Raises:
            UserError: a patience below 1.
        """
        if patience < 1:
            raise UserError(f"callbacks.idle.patience={patience}: must be at least 1")
        self.patience = patience
        self._num_idle = 0
        self.finding: str | None = None
        """Warning that holds for the latest iteration."""

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """Check the metrics, which are the same on every rank."""
        self._num_idle = self._num_idle + 1 if is_idle(metrics) else 0
        self.finding = None
        if self._num_idle >= self.patience:
            self.finding = (
                f"{self._num_idle} iterations in a row trained nothing: {likely_cause(metrics)}"
            )
        if self._num_idle == self.patience:
            learner.log_row({"alert/idle": float(self._num_idle)})
            if trainer.is_global_zero:
                warnings.warn(str(self.finding), stacklevel=2)


def is_idle(metrics: Metrics) -> bool:
    """Return True if an iteration had no learning signal. Without an optimizer step there is no
    gradient norm."""
    return (
        metrics.get("train/grad_norm", 0.0) == 0
        or metrics.get("train/zero_advantage_fraction") == 1
    )


def likely_cause(metrics: Metrics) -> str:
    """Return the likely cause of an iteration without a gradient."""
    for name, indicates, cause in CAUSES:
        if name in metrics and indicates(metrics[name]):
            return f"{cause} ({name}={metrics[name]:g})"
    return "all advantages are 0 or no row has a loss; see samples/ and train/reward"
