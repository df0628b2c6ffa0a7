"""Scores of runs on the tasks of the wind tunnel, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlmods.lab.statistics import ALPHA, Interval, adjusted_tests, mean_interval, paired
from rlmods.lab.tunnel.tasks import Task
from rlmods.run.saved import SavedRun, is_value

TOKENS = "perf/sampled_tokens"
Curve = list[tuple[float, float]]
"""Number of tokens sampled so far, and value of the metric."""


def curve(run: SavedRun, metric: str) -> Curve:
    """Return the values of a metric over the tokens that the run has sampled until then."""
    points: Curve = []
    num_tokens = 0.0
    for row in run.metrics:
        sampled = row.get(TOKENS)
        if is_value(sampled):
            num_tokens += sampled
        value = row.get(metric)
        if is_value(value):
            points.append((num_tokens, float(value)))
    return points


def within(points: Curve, max_tokens: float) -> Curve:
    """Return the part of a curve up to a number of tokens, with its height there. The iteration
    that spends a budget samples more, and more in algorithms that draw prompts again."""
    for i in range(1, len(points)):
        x, y = points[i]
        if x > max_tokens:
            previous_x, previous_y = points[i - 1]
            share = (max_tokens - previous_x) / (x - previous_x)
            return [*points[:i], (max_tokens, previous_y + share * (y - previous_y))]
    return points


def mean_over_tokens(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean height of a curve: the area under its lines, divided by its width. None for a
    curve without width."""
    width = points[-1][0] - points[0][0] if points else 0.0
    if width <= 0:
        return None
    x, y = np.transpose(points)
    return float(np.trapezoid(y, x)) / width


def score(run: SavedRun, task: Task) -> float | None:
    """Return the score of a run: (m - start) / (best - start), m being the mean of the task's
    metric over the tokens of the run's budget. It is 0 for a policy that stays as it was, 1 for one
    that is perfect at once, and below 0 for one that becomes worse. None for a run with one
    validation."""
    max_tokens = run.config["callbacks"]["budget"]["max_tokens"]
    points = curve(run, task.metric)
    mean = mean_over_tokens(points if max_tokens is None else within(points, max_tokens))
    return None if mean is None else (mean - task.start) / (task.best - task.start)


Scores = Mapping[int, float]
"""Score by seed."""


@dataclass(frozen=True)
class Cell:
    """Score of an entrant on a task."""

    scores: Scores
    mean: Interval | None
    """None if no run has a score."""
    difference: Interval | None = None
    """Difference from the baseline, paired by seed; None for the baseline itself, and without a
    common seed."""
    p_value: float | None = None
    """Of the difference, adjusted for the number of comparisons (Holm); None if the seeds show no
    spread."""
    reason: str = ""
    """Why there are no scores."""

    @property
    def better(self) -> bool | None:
        """True if the entrant is better than the baseline, False if it is worse, None if the seeds
        do not decide it."""
        if self.difference is None or self.p_value is None or self.p_value >= ALPHA:
            return None
        return self.difference.mean > 0


Card = dict[tuple[str, str], Cell]
"""Cell by entrant and task."""


def scorecard(
    scores: Mapping[tuple[str, str], Scores], reasons: Mapping[tuple[str, str], str], baseline: str
) -> Card:
    """Return the cells of a scorecard.

    Args:
        scores: by entrant and task.
        reasons: why there are no scores, by entrant and task.
        baseline: entrant that the others are compared with.
    """
    differences = {}
    for (entrant, task), own in scores.items():
        common = paired(scores.get((baseline, task), {}), own)
        if entrant != baseline and common:
            differences[entrant, task] = common
    tested = dict(zip(differences, adjusted_tests(list(differences.values())), strict=True))
    card: Card = {}
    for key, own in scores.items():
        mean = mean_interval(list(own.values())) if own else None
        difference, p_value = tested.get(key, (None, None))
        card[key] = Cell(own, mean, difference, p_value, reasons.get(key, ""))
    return card
