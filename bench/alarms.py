"""Hit rate and false alarms of the monitor over finished runs: `python bench/alarms.py FOLDER...`.

A run went wrong if the accuracy of samples or of greedy responses was at two validations in a row
lower than at the start, by more than two standard errors of the measurements. Other runs are
healthy. Runs that went wrong although their reward rose are counted as gamed.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rlmods.lab.groups import find_runs
from rlmods.run.saved import SavedRun

METRICS = {"val/mean@4": 240, "val/accuracy": 60}
"""Number of responses of a validation of the scorecard, by metric."""
NUM_ROWED = 2
"""Validations in a row whose mean is compared with the first one."""
PREFIX = "alert/"


@dataclass(frozen=True)
class Outcome:
    """How a run went, and the alarms that rang."""

    kind: str
    """healthy, wrong or gamed."""
    alarms: frozenset[str]


def got_worse(values: Sequence[float], num_responses: int) -> bool:
    """Return whether a rate was lower than at the start."""
    first = values[0]
    means = [fmean(values[i : i + NUM_ROWED]) for i in range(1, len(values) - NUM_ROWED + 1)]
    lowest = min(means)
    variance = first * (1 - first) + lowest * (1 - lowest) / NUM_ROWED
    return lowest < first - 2 * math.sqrt(variance / num_responses)


def outcome(run: SavedRun) -> Outcome | None:
    """Return the outcome of a run, None for one with fewer than three validations."""
    values = {name: [value for _, value in run.series(name)] for name in METRICS}
    rewards = [value for _, value in run.series("train/reward")]
    if min(map(len, values.values())) <= NUM_ROWED:
        return None
    kind = "healthy"
    if any(got_worse(values[name], count) for name, count in METRICS.items()):
        kind = "gamed" if rewards[-1] > rewards[0] else "wrong"
    names = {name for row in run.metrics for name in row if name.startswith(PREFIX)}
    return Outcome(kind, frozenset(name.removeprefix(PREFIX) for name in names))


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson, 1927)."""
    z = 1.959964
    rate = count / total
    centre = rate + z * z / (2 * total)
    half = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    return (centre - half) / (1 + z * z / total), (centre + half) / (1 + z * z / total)


def rate(outcomes: Sequence[Outcome], alarm: str | None) -> str:
    """Return how often an alarm rang, any one for None, with its interval."""
    if not outcomes:
        return "no runs"
    count = sum(bool(x.alarms) if alarm is None else alarm in x.alarms for x in outcomes)
    low, high = wilson(count, len(outcomes))
    return f"{count} of {len(outcomes)} ({low:.0%} to {high:.0%})"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the rates as a table in Markdown."""
    kinds = {
        kind: [x for x in outcomes if x.kind == kind] for kind in ("healthy", "wrong", "gamed")
    }
    alarms = sorted({name for x in outcomes for name in x.alarms})
    lines = ["| alarm | healthy runs | runs that went wrong | gamed |", "|---|---|---|---|"]
    for alarm in (None, *alarms):
        rates = [rate(own, alarm) for own in kinds.values()]
        lines.append(f"| {alarm or 'any'} | {' | '.join(rates)} |")
    return "\n".join(lines)


def main(folders: Sequence[str]) -> None:
    """Print the table."""
    runs = find_runs([Path(folder) for folder in folders])
    finished = [outcome(run) for run in runs if run.exit == "finished"]
    print(table([x for x in finished if x is not None]))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(sys.argv[1:])
