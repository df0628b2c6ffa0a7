"""What a scorecard keeps of a run, and the reference results of the shipped algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rlmods.lab.tunnel.scores import TOKENS, Curve, curve, score
from rlmods.lab.tunnel.tasks import Task
from rlmods.run.files import atomic_write, dumps, read_rows
from rlmods.run.saved import SavedRun

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


@dataclass(frozen=True)
class Result:
    """A finished run."""

    entrant: str
    task: str
    seed: int
    score: float | None
    """None for a run with one validation."""
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
    count = min(NUM_POINTS, len(points))
    means: Curve = []
    for i in range(count):
        own = points[i * len(points) // count : (i + 1) * len(points) // count]
        x = sum(point[0] for point in own) / len(own)
        y = sum(point[1] for point in own) / len(own)
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
