"""Summary file, exported model and model card of a run."""

from __future__ import annotations

import errno
import re
import shlex
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer
from safetensors import SafetensorError

from rlmods.callbacks.hooks import Metrics, Rows, as_learner
from rlmods.callbacks.monitor import Monitor
from rlmods.callbacks.progress import format_validation
from rlmods.callbacks.stop import DeadlineError, graceful_stop
from rlmods.errors import UserError, counted, in_one_line
from rlmods.run import atomic_write, dumps, wrap_write_errors
from rlmods.run.directory import RunDir
from rlmods.run.saved import NOT_FINISHED, SavedRun
from rlmods.run.secrets import clean, clean_urls
from rlmods.training.meter import peak_memory_mb

if TYPE_CHECKING:
    from rlmods.algo import Learner

PACKAGES = ("python", "torch", "transformers", "lightning", "git")
"""Lines of `versions.txt` that a card shows."""


class Summary(Callback):
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
            overrides: typed on the command line.
            fork: RUN@ITERATION that the run goes on from, None if it is no fork.
        """
        self.directory = directory
        self.label = label
        self.parts = parts
        self.dropped_prompts = dropped_prompts
        self.seed = seed
        self.overrides = overrides
        self.fork = fork
        self.accuracy: dict[str, float | None] = {"first": None, "best": None, "last": None}
        self.peak_memory_mb = 0.0
        self.wall_s = 0.0
        """Duration of the earlier processes of the run."""
        self.started = time.monotonic()
        self.last_validation = ""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.monotonic()
        if trainer.is_global_zero and self.directory.summary.is_file():
            # of the process that the run goes on from
            content = SavedRun(self.directory.path).summary | {"exit": NOT_FINISHED}
            atomic_write(self.directory.summary, dumps(content, indent=2) + "\n")

    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        self.peak_memory_mb = max(self.peak_memory_mb, metrics.get("perf/peak_memory_mb", 0.0))

    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        self.last_validation = format_validation(metrics)
        value = metrics.get("val/accuracy")
        if value is not None:
            first, best, _ = self.accuracy.values()
            self.accuracy = {
                "first": value if first is None else first,
                "best": value if best is None else max(value, best),
                "last": value,
            }

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        learner = as_learner(pl_module)
        ended_early = learner.iteration < learner.max_iterations
        interrupted = ended_early and graceful_stop(trainer).interrupted
        with wrap_write_errors(self.directory.export):
            try:
                learner.export(self.directory.export)
            except SafetensorError as error:
                raise OSError(errno.EIO, in_one_line(error)) from error
        # saving the checkpoint may have used more
        self.peak_memory_mb = max(self.peak_memory_mb, peak_memory_mb(learner.device))
        self._write(trainer, learner, "interrupted" if interrupted else "finished")
        if trainer.is_global_zero:
            # after `summary.json`, which it reads
            atomic_write(
                self.directory.export / "README.md", model_card(SavedRun(self.directory.path))
            )
            length = counted(learner.iteration, "iteration")
            if ended_early and not interrupted:
                length = (
                    f"{learner.iteration} of {counted(learner.max_iterations, 'iteration')}, "
                    f"ended by {learner.stopped_by or 'a callback'}"
                )
            self._print(trainer, learner, length)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        exit = f"failed: {type(exception).__name__}: {exception}"
        if isinstance(exception, KeyboardInterrupt | DeadlineError):
            exit = "interrupted"
        try:
            self._write(trainer, as_learner(pl_module), " ".join(exit.split()))
        except UserError as error:  # do not hide the exception
            warnings.warn(str(error), stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {
            "accuracy": dict(self.accuracy),
            "peak_memory_mb": self.peak_memory_mb,
            "wall_s": self._duration_s(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.accuracy = state_dict["accuracy"]
        self.peak_memory_mb = state_dict["peak_memory_mb"]
        self.wall_s = state_dict["wall_s"]

    def _duration_s(self) -> float:
        return self.wall_s + time.monotonic() - self.started

    def _print(self, trainer: Trainer, learner: Learner, length: str) -> None:
        """Print the result in a line, and the warnings of the run."""
        values = [
            f"{name} {value:.3f}" for name, value in self.accuracy.items() if value is not None
        ]
        parts = [length]
        if values:
            parts.append(f"val/accuracy {', '.join(values)}")
        elif self.last_validation:
            parts.append(self.last_validation)
        if learner.optimizer_steps == 0:
            parts.append("no optimizer step (no learning signal)")
        parts.append(f"the model is in {self.directory.export}")
        print(f"{self.label}: {'; '.join(parts)}", flush=True)
        for warning in self._warnings(trainer):
            print(f"warning: {warning}", file=sys.stderr, flush=True)

    def _warnings(self, trainer: Trainer) -> list[str]:
        """Return the messages of the monitor since the run began."""
        found: list[str] = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Monitor):
                found += callback.fired.values()
        return found

    def _write(self, trainer: Trainer, learner: Learner, exit: str) -> None:
        if not trainer.is_global_zero:
            return
        content: dict[str, Any] = {
            "label": clean_urls(self.label),
            "algo": self.label.split("[")[0],
            "parts": self.parts,
            "iterations": learner.iteration,
            "val/accuracy": self.accuracy,
            "wall_s": self._duration_s(),
            "response_tokens": learner.response_tokens,
            "peak_memory_mb": self.peak_memory_mb,
            "exit": clean(exit),
        }
        optional = {
            "seed": self.seed,
            "overrides": None if self.overrides is None else list(map(clean_urls, self.overrides)),
            "dropped_prompts": self.dropped_prompts or None,
            "fork": self.fork,
            "warnings": list(map(clean, self._warnings(trainer))) or None,
        }
        content |= {name: value for name, value in optional.items() if value is not None}
        atomic_write(self.directory.summary, dumps(content, indent=2) + "\n")


def model_card(run: SavedRun, iteration: int | None = None) -> str:
    """Return `README.md` of the model that a run has exported, for people and for the Hugging Face
    Hub: what it was trained on and how, its validations, the command and the versions.

    Args:
        iteration: iteration of an exported checkpoint; None: the last one.
    """
    # a run that was started from Python has no configuration
    config = run.config if (run.path / "config.yaml").is_file() else {}
    label = run.label if config else str(run.summary.get("label", run.path.name))
    front = ["library_name: transformers", "tags: [rlmods, reinforcement-learning]"]
    base = str((config.get("policy") or {}).get("name", ""))
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base):
        front.append(f"base_model: {base}")
    if iteration is None:
        iteration = run.summary.get("iterations")
    sections = [
        "\n".join(["---", *front, "---"]),
        f"# {run.path.name}: {label}",
        f"Trained with rlmods for {counted(iteration or 0, 'iteration')} (`{label}`), "
        f"seed {config.get('seed', run.summary.get('seed'))}.",
    ]
    if run.parts:
        rows = [f"| {group} | `{option}` |" for group, option in run.parts.items()]
        sections.append("\n".join(["| group | option |", "|---|---|", *rows]))
    results = []
    for metric in ("val/accuracy", "val/reward", "val/pair_accuracy"):
        value = run.result(metric)
        if value is not None:
            results.append(f"| {metric} | {value:.3f} |")
    if results:
        table = "\n".join(["| metric | value |", "|---|---|", *results])
        sections += ["## Held-out results", table]
    if run.overrides is not None:
        command = shlex.join(["python", "train.py", *run.overrides])
        sections += ["## Command", f"```bash\n{command}\n```"]
    versions = [f"- {name} {text}" for name, text in run.versions().items() if name in PACKAGES]
    if versions:
        sections += ["## Versions", "\n".join(versions)]
    return "\n\n".join(sections) + "\n"
