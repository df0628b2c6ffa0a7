"""Monitor of reward hacking during a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich
from lightning import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only

from rlmods.callbacks.alerts import (
    Alert,
    Stats,
    Thresholds,
    average,
    compute_stats,
    find_alerts,
    noise_std,
)
from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.callbacks.samples import panel
from rlmods.errors import UserError
from rlmods.run import dumps, wrap_write_errors
from rlmods.run.jsonl import truncate_rows


class HackingMonitor(Callback):
    """Warn of reward hacking: compare the latest iterations of a run with its first and with its
    best ones (accuracy or `val/gold_reward`).

    An alert is reported once, and again only after it has cleared: a line and example responses on
    the terminal, a row `hacking/<kind>` in metrics.jsonl, and a row in `path`. Kinds: `length` (the
    reward grows with length), `gap` (the reward rises while the accuracy falls), `frontier` (the KL
    to the reference grows while the accuracy falls), `diversity`, `repetition`, `truncation`,
    `collapse/<term>`, `graders/<term>/<count>`. Uses the responses of the first rank, and metrics
    of all."""

    def __init__(
        self,
        path: str | Path,
        window: int = 5,
        shown: int = 2,
        rows: int = 16,
        stop: bool = False,
        correlation: float = 0.6,
        growth: float = 0.25,
        drop: float = 0.05,
        kl: float = 0.05,
        unique: float = 0.5,
        repetition: float = 0.2,
        truncated: float = 0.3,
        ungraded: float = 0.05,
    ) -> None:
        """
        Args:
            path: JSON Lines file of alerts.
            window: number of iterations to average.
            shown: number of responses printed with an alert.
            rows: number of responses written with an alert. `python -m rlmods.label --offenders`
            makes preferences of them.
            stop: end the run at the first alert.
            correlation: minimum correlation of reward and length, among equally correct answers,
            for `length`;
            growth: with at least this relative growth of the mean length.
            drop: minimum drop of the accuracy, or the gold reward, from its best, for `gap` and
            `frontier`.
            kl: minimum KL to the reference for `frontier`, nats per token.
            unique: fraction of distinct responses to a prompt, relative to the first iterations, at
            or below which `diversity` triggers.
            repetition: rise of the fraction of repeated 4-grams within a response that triggers
            `repetition`.
            truncated: rise of the fraction of truncated responses that triggers `truncation`.
            ungraded: fraction of responses whose grader timed out or failed that triggers
            `graders`.

        Raises:
            UserError: a negative threshold, a window below 1.
        """
        self.limits = Thresholds(
            correlation, growth, drop, kl, unique, repetition, truncated, ungraded
        )
        for name, value in asdict(self.limits).items():
            if not value >= 0:
                raise UserError(f"callbacks.hacking.{name}={value}: must be 0 or more")
        if window < 1:
            raise UserError(f"callbacks.hacking.window={window}: must be at least 1")
        self.path, self.window, self.shown, self.rows, self.stop = (
            Path(path),
            window,
            shown,
            rows,
            stop,
        )
        self.first: list[Stats] = []
        self.latest: list[Stats] = []
        self.best: Stats = {}
        self.gold_reward: float | None = None
        self.active: set[str] = set()
        """Kinds of the current alerts, already reported."""
        self.history: list[float] = []
        """Accuracy, or gold reward, of every iteration."""

    def on_validation_metrics(
        self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows
    ) -> None:
        self.gold_reward = metrics.get("val/gold_reward", self.gold_reward)

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        has_alert = (
            trainer.is_global_zero and bool(learner.samples) and self.check(learner, metrics)
        )
        if self.stop:
            trainer.should_stop |= trainer.strategy.reduce_boolean_decision(has_alert, all=False)

    def check(self, learner: Any, metrics: Metrics) -> bool:
        """Add one iteration and report new alerts; return True if there are any."""
        stats = compute_stats(learner.samples, metrics) | (
            {} if self.gold_reward is None else {"gold": self.gold_reward}
        )
        if len(self.first) < self.window:
            self.first.append(stats)
        self.latest = [*self.latest, stats][-self.window :]
        now, name = average(self.latest), "accuracy" if self.gold_reward is None else "gold"
        self.history += [stats[name]] if name in stats else []
        now["noise"] = (
            4
            * (2 / (self.window if self.gold_reward is None else 1)) ** 0.5
            * noise_std(self.history)
        )
        if (
            name in now
            and now[name] >= self.best.get(name, float("-inf"))
            and len(self.latest) == self.window
        ):
            self.best = now
        if len(self.first) < self.window or learner.iteration < 2 * self.window:
            return False
        alerts = find_alerts(average(self.first), now, self.best or now, self.limits)
        new = [alert for alert in alerts if alert.kind not in self.active]
        self.active = {alert.kind for alert in alerts}
        for alert in new:
            self.report(learner, alert)
        return bool(new)

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        """Delete alerts of iterations after the one that training resumes from: they are
        repeated."""
        truncate_rows(self.path, learner.iteration)

    def report(self, learner: Any, alert: Alert) -> None:
        """Print, log and write an alert."""
        rows = sorted(learner.samples, key=alert.sort_key, reverse=True)
        title = f"iteration {learner.iteration}: reward hacking?"
        console = rich.get_console()
        console.print(f"{title} {alert.message}", markup=False, highlight=False)
        for row in rows[: self.shown]:
            console.print(panel(row, f"iteration {learner.iteration}, {alert.kind}"))
        learner.log_row({f"hacking/{alert.kind}": alert.value})
        offenders = rows[: self.rows]
        record = {
            "iteration": learner.iteration,
            "kind": alert.kind,
            "words": alert.message,
            "figure": alert.value,
            "rows": offenders,
        }
        with wrap_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(dumps(record) + "\n")
        for extension in getattr(learner, "extensions", ()):
            extension.on_alert(offenders)

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "latest": self.latest,
            "best": dict(self.best),
            "gold": self.gold_reward,
            "told": sorted(self.active),
            "course": self.history,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.first, self.latest, self.best = (
            list(state_dict["first"]),
            list(state_dict["latest"]),
            state_dict["best"],
        )
        self.gold_reward, self.active, self.history = (
            state_dict["gold"],
            set(state_dict["told"]),
            list(state_dict["course"]),
        )
