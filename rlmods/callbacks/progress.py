"""Progress display: a line for each iteration and validation and, on a terminal, bars below."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import rich
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich import progress as bars
from rich.console import Console
from rich.table import Column
from rich.text import Text

from rlmods.callbacks.hooks import Metrics, Rows, as_learner
from rlmods.errors import counted
from rlmods.protocols import ReportsTokens

if TYPE_CHECKING:
    from rlmods.algo import Learner

METRICS = {
    "loss": ("train/loss", ".3f"),
    "reward": ("train/reward", ".3f"),
    "accuracy": ("train/accuracy", ".3f"),
    "pairs": ("train/pair_accuracy", ".3f"),
    "reward model": ("train/reward_model/pair_accuracy", ".3f"),
    "kl": ("train/kl_ref", ".3f"),
    "tokens": ("train/response_tokens", ".1f"),
    "clip low": ("train/clip_fraction/low", ".2f"),
    "clip high": ("train/clip_fraction/high", ".2f"),
    "grad": ("train/grad_norm", ".2g"),
}
"""Metrics shown if present and their format, by display name."""

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
FLAT_HALF = "train/flat_group_fraction/half"
FLAT_QUARTER = "train/flat_group_fraction/quarter"
MIN_SHOWN_S = 2.0
"""Seconds after which a phase is shown on a terminal."""


class Progress(Callback):
    """Print a line for each iteration and each validation. On a terminal, show bars below the
    lines: one for iterations, one for responses during sampling, and the time in any other phase
    that takes long. Elsewhere, print a line if a phase takes long."""

    def __init__(self, patience_s: float = 30.0) -> None:
        """
        Args:
            patience_s: without a terminal, seconds without output after which the current phase is
            printed.
        """
        self.patience_s = patience_s
        self._bars: Bars | None = None
        self._validation = ""
        self._last_output = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        learner = as_learner(pl_module)
        self._last_output = time.monotonic()
        if isinstance(learner.rollout, ReportsTokens):
            learner.rollout.on_tokens = self.on_tokens
        console = rich.get_console()
        if console.is_terminal:
            self._bars = Bars(console, learner.iteration, learner.max_iterations)
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(learner,), name="progress", daemon=True
        )
        self._thread.start()

    @rank_zero_only
    def on_preflight(self, trainer: Trainer, learner: Learner, line: str) -> None:
        self._print(line)

    def on_tokens(self, done_rows: int, total_rows: int, tokens: int) -> None:
        """Update the sampling display; called by the rollout engine."""
        if self._bars is not None:
            self._bars.sampled(done_rows, total_rows, tokens)
        elif time.monotonic() - self._last_output > self.patience_s:
            self._print(f"sampling {done_rows}/{total_rows} responses, {counted(tokens, 'token')}")

    @rank_zero_only
    def on_iteration_end(self, trainer: Trainer, learner: Learner, metrics: Metrics) -> None:
        details = format_iteration(metrics)
        if self._bars is not None:
            self._bars.iteration_ended(learner.iteration, details)
        self._print(f"{_position(learner)}  {details}")
        if learner.iteration == 1 and FLAT_HALF in metrics:
            self._print(format_signal(metrics, learner.batch.samples))
        self._print_validation(learner)

    @rank_zero_only
    def on_validation_metrics(
        self, trainer: Trainer, learner: Learner, metrics: Metrics, rows: Rows
    ) -> None:
        """Print the validation below the iteration that it follows."""
        self._validation = format_validation(metrics)
        self._last_output = time.monotonic()
        if learner.iteration == 0:
            self._print_validation(learner)

    def _print_validation(self, learner: Learner) -> None:
        if self._validation:
            self._print(f"{_position(learner)}  {self._validation}")
        self._validation = ""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _watch(self, learner: Learner) -> None:
        """Loop of the thread: the main thread may be in a reward or in a microbatch for long."""
        while not self._stop.wait(min(1.0, self.patience_s / 5)):
            self.show_phase(learner)

    def show_phase(self, learner: Learner) -> None:
        """Show the current phase of the iteration if it takes long."""
        now = time.monotonic()
        name = learner.timer.phase
        seconds = now - learner.timer.since
        details = f"{seconds:.0f} s"
        if name == "update":
            details += f", {counted(learner.timer.progress, 'microbatch')}"
        shown = PHASES.get(name, name)
        if self._bars is not None:
            self._bars.show_phase(shown, details, name in PHASES and seconds >= MIN_SHOWN_S)
        elif now - self._last_output > self.patience_s:
            current = learner.iteration + (name not in AFTER)
            self._print(f"iteration {current}: {shown}, {details}")

    def _close(self) -> None:
        """Stop the thread, and the bars, which restores the cursor."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._bars is not None:
            self._bars.progress.stop()  # restores the cursor
            self._bars = None

    def _print(self, line: str) -> None:
        """Print a line, on a terminal above the bars and not wider than it."""
        if self._bars is not None:
            rich.get_console().print(Text(line), no_wrap=True, overflow="ellipsis")
        else:
            print(line, flush=True)
        self._last_output = time.monotonic()


