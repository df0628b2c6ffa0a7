"""Where the run stands: bars on a terminal, a line an iteration elsewhere."""

from __future__ import annotations

import time
from typing import Any

import rich
from lightning import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich import progress as bars
from rich.table import Column

from rlmods.callbacks.hooks import Metrics, Rows

NAMES = {
    "loss": "train/loss",
    "reward": "train/reward",
    "accuracy": "train/accuracy",
    "pairs": "train/pair_accuracy",
    "reward model": "train/reward_model/pair_accuracy",
    "kl": "train/kl_ref",
    "tokens": "train/response_tokens",
}
"""Metrics shown if they are there, by the name they are shown under."""

VALIDATION = ("val/accuracy", "val/mean@", "val/pass@", "val/pair_accuracy", "val/step_accuracy")


class Progress(Callback):
    """A bar for iterations, and one for responses while they are sampled."""

    def __init__(self, patience_s: float = 30.0) -> None:
        """
        Args:
            patience_s: seconds without a line after which sampling reports too, where there is no terminal to draw bars on.
        """
        self.patience_s = patience_s
        self._bars: bars.Progress | None = None
        self._validation = ""
        self._last = self._sampling_since = time.monotonic()

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        self._last = time.monotonic()
        if hasattr(getattr(learner, "rollout", None), "on_tokens"):
            learner.rollout.on_tokens = self.on_tokens
        console = rich.get_console()
        if console.is_terminal:
            whole, cut = Column(no_wrap=True), Column(no_wrap=False, overflow="ellipsis", max_width=200)  # a narrow terminal cuts facts
            self._bars = bars.Progress(
                bars.TextColumn("{task.description}", table_column=whole),
                bars.BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
                bars.MofNCompleteColumn(table_column=Column(no_wrap=True)),
                bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
                bars.TextColumn("{task.fields[facts]}", table_column=cut),
                console=console,
            )
            self._iterations = self._bars.add_task("iterations", total=trainer.max_iterations, completed=learner.iteration, facts="")  # type: ignore[attr-defined]
            self._sampling = self._bars.add_task("sampling", total=1, visible=False, facts="")
            self._bars.start()

    def on_tokens(self, done_rows: int, total_rows: int, tokens: int) -> None:
        """What a rollout engine calls while it samples."""
        now = time.monotonic()
        if self._bars is not None:
            if not self._bars.tasks[self._sampling].visible:
                self._bars.reset(self._sampling, visible=True)
                self._sampling_since = now
            rate = tokens / max(now - self._sampling_since, 1e-3)
            facts = f"{tokens} tokens, {rate:.0f}/s"
            visible = done_rows < total_rows
            self._bars.update(self._sampling, total=total_rows, completed=done_rows, facts=facts, visible=visible)
        elif now - self._last > self.patience_s:
            self._say(f"sampling {done_rows}/{total_rows} responses, {tokens} tokens")

    @rank_zero_only
    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        seconds = metrics.get("time/iteration_s", time.monotonic() - self._last)
        facts = describe(metrics, seconds)
        if self._bars is not None:
            self._bars.update(self._iterations, completed=learner.iteration, facts=facts + self._validation)
            self._bars.update(self._sampling, visible=False)
            self._last = time.monotonic()
        else:
            self._say(f"iteration {learner.iteration}/{trainer.max_iterations}  {facts}")  # type: ignore[attr-defined]

    @rank_zero_only
    def on_validation_metrics(self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows) -> None:
        shown = headline(metrics)
        if self._bars is not None:
            self._validation = f"  {shown}" if shown else ""
            self._last = time.monotonic()
        elif shown:
            self._say(f"iteration {learner.iteration}/{trainer.max_iterations}  {shown}")  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Trainer, learner: Any) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, learner: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        """The terminal gets its cursor back."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _say(self, line: str) -> None:
        print(line, flush=True)
        self._last = time.monotonic()


def headline(metrics: Metrics) -> str:
    """A validation in a few words: `val/accuracy 0.480  val/pass@4 0.720`."""
    shown = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items() if name.startswith(VALIDATION))
    if not shown and "val/reward" in metrics:  # of a reward that knows no right answers
        return f"val/reward {metrics['val/reward']:.3f}"
    return shown


def describe(metrics: Metrics, seconds: float) -> str:
    """An iteration in one line: `reward 0.43  accuracy 0.38  tokens 6.1  clip low 0.01 high 0.02  grad 0.8  1.2 s`."""
    facts = [f"{name} {metrics[key]:.{1 if name == 'tokens' else 3}f}" for name, key in NAMES.items() if key in metrics]
    clip = [metrics.get(f"train/clip_fraction/{side}") for side in ("low", "high")]
    if None not in clip:
        facts.append(f"clip low {clip[0]:.2f} high {clip[1]:.2f}")
    if metrics.get("train/skipped_steps") == 1:
        unscored = metrics.get("train/unscored_fraction") == 1
        facts.append("no step: every response is unscored" if unscored else "no step: nothing to learn from")
    if "train/grad_norm" in metrics:
        facts.append(f"grad {metrics['train/grad_norm']:.2g}")
    return "  ".join([*facts, f"{seconds:.1f} s"])
