"""A run that has exploded ends before it spends the night on it."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import Callback, Trainer

from rlmods.callbacks.hooks import Metrics
from rlmods.run import atomic_write
from rlmods.types import UserError

WATCHED = {
    "train/ratio_max": "max_ratio",
    "train/kl_old": "max_kl",
    "train/kl_ref": "max_kl",
    "train/grad_norm": "max_grad_norm",
}
"""The setting that bounds a metric."""


class Guard(Callback):
    """Watches what grows when training explodes, with bounds that a healthy run stays far below; a metric that is NaN is beyond any.

    The model is saved first. Rows on which too many optimizer steps in a row were not finite (`batch.max_nonfinite`) are written to
    `folder`, `iteration_000012.pt` a rank, to be read with `torch.load(path, weights_only=True)`: `shares` of rows, and under `losses` the
    loss of every microbatch with the indices of its rows.
    """

    def __init__(
        self,
        folder: str | Path,
        max_ratio: float | None = 1000.0,
        max_kl: float | None = 10.0,
        max_grad_norm: float | None = 10000.0,
        patience: int = 3,
        action: Literal["warn", "stop"] = "stop",
    ) -> None:
        """
        Args:
            folder: where rows go that made a loss or a gradient NaN or infinite.
            max_ratio: of `train/ratio_max`, how much likelier than before an optimizer step made a token. null: no bound, here and below.
            max_kl: of `train/kl_old` and `train/kl_ref`, nats per token.
            max_grad_norm: of `train/grad_norm`, before it is scaled down to `batch.max_norm`.
            patience: iterations in a row beyond a bound.
            action: warn once, each time it happens, or stop.

        Raises:
            UserError: a bound that is not positive, a patience below 1, an unknown action.
        """
        self.bounds = {"max_ratio": max_ratio, "max_kl": max_kl, "max_grad_norm": max_grad_norm}
        for name, bound in self.bounds.items():
            if bound is not None and not bound > 0:
                raise UserError(f"callbacks.guard.{name}={bound}: must be above 0, or null")
        if patience < 1:
            raise UserError(f"callbacks.guard.patience={patience}: must be at least 1")
        if action not in ("warn", "stop"):
            raise UserError(f"callbacks.guard.action={action}: one of warn, stop")
        self.folder, self.patience, self.action = Path(folder), patience, action
        self._in_a_row: Counter[str] = Counter()
        self._verdict = ""

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """On every rank, with the same metrics."""
        for metric, name in WATCHED.items():
            bound = self.bounds[name]
            if bound is None or metric not in metrics:
                continue
            beyond = not metrics[metric] <= bound
            self._in_a_row[metric] = self._in_a_row[metric] + 1 if beyond else 0
            if self._in_a_row[metric] == self.patience:
                self._tell(trainer, f"{metric} is {metrics[metric]:.4g} after iteration {learner.iteration}", f"{name}={bound:g}")

    def teardown(self, trainer: Trainer, learner: Any, stage: str) -> None:
        """
        Raises:
            UserError: it exploded. The checkpoint is written by then.
        """
        if self._verdict:
            raise UserError(self._verdict)

    def on_nonfinite_batch(self, trainer: Trainer, learner: Any, study: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: always, and says where to look.
        """
        rank = f"_rank_{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"iteration_{study['iteration']:06d}{rank}.pt"
        content = io.BytesIO()
        torch.save(dict(study), content)
        atomic_write(path, content.getvalue())
        raise UserError(f"{study['why']}; its rows are in {path}: torch.load(PATH, weights_only=True)")

    def _tell(self, trainer: Trainer, what: str, bound: str) -> None:
        line = f"{what}, and {self.patience} in a row were beyond callbacks.guard.{bound}"
        if self.action == "stop":
            trainer.should_stop = True
            self._verdict = f"{line}: the run has exploded, and is saved; try a smaller optimizer.lr=..., or another bound"
        elif trainer.is_global_zero:
            warnings.warn(line, stacklevel=2)
