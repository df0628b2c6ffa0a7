"""Results of runs on the tasks of the wind tunnel, their scores, how sure they are, and the
reference results of the shipped algorithms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from rlmods.lab.statistics import ALPHA, Interval, adjusted_tests, mean_interval, paired
from rlmods.lab.tunnel.tasks import Task
from rlmods.run.files import atomic_write, dumps, read_rows
from rlmods.run.saved import SavedRun, is_value

TOKENS = "perf/sampled_tokens"
REFERENCE = Path(__file__).with_name("reference.jsonl")
MEASURED = (
    "train/entropy",
    "train/response_tokens",
    "train/clip_fraction/high",
    "train/grad_norm",
    "val/pass@4",
)
"""Metrics that are drawn beside the metric of the task."""
NUM_POINTS = 12
"""Largest number of points of a curve that is kept."""
DIGITS = 4
"""Significant digits that are kept."""
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
    kept = [point for point in points if point[0] <= max_tokens]
    if 0 < len(kept) < len(points):
        x, y = np.transpose(points)
        kept.append((max_tokens, float(np.interp(max_tokens, x, y))))
    return kept


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
    that is perfect at once, and below 0 for one that becomes worse. None if the last
    validation was before the end of the budget."""
    max_tokens = run.config["callbacks"]["budget"]["max_tokens"]
    points = curve(run, task.metric)
    if max_tokens is not None:
        if not points or points[-1][0] < max_tokens:
            return None
        points = within(points, max_tokens)
    mean = mean_over_tokens(points)
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


@dataclass(frozen=True)
class Result:
    """A finished run."""

    entrant: str
    task: str
    seed: int
    score: float | None
    """None if the last validation was before the end of the budget."""
    curves: Mapping[str, Curve]
    """Values over sampled tokens, by metric."""
    minutes: float
    """Time of its iterations."""
    num_tokens: float
    """Number of sampled tokens."""
    settings: str = ""
    """Digest of the shipped recipe that it was trained with; "" for other settings."""


def thinned(points: Curve) -> Curve:
    """Return a curve of at most `NUM_POINTS` points, means of neighbours."""
    means: Curve = []
    for part in np.array_split(np.asarray(points), min(NUM_POINTS, len(points))):
        x, y = part.mean(0).tolist()
        means.append((round(x), float(f"{y:.{DIGITS}g}")))
    return means


def read_result(run: SavedRun, entrant: str, task: Task, seed: int, settings: str) -> Result:
    """Return the result of a finished run."""
    found = {name: curve(run, name) for name in (task.metric, *MEASURED)}
    own_score = score(run, task)
    return Result(
        entrant=entrant,
        task=task.name,
        seed=seed,
        score=None if own_score is None else round(own_score, DIGITS),
        curves={name: thinned(points) for name, points in found.items() if points},
        minutes=round(sum(row.get("time/iteration_s", 0.0) for row in run.metrics) / 60, 2),
        num_tokens=sum(row.get(TOKENS, 0.0) for row in run.metrics),
        settings=settings,
    )


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write results, one a line."""
    rows = [dumps(asdict(result)) for result in results]
    atomic_write(path, "".join(f"{row}\n" for row in rows))


def read_results(path: Path) -> list[Result]:
    """Return results that were written, [] if there is no file."""
    return [Result(**row) for row in read_rows(path)]


def reference_results(
    digest: Callable[[str, str], str], path: Path = REFERENCE
) -> dict[tuple[str, str, int], Result]:
    """Return the reference results by entrant, task and seed, without results of other settings
    than the present ones.

    Args:
        digest: returns the digest of the present settings of an entrant and a task.
    """
    present = cache(digest)
    found = {}
    for result in read_results(path):
        if result.settings and result.settings == present(result.entrant, result.task):
            found[result.entrant, result.task, result.seed] = result
    return found