def _position(learner: Learner) -> str:
    """Return the beginning of a line, of equal width for all iterations."""
    width = len(str(learner.max_iterations))
    return f"iteration {learner.iteration:>{width}}/{learner.max_iterations}"


class Bars:
    """Bars on a terminal: iterations, responses while they are sampled, and another phase. They
    disappear when training ends."""

    def __init__(self, console: Console, iteration: int, num_iterations: int) -> None:
        # the details are cut at the width that the other columns leave
        details = Column(max_width=200, no_wrap=True, overflow="ellipsis")
        self.progress = bars.Progress(
            bars.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            bars.BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
            bars.MofNCompleteColumn(table_column=Column(no_wrap=True)),
            bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            bars.TextColumn("{task.fields[details]}", markup=False, table_column=details),
            console=console,
            transient=True,
        )
        add = self.progress.add_task
        self._iterations = add("iterations", total=num_iterations, completed=iteration, details="")
        self._sampling = add("sampling", total=1, visible=False, details="")
        self._phases = add("", total=None, visible=False, details="")
        self._sampling_since = time.monotonic()
        self.progress.start()

    def sampled(self, done_rows: int, total_rows: int, tokens: int) -> None:
        """Update the bar of responses; it disappears with the last one."""
        now = time.monotonic()
        if not self.progress.tasks[self._sampling].visible:
            self.progress.reset(self._sampling, visible=True)
            self._sampling_since = now
        rate = tokens / max(now - self._sampling_since, 1e-3)
        self.progress.update(
            self._sampling,
            total=total_rows,
            completed=done_rows,
            details=f"{tokens} tokens, {rate:.0f}/s",
            visible=done_rows < total_rows,
        )

    def iteration_ended(self, iteration: int, details: str) -> None:
        """Update the bar of iterations."""
        self.progress.update(self._iterations, completed=iteration, details=details)
        self.progress.update(self._sampling, visible=False)

    def show_phase(self, name: str, details: str, is_long: bool) -> None:
        """Show a phase that takes long, unless responses are sampled."""
        visible = is_long and not self.progress.tasks[self._sampling].visible
        self.progress.update(self._phases, description=name, details=details, visible=visible)


def format_validation(metrics: Metrics) -> str:
    """Format the main validation metrics: `val/accuracy 0.480  val/pass@4 0.720`."""
    shown = []
    for name, value in metrics.items():
        if re.match(VALIDATION_METRICS, name):
            shown.append(f"{name} {value:.3f}")
    if not shown and "val/reward" in metrics:  # for rewards without gold answers
        return f"val/reward {metrics['val/reward']:.3f}"
    return "  ".join(shown)


def format_iteration(metrics: Metrics) -> str:
    """Format an iteration in one line: `reward 0.43  accuracy 0.38  tokens 6.1  clip low 0.01  clip
    high 0.02  grad 0.8  1.2 s`."""
    details = []
    for name, (key, form) in METRICS.items():
        if key in metrics:
            details.append(f"{name} {metrics[key]:{form}}")
    if metrics.get("train/skipped_steps") == 1:
        unscored = metrics.get("train/unscored_fraction") == 1
        reason = "every response is unscored" if unscored else "no learning signal"
        details.append(f"no step: {reason}")
    return "  ".join([*details, f"{metrics['time/iteration_s']:.1f} s"])


def format_signal(metrics: Metrics, num_samples: int) -> str:
    """Return how many groups carry a signal, and how many would with twice the samples, in a line.

    The shares s(m) of groups whose m responses are neither all correct nor all wrong are exact up
    to m = G. Each doubling is taken to add less, or more, than the one before by the same factor:
    s(2 G) = s(G) + (s(G) - s(G/2))^2 / (s(G/2) - s(G/4))."""
    whole = 1 - metrics["train/flat_group_fraction"]
    half = 1 - metrics[FLAT_HALF]
    quarter = 1 - metrics.get(FLAT_QUARTER, 1.0)
    line = f"signal: {whole:.0%} of the groups have correct and wrong responses"
    if half <= quarter or whole > 0.95 or FLAT_QUARTER not in metrics:
        return line
    doubled = min(1.0, whole + (whole - half) ** 2 / (half - quarter))
    more = f"about {doubled:.0%} with batch.samples={2 * num_samples}"
    return f"{line}, {half:.0%} with half the samples, {more}"
