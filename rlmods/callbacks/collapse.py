"""Warning for a validation metric or a reward that has collapsed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from lightning import Callback, Trainer

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.errors import UserError

ADVICE = "go back to an earlier checkpoint, with a smaller optimizer.lr or kl=loss"


def is_noise(a: float, b: float, num_prompts: int) -> bool:
    """Return whether two accuracies over `num_prompts` prompts each differ by less than three
    standard errors.

    With one right and one wrong answer added to each (Agresti and Caffo, 2000), so that accuracies
    of 0 and 1 have an error too. False if the number of prompts is not known (0)."""
    if num_prompts == 0:
        return False
    p, q = ((x * num_prompts + 1) / (num_prompts + 2) for x in (a, b))
    return abs(p - q) < 3 * math.sqrt((p * (1 - p) + q * (1 - q)) / (num_prompts + 2))


class Collapse(Callback):
    """Warn of a collapse: `val/accuracy` is at most half of its best, by more than three standard
    errors, or every response has the same reward, lower than at first.

    The warning is logged as `alert/collapse`, is repeated once the metric has recovered and
    collapsed again, and is part of `summary.json` if it holds at the end of the run."""

    def __init__(self, min_drop: float = 0.05, window: int = 3) -> None:
        """
        Args:
            min_drop: smallest drop of `val/accuracy` from its best that is a collapse.
            window: number of iterations to average the reward over, at the start of the run and
            now.

        Raises:
            UserError: a drop that is not above 0, a window below 1.
        """
        if not min_drop > 0:
            raise UserError(f"callbacks.collapse.min_drop={min_drop}: must be above 0")
        if window < 1:
            raise UserError(f"callbacks.collapse.window={window}: must be at least 1")
        self.min_drop, self.window = min_drop, window
        self.best: float | None = None
        """Best `val/accuracy`."""
        self.first: list[list[float]] = []
        """Mean reward and its standard deviation within groups, of the first iterations."""
        self.latest: list[list[float]] = []
        self.findings: dict[str, str] = {}
        """Current warning by metric."""

    @property
    def finding(self) -> str | None:
        """Warning that holds for the latest iteration."""
        return next(iter(self.findings.values()), None)

    def on_validation_metrics(
        self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows
    ) -> None:
        if (value := metrics.get("val/accuracy")) is None:
            return
        self.best = value if self.best is None else max(self.best, value)
        num_prompts = trainer.world_size * len(
            {row["id"] for row in rows if row.get("set") is None}
        )
        collapsed = (
            value <= self.best / 2
            and self.best - value >= self.min_drop
            and not is_noise(self.best, value, num_prompts)
        )
        message = (
            f"val/accuracy has collapsed to {value:.3f}, its best was {self.best:.3f}: {ADVICE}"
        )
        self._report(trainer, learner, "val/accuracy", message if collapsed else None)

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        if not {"train/reward", "train/reward_std"} <= metrics.keys():
            return
        now = [metrics["train/reward"], metrics["train/reward_std"]]
        if len(self.first) < self.window:
            self.first.append(now)
        self.latest = [*self.latest, now][-self.window :]
        (first, first_std), (mean, std) = (
            [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            for rows in (self.first, self.latest)
        )
        collapsed = (
            std <= 0.05 * first_std
            and first - mean >= 0.25 * first_std > 0
            and learner.iteration >= 2 * self.window
        )
        message = (
            f"the reward has collapsed: every response gets {mean:.3f}, at first the mean was "
            f"{first:.3f}: {ADVICE}"
        )
        self._report(trainer, learner, "train/reward", message if collapsed else None)

    def _report(self, trainer: Trainer, learner: Any, metric: str, message: str | None) -> None:
        """Update the current warning of a metric; print and log it if it is new."""
        is_new = message is not None and metric not in self.findings
        self.findings.pop(metric, None)
        if message is not None:
            self.findings[metric] = message
        if is_new:
            learner.log_row({"alert/collapse": 1.0})
            if trainer.is_global_zero:
                warnings.warn(f"iteration {learner.iteration}: {message}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "first": self.first,
            "latest": self.latest,
            "findings": dict(self.findings),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.best, self.first, self.latest = (
            state_dict["best"],
            list(state_dict["first"]),
            list(state_dict["latest"]),
        )
        self.findings = dict(state_dict["findings"])
