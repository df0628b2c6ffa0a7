"""Monitor: warns of a run that goes wrong, or ends it, by rules on its metrics; and the rows of
optimizer steps that are not finite."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning import Callback, LightningModule, Trainer

from rlmods.callbacks.hooks import Metrics, Rows, as_learner
from rlmods.errors import UserError
from rlmods.protocols import truncates
from rlmods.run import atomic_write
from rlmods.run.alerts import (
    IDLE,
    MAXIMA,
    SAMPLER_GAP,
    WARNINGS,
    Alerts,
    Series,
    derived,
    limit_rules,
)
from rlmods.training.train_step import MicroLoss, Source

if TYPE_CHECKING:
    from rlmods.algo import Learner


class Monitor(Callback):
    """Evaluate the rules after each iteration and validation. A rule that begins to hold prints its
    message, logs `alert/<name>` and is listed under `warnings` in `summary.json`; some rules also
    end the run, after its model is saved. The rules see the metrics only, which are equal on all
    ranks."""

    def __init__(
        self,
        max_ratio: float | None = MAXIMA["max_ratio"],
        max_kl: float | None = MAXIMA["max_kl"],
        max_grad_norm: float | None = MAXIMA["max_grad_norm"],
        max_sampler_gap: float | None = MAXIMA["max_sampler_gap"],
        max_ahead_gap: float | None = MAXIMA["max_ahead_gap"],
        stop_on_warning: bool = False,
    ) -> None:
        """
        Args:
            max_ratio: limit of `train/ratio_max`; healthy runs stay far below all limits, NaN and
            infinities are beyond. null: none.
            max_kl: limit of `train/kl_old` and `train/kl_ref`, nats per token.
            max_grad_norm: limit of `train/grad_norm`.
            max_sampler_gap: limit of `train/sampler_logprob_gap`, nats per token; none if the
                rollout has a top_p or top_k, which makes a difference of its own.
            max_ahead_gap: limit of `train/ahead_logprob_gap`, nats per token.
            stop_on_warning: rules that only warn end the run too.

        Raises:
            UserError: a limit that is not positive.
        """
        limits = {
            "max_ratio": max_ratio,
            "max_kl": max_kl,
            "max_grad_norm": max_grad_norm,
            "max_sampler_gap": max_sampler_gap,
            "max_ahead_gap": max_ahead_gap,
        }
        for setting, limit in limits.items():
            if limit is not None and not limit > 0:
                raise UserError(f"callbacks.monitor.{setting}={limit}: must be above 0, or null")
        self.alerts = Alerts((*limit_rules(limits), *IDLE, *WARNINGS))
        self.stop_on_warning = stop_on_warning
        self.fired: dict[str, str] = {}
        """Latest message of every rule that has held since the run began, by name."""
        self._error = ""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if truncates(as_learner(pl_module).rollout):  # which makes the difference
            kept = [rule for rule in self.alerts.rules if rule.name != SAMPLER_GAP]
            self.alerts.rules = kept

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self._evaluate(trainer, learner, {**metrics, **derived(metrics)})

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        self._evaluate(trainer, learner, metrics)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """
        Raises:
            UserError: a rule has ended the run; the checkpoint is already written.
        """
        if self._error:
            raise UserError(self._error)

    def _evaluate(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        """Add these metrics, and report the rules that begin to hold."""
        for rule, happened, value in self.alerts.add(metrics):
            message = f"iteration {learner.iteration}: {happened}"
            self.fired[rule.name] = message
            learner.log_row({f"alert/{rule.name}": value})
            if rule.action == "stop" or self.stop_on_warning:
                trainer.should_stop = True
                self._error = self._error or message
            elif trainer.is_global_zero:
                warnings.warn(message, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        series = {name: asdict(values) for name, values in self.alerts.series.items()}
        return {"series": series, "active": sorted(self.alerts.active), "fired": dict(self.fired)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.alerts.series = {
            name: Series(**values) for name, values in state_dict["series"].items()
        }
        self.alerts.active = set(state_dict["active"])
        self.fired = dict(state_dict["fired"])


class NonfiniteRows(Callback):
    """Write the rows of the last optimizer step to `folder` when too many steps in a row were not
    finite (`batch.max_nonfinite`): `iteration_000012.pt` for each rank, read by `torch.load(path,
    weights_only=True)`, with the rows under `shares`, and under `losses` the loss of every
    microbatch with the indices of its rows."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_nonfinite_batch(
        self,
        trainer: Trainer,
        learner: Learner,
        reason: str,
        sources: Sequence[Source],
        losses: Sequence[MicroLoss],
        norms: Mapping[str, torch.Tensor],
    ) -> None:
        """
        Raises:
            UserError: always, with the path of the file.
        """
        iteration = learner.iteration + 1
        report = {
            "why": reason,
            "iteration": iteration,
            "optimizer_steps": learner.optimizer_steps,
            "rank": trainer.global_rank,
            "norms": {name: float(norm) for name, norm in norms.items()},
            "losses": [
                {"share": x.source, "rows": x.indices.cpu(), "loss": float(x.value)} for x in losses
            ],
            "shares": [source.rows.to("cpu").tensors() for source in sources],
        }
        rank = f"_rank_{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"iteration_{iteration:06d}{rank}.pt"
        content = io.BytesIO()
        torch.save(report, content)
        atomic_write(path, content.getvalue())
        raise UserError(f"{reason}; its rows are in {path}: torch.load(PATH, weights_only=True)")
