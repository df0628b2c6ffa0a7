"""Guard: ends a run whose training has diverged."""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import Callback, Trainer

from rlmods.callbacks.hooks import Metrics
from rlmods.errors import UserError
from rlmods.run import atomic_write

BOUND_NAMES = {
    "train/ratio_max": "max_ratio",
    "train/kl_old": "max_kl",
    "train/kl_ref": "max_kl",
    "train/grad_norm": "max_grad_norm",
    "train/sampler_logprob_gap": "max_sampler_gap",
    "train/ahead_logprob_gap": "max_ahead_gap",
}
"""Setting that bounds a metric, by metric."""
DIVERGED = (
    "training has diverged; the run is saved and stopped, try a smaller optimizer.lr=... "
    "or another bound"
)
CAUSES = {
    "max_sampler_gap": "the sampler and the trainer disagree about the policy, as with padding that reaches "
    "a recurrent state, another "
    "temperature or top_p in the rollout, weights that it has not received, or other "
    "precision or expert routing; the run is saved and "
    "stopped, type rollout=local, or if the difference is intended correction=truncated "
    "and another bound",
    "max_ahead_gap": "one iteration moves the policy too far for responses sampled ahead; the run is "
    "saved and stopped, type "
    "rollout.ahead=0, or a smaller optimizer.lr=... or another bound",
}
"""Likely causes and advice, by setting; `DIVERGED` for the others."""


class Guard(Callback):
    """Stop a run whose metrics exceed bounds that healthy runs stay far below; NaN and infinities
    exceed every bound. The model is saved first. A difference between sampler and trainer is there
    from the first iteration on, and is acted on at once.

    If too many optimizer steps in a row are not finite (`batch.max_nonfinite`), write the rows of
    the last one to `folder`, as `iteration_000012.pt` for each rank, read by `torch.load(path,
    weights_only=True)`: the rows under `shares`, and under `losses` the loss of every microbatch
    with the indices of its rows."""

    def __init__(
        self,
        folder: str | Path,
        max_ratio: float | None = 1000.0,
        max_kl: float | None = 10.0,
        max_grad_norm: float | None = 10000.0,
        max_sampler_gap: float | None = 0.1,
        max_ahead_gap: float | None = 0.5,
        patience: int = 3,
        action: Literal["warn", "stop"] = "stop",
    ) -> None:
        """
        Args:
            folder: folder for rows whose loss or gradient was NaN or infinite.
            max_ratio: bound of `train/ratio_max`, the largest importance ratio of a token. null: no
            bound, here and below.
            max_kl: bound of `train/kl_old` and `train/kl_ref`, nats per token.
            max_grad_norm: bound of `train/grad_norm`, before clipping to `batch.max_norm`.
            max_sampler_gap: bound of `train/sampler_logprob_gap`, nats per token; without patience.
            max_ahead_gap: bound of `train/ahead_logprob_gap`, nats per token, which includes the
            update of one iteration.
            patience: number of iterations in a row beyond a bound that triggers `action`.
            action: "warn" (once until the metric is back within its bound) or "stop".

        Raises:
            UserError: a bound that is not positive, a patience below 1, an unknown action.
        """
        self.bounds = {
            "max_ratio": max_ratio,
            "max_kl": max_kl,
            "max_grad_norm": max_grad_norm,
            "max_sampler_gap": max_sampler_gap,
            "max_ahead_gap": max_ahead_gap,
        }
        for name, bound in self.bounds.items():
            if bound is not None and not bound > 0:
                raise UserError(f"callbacks.guard.{name}={bound}: must be above 0, or null")
        if patience < 1:
            raise UserError(f"callbacks.guard.patience={patience}: must be at least 1")
        if action not in ("warn", "stop"):
            raise UserError(f"callbacks.guard.action={action}: one of warn, stop")
        self.folder, self.patience, self.action = Path(folder), patience, action
        self._num_beyond: Counter[str] = Counter()
        self._error = ""

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        """Check the metrics, which are the same on every rank."""
        for metric, name in BOUND_NAMES.items():
            bound = self.bounds[name]
            if bound is None or metric not in metrics:
                continue
            is_beyond = not -math.inf < metrics[metric] <= bound  # also true for NaN
            self._num_beyond[metric] = self._num_beyond[metric] + 1 if is_beyond else 0
            patience = 1 if name == "max_sampler_gap" else self.patience
            if self._num_beyond[metric] == patience:
                lasting = f" for {patience} iterations in a row" if patience > 1 else ""
                what = f"{metric} is {metrics[metric]:.4g} after iteration {learner.iteration}"
                self._report(
                    trainer,
                    f"{what}, beyond callbacks.guard.{name}={bound:g}{lasting}",
                    CAUSES.get(name, DIVERGED),
                )

    def teardown(self, trainer: Trainer, learner: Any, stage: str) -> None:
        """
        Raises:
            UserError: training has diverged; the checkpoint is already written.
        """
        if self._error:
            raise UserError(self._error)

    def on_nonfinite_batch(self, trainer: Trainer, learner: Any, study: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: always, with the path of the file.
        """
        rank = f"_rank_{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"iteration_{study['iteration']:06d}{rank}.pt"
        content = io.BytesIO()
        torch.save(dict(study), content)
        atomic_write(path, content.getvalue())
        raise UserError(
            f"{study['why']}; its rows are in {path}: torch.load(PATH, weights_only=True)"
        )

    def _report(self, trainer: Trainer, message: str, advice: str) -> None:
        if self.action == "stop":
            trainer.should_stop = True
            self._error = f"{message}: {advice}"
        elif trainer.is_global_zero:
            warnings.warn(message, stacklevel=2)
