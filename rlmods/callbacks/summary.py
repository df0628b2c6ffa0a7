"""Summary file and exported model of a run."""

from __future__ import annotations

import errno
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from safetensors import SafetensorError

from rlmods.callbacks.progress import format_validation
from rlmods.callbacks.stop import DeadlineError, graceful_stop
from rlmods.errors import UserError
from rlmods.lab.saved import SavedRun
from rlmods.policy.exports import export_problem
from rlmods.run import RunDir, wrap_write_errors, write_summary
from rlmods.run.card import model_card
from rlmods.training.metrics import peak_memory_mb


class Summary(L.Callback):
    """Write `summary.json` when the run ends for whatever reason, and `export/` unless it failed.

    A run that a callback ends before its last iteration is "finished"; "interrupted" is one that a
    signal ends."""

    def __init__(
        self,
        directory: RunDir,
        label: str,
        parts: Mapping[str, str],
        dropped_prompts: int = 0,
        seed: int | None = None,
        overrides: Sequence[str] | None = None,
        fork: str | None = None,
    ) -> None:
        """
        Args:
            dropped_prompts: number of prompts left out of the data because they are too long.
            seed: seed of the run.
            overrides: those of the command line.
            fork: RUN@ITERATION that the run goes on from, None if it is no fork.
        """
        self.directory, self.label, self.parts, self.dropped_prompts = (
            directory,
            label,
            parts,
            dropped_prompts,
        )
        self.seed, self.overrides, self.fork = seed, overrides, fork
        self.accuracy: dict[str, float | None] = {"first": None, "best": None, "last": None}
        self.peak_memory_mb = 0.0
        self.wall_s = 0.0
        self.started = time.monotonic()
        self.last_validation = ""
        self.finding: str | None = None
        """Why the exported model cannot be used."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.monotonic()

    def on_iteration_end(
        self, trainer: L.Trainer, learner: Any, metrics: Mapping[str, float]
    ) -> None:
        self.peak_memory_mb = max(self.peak_memory_mb, metrics.get("perf/peak_memory_mb", 0.0))

    def on_validation_metrics(
        self, trainer: L.Trainer, learner: Any, metrics: Mapping[str, float], rows: Any
    ) -> None:
        self.last_validation = format_validation(metrics)
        value = metrics.get("val/accuracy")
        if value is None:
            return
        first, best = self.accuracy["first"], self.accuracy["best"]
        self.accuracy = {
            "first": value if first is None else first,
            "best": value if best is None else max(value, best),
            "last": value,
        }

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        ended_early = pl_module.iteration < pl_module.max_iterations
        interrupted = ended_early and graceful_stop(trainer).interrupted
        self._export(pl_module)
        self.finding = export_problem(self.directory.export) if trainer.is_global_zero else None
        # saving the checkpoint may have used more
        self.peak_memory_mb = max(self.peak_memory_mb, peak_memory_mb(pl_module.device))
        self._write(trainer, pl_module, "interrupted" if interrupted else "finished")
        if trainer.is_global_zero:
            if self.directory.export.is_dir():
                with wrap_write_errors(self.directory.export):
                    (self.directory.export / "README.md").write_text(
                        model_card(SavedRun(self.directory.path))
                    )
            accuracies = {name: value for name, value in self.accuracy.items() if value is not None}
            shown = ", ".join(f"{name} {value:.3f}" for name, value in accuracies.items())
            validation = f"val/accuracy {shown}" if accuracies else self.last_validation
            steps = (
                "no optimizer step (no learning signal)" if pl_module.optimizer_steps == 0 else ""
            )
            length = f"{pl_module.iteration} iterations"
            if ended_early and not interrupted:
                length = (
                    f"{pl_module.iteration} of {pl_module.max_iterations} iterations, ended by "
                    f"{pl_module.stopped_by or 'a callback'}"
                )
            findings = _findings(trainer)
            parts = [length, validation, steps, f"the model is in {self.directory.export}"]
            print(f"{self.label}: {'; '.join(part for part in parts if part)}", flush=True)
            for finding in findings:
                print(f"warning: {finding}", file=sys.stderr, flush=True)

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        exit = (
            "interrupted"
            if isinstance(exception, KeyboardInterrupt | DeadlineError)
            else f"failed: {type(exception).__name__}: {exception}"
        )
        try:
            self._write(trainer, pl_module, " ".join(exit.split()))
        except UserError as error:  # do not hide the exception
            warnings.warn(str(error), stacklevel=2)

    def _export(self, learner: Any) -> None:
        with wrap_write_errors(self.directory.export):
            try:
                learner.export(self.directory.export)
            except SafetensorError as error:
                raise OSError(errno.EIO, " ".join(str(error).split())) from error

    def on_lost_rank(self, trainer: L.Trainer, pl_module: Any, why: str) -> None:
        self._write(
            trainer, pl_module, "interrupted" if DeadlineError.__name__ in why else f"failed: {why}"
        )

    def _write(self, trainer: L.Trainer, learner: Any, exit: str) -> None:
        if not trainer.is_global_zero:
            return
        write_summary(
            self.directory.summary,
            label=self.label,
            algo=self.label.split("[")[0],
            parts=self.parts,
            iterations=learner.iteration,
            accuracy=self.accuracy,
            wall_s=self.wall_s + time.monotonic() - self.started,
            response_tokens=learner.response_tokens,
            peak_memory_mb=self.peak_memory_mb,
            exit=exit,
            dropped_prompts=self.dropped_prompts,
            seed=self.seed,
            overrides=self.overrides,
            fork=self.fork,
            warnings=_findings(trainer),
        )

    def state_dict(self) -> dict[str, Any]:
        wall_s = self.wall_s + time.monotonic() - self.started
        return {"accuracy": self.accuracy, "peak_memory_mb": self.peak_memory_mb, "wall_s": wall_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.accuracy, self.peak_memory_mb, self.wall_s = (
            state_dict["accuracy"],
            state_dict["peak_memory_mb"],
            state_dict["wall_s"],
        )


def _findings(trainer: L.Trainer) -> list[str]:
    """Return the warnings of the callbacks that hold for the latest iteration (`finding`)."""
    findings = [getattr(callback, "finding", None) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    return [finding for finding in findings if finding]
