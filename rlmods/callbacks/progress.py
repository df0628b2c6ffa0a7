"""Progress display: bars on a terminal, one line per iteration elsewhere."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import rich
from lightning import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich import progress as bars
from rich.table import Column

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.protocols import ReportsTokens

METRICS = {
    "loss": "train/loss",
    "reward": "train/reward",
    "accuracy": "train/accuracy",
    "pairs": "train/pair_accuracy",
    "reward model": "train/reward_model/pair_accuracy",
    "kl": "train/kl_ref",
    "tokens": "train/response_tokens",
}
"""Metrics shown if present, by display name."""

VALIDATION_METRICS = (
    r"val/(?!reward/)([\w-]+/)?(accuracy|mean@|pass@|maj@|pair_accuracy|step_accuracy)"
)
"""Beginnings of the names of the main metrics, also of named sets."""


PHASES = {
    "rollout": "sampling",
    "sync": "passing weights to the sampler",
    "reward": "grading",
    "score": "computing log-probabilities",
    "teacher": "asking the teacher",
    "judge": "judging",
    "refresh": "training the reward model",
    "update": "updating",
    "validation": "validating",
    "checkpoint": "saving",
    "preflight": "trying the largest microbatches",
}
"""Display name by phase of the iteration (`PhaseTimer`)."""
AFTER = ("validation", "checkpoint")
"""Phases after the iteration that has ended, and not of the next one."""
MIN_SHOWN_S = 2.0
"""Seconds after which a phase is shown on a terminal."""


class Progress(Callback):
    """Show a bar for iterations, one for responses during sampling, and the time in any other phase
    that takes long: grading, updates, validation. Without a terminal, print lines."""

    def __init__(self, patience_s: float = 30.0) -> None:
        """
        Args:
            patience_s: without a terminal, seconds without output after which the current phase is
            printed.
        """
        self.patience_s = patience_s
        self._bars: bars.Progress | None = None
        self._validation = ""
        self._last_output = self._sampling_since = self._phase_since = time.monotonic()
        self._phase = ("", 0)
        """Latest phase seen, and its iteration."""
        self._phase_start = 0
        """Progress of the timer when that phase was first seen."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self._last_output = time.monotonic()
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(learner,), name="progress", daemon=True
        )
        if isinstance(getattr(learner, "rollout", None), ReportsTokens):
            learner.rollout.on_tokens = self.on_tokens
        console = rich.get_console()
        if console.is_terminal:
            fixed, flexible = (
                Column(no_wrap=True),
                Column(no_wrap=False, overflow="ellipsis", max_width=200),
            )  # truncates on narrow terminals
            self._bars = bars.Progress(
                bars.TextColumn("{task.description}", table_column=fixed),
                bars.BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
                bars.MofNCompleteColumn(table_column=Column(no_wrap=True)),
                bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
                bars.TextColumn("{task.fields[details]}", table_column=flexible),
                console=console,
            )
            self._iterations = self._bars.add_task(
                "iterations", total=trainer.max_iterations, completed=learner.iteration, details=""
            )  # type: ignore[attr-defined]
            self._sampling = self._bars.add_task("sampling", total=1, visible=False, details="")
            self._phases = self._bars.add_task("", total=None, visible=False, details="")
            self._bars.start()
        self._thread.start()

    @rank_zero_only
    def on_preflight(self, trainer: Trainer, learner: Any, line: str) -> None:
        self._print(line)

    def on_tokens(self, done_rows: int, total_rows: int, tokens: int) -> None:
        """Update the sampling display; called by the rollout engine."""
        now = time.monotonic()
        if self._bars is not None:
            if not self._bars.tasks[self._sampling].visible:
                self._bars.reset(self._sampling, visible=True)
                self._sampling_since = now
            rate = tokens / max(now - self._sampling_since, 1e-3)
            details = f"{tokens} tokens, {rate:.0f}/s"
            visible = done_rows < total_rows
            self._bars.update(
                self._sampling,
                total=total_rows,
                completed=done_rows,
                details=details,
                visible=visible,
            )
        elif now - self._last_output > self.patience_s:
            self._print(f"sampling {done_rows}/{total_rows} responses, {tokens} tokens")

    @rank_zero_only
    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        seconds = metrics.get("time/iteration_s", time.monotonic() - self._last_output)
        details = format_iteration(metrics, seconds)
        if self._bars is not None:
            self._bars.update(
                self._iterations, completed=learner.iteration, details=details + self._validation
            )
            self._bars.update(self._sampling, visible=False)
            self._last_output = time.monotonic()
        else:
            self._print(f"iteration {learner.iteration}/{trainer.max_iterations}  {details}")  # type: ignore[attr-defined]

    @rank_zero_only
    def on_validation_metrics(
        self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows
    ) -> None:
        shown = format_validation(metrics)
        if self._bars is not None:
            self._validation = f"  {shown}" if shown else ""
            self._last_output = time.monotonic()
        elif shown:
            self._print(f"iteration {learner.iteration}/{trainer.max_iterations}  {shown}")  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        self._close()

    def _watch(self, learner: Any) -> None:
        """Loop of the thread: the main thread may be in a reward or in a microbatch for long."""
        while not self._stop.wait(min(1.0, self.patience_s / 5)):
            self.show_phase(learner)

    def show_phase(self, learner: Any) -> None:
        """Show the current phase of the iteration if it takes long."""
        now, phase, progress = (
            time.monotonic(),
            (learner.timer.phase, learner.iteration),
            learner.timer.progress,
        )
        if phase != self._phase:
            self._phase, self._phase_since, self._phase_start = phase, now, progress
        name, seconds, bars = PHASES.get(phase[0], phase[0]), now - self._phase_since, self._bars
        microbatches = (
            f", {progress - self._phase_start} microbatches" if phase[0] == "update" else ""
        )
        if bars is not None:
            visible = (
                seconds >= MIN_SHOWN_S
                and phase[0] in PHASES
                and not bars.tasks[self._sampling].visible
            )
            bars.update(
                self._phases,
                description=name,
                details=f"{seconds:.0f} s{microbatches}",
                visible=visible,
            )
        elif now - self._last_output > self.patience_s:
            current = learner.iteration + (phase[0] not in AFTER)
            self._print(f"iteration {current}: {name}, {seconds:.0f} s{microbatches}")

    def _close(self) -> None:
        """Stop the thread, and the bars, which restores the cursor."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _print(self, line: str) -> None:
        print(line, flush=True)
        self._last_output = time.monotonic()


def format_validation(metrics: Metrics) -> str:
    """Format the main validation metrics: `val/accuracy 0.480  val/pass@4 0.720`."""
    shown = "  ".join(
        f"{name} {value:.3f}"
        for name, value in metrics.items()
        if re.match(VALIDATION_METRICS, name)
    )
    if not shown and "val/reward" in metrics:  # for rewards without gold answers
        return f"val/reward {metrics['val/reward']:.3f}"
    return shown


def format_iteration(metrics: Metrics, seconds: float) -> str:
    """Format an iteration in one line: `reward 0.43  accuracy 0.38  tokens 6.1  clip low 0.01 high
    0.02  grad 0.8  1.2 s`."""
    details = [
        f"{name} {metrics[key]:.{1 if name == 'tokens' else 3}f}"
        for name, key in METRICS.items()
        if key in metrics
    ]
    clip = [metrics.get(f"train/clip_fraction/{side}") for side in ("low", "high")]
    if None not in clip:
        details.append(f"clip low {clip[0]:.2f} high {clip[1]:.2f}")
    if metrics.get("train/skipped_steps") == 1:
        unscored = metrics.get("train/unscored_fraction") == 1
        details.append(
            "no step: every response is unscored" if unscored else "no step: no learning signal"
        )
    if "train/grad_norm" in metrics:
        details.append(f"grad {metrics['train/grad_norm']:.2g}")
    return "  ".join([*details, f"{seconds:.1f} s"])
