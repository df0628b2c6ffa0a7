"""Whether the reward is being gamed, said in words while it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich
from lightning import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.callbacks.samples import panel
from rlmods.callbacks.suspicion import Figures, Suspicion, Thresholds, average, deviation, read, suspicions
from rlmods.run import atomic_write, dumps, writing
from rlmods.run.journal import read_rows
from rlmods.types import UserError


class HackingMonitor(Callback):
    """Compares the latest iterations of an online run with its first, and with those that were best by the accuracy (or `val/gold_reward`).

    A sign is told once, and again only after it was gone: a line and the responses that show it best on the terminal, a row
    `hacking/<kind>` in metrics.jsonl, and all of it in `path`. Kinds: `length` (pays for length), `gap` (the reward rises while what it
    stands for falls), `frontier` (distance from the reference that buys nothing), `diversity`, `repetition`, `truncation`,
    `collapse/<term>`, `graders/<term>/<what>`. It reads the responses of the first rank, and metrics of all.
    """

    def __init__(
        self,
        path: str | Path,
        window: int = 5,
        shown: int = 2,
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
            path: JSON Lines file of suspicions.
            window: iterations that are averaged.
            shown: responses printed with a suspicion.
            stop: end the run at the first one.
            correlation: of reward and length, among answers that are equally correct, from which on the reward pays for length;
            growth: with lengths that have grown by this share.
            drop: of the accuracy, or the gold reward, from its best.
            kl: nats per token from the reference, from which on distance has to pay.
            unique: distinct responses to a prompt, as a share of what they were, down to which they are different enough.
            repetition: rise of the share of 4-grams that repeat within a response.
            truncated: rise of the share of responses that are cut off.
            ungraded: share of responses whose grader timed out or failed.

        Raises:
            UserError: a negative threshold, a window below 1.
        """
        self.limits = Thresholds(correlation, growth, drop, kl, unique, repetition, truncated, ungraded)
        for name, value in asdict(self.limits).items():
            if not value >= 0:
                raise UserError(f"callbacks.hacking.{name}={value}: must be 0 or more")
        if window < 1:
            raise UserError(f"callbacks.hacking.window={window}: must be at least 1")
        self.path, self.window, self.shown, self.stop = Path(path), window, shown, stop
        self.first: list[Figures] = []
        self.latest: list[Figures] = []
        self.best: Figures = {}
        self.gold: float | None = None
        self.told: set[str] = set()
        self.course: list[float] = []
        """The accuracy, or the gold reward, of every iteration."""

    def on_validation_metrics(self, trainer: Trainer, learner: Any, metrics: Metrics, rows: Rows) -> None:
        self.gold = metrics.get("val/gold_reward", self.gold)

    def on_iteration_end(self, trainer: Trainer, learner: Any, metrics: Metrics) -> None:
        alarm = trainer.is_global_zero and bool(learner.samples) and self.look(learner, metrics)
        if self.stop:
            trainer.should_stop |= trainer.strategy.reduce_boolean_decision(alarm, all=False)

    def look(self, learner: Any, metrics: Metrics) -> bool:
        """Take in one iteration; whether there is a sign that was not there before."""
        reading = read(learner.samples, metrics) | ({} if self.gold is None else {"gold": self.gold})
        if len(self.first) < self.window:
            self.first.append(reading)
        self.latest = [*self.latest, reading][-self.window :]
        now, name = average(self.latest), "accuracy" if self.gold is None else "gold"
        self.course += [reading[name]] if name in reading else []
        now["noise"] = 4 * (2 / (self.window if self.gold is None else 1)) ** 0.5 * deviation(self.course)
        if name in now and now[name] >= self.best.get(name, float("-inf")) and len(self.latest) == self.window:
            self.best = now
        if len(self.first) < self.window or learner.iteration < 2 * self.window:
            return False
        found = suspicions(average(self.first), now, self.best or now, self.limits)
        fresh = [sign for sign in found if sign.kind not in self.told]
        self.told = {sign.kind for sign in found}
        for sign in fresh:
            self.tell(learner, sign)
        return bool(fresh)

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, learner: Any) -> None:
        """What was found beyond the iteration that training starts at did not happen."""
        rows = read_rows(self.path)
        if len(past := [row for row in rows if row["iteration"] <= learner.iteration]) < len(rows):
            with writing(self.path):
                atomic_write(self.path, "".join(f"{dumps(row)}\n" for row in past))

    def tell(self, learner: Any, sign: Suspicion) -> None:
        rows = sorted(learner.samples, key=sign.rank, reverse=True)[: self.shown]
        title = f"iteration {learner.iteration}: reward hacking?"
        console = rich.get_console()
        console.print(f"{title} {sign.words}", markup=False, highlight=False)
        for row in rows:
            console.print(panel(row, f"iteration {learner.iteration}, {sign.kind}"))
        learner.log_row({f"hacking/{sign.kind}": sign.figure})
        record = {"iteration": learner.iteration, "kind": sign.kind, "words": sign.words, "figure": sign.figure, "rows": rows}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(dumps(record) + "\n")

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "latest": self.latest,
            "best": dict(self.best),
            "gold": self.gold,
            "told": sorted(self.told),
            "course": self.course,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.first, self.latest, self.best = list(state_dict["first"]), list(state_dict["latest"]), state_dict["best"]
        self.gold, self.told, self.course = state_dict["gold"], set(state_dict["told"]), list(state_dict["course"])
