"""Curves of metrics: mean and range over the seeds of a group, on at most a number of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlmods.lab.groups import Group
from rlmods.run.saved import SavedRun, is_value

Column = NDArray[np.float64]
Points = list[tuple[int, float]]
"""Iteration and value."""


@dataclass(frozen=True)
class Curve:
    """A metric of a group."""

    iterations: Sequence[float]
    mean: Sequence[float]
    """Mean over the seeds that have a value there."""
    low: Sequence[float]
    """Smallest value of a seed."""
    high: Sequence[float]
    """Largest value of a seed."""
    seeds: Sequence[Sequence[float | None]]
    """Values of each run of the group, None where it has none."""


def columns(run: SavedRun) -> dict[str, Points]:
    """Return iterations and values of each metric of a run."""
    found: dict[str, Points] = {}
    for row in run.metrics:
        for name, value in row.items():
            if name != "iteration" and is_value(value):
                found.setdefault(name, []).append((row["iteration"], value))
    return found


def curves(group: Group, num_points: int) -> dict[str, Curve]:
    """Return the curve of each metric of a group. Where there are more iterations than points, each
    point is the mean of neighbours."""
    runs = [columns(run) for run in group.runs]
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        found[name] = _curve([run.get(name, []) for run in runs], num_points)
    return found


def _curve(series: Sequence[Points], num_points: int) -> Curve:
    grid = np.unique([iteration for points in series for iteration, _ in points])
    # Neighbours of the grid share a bin; every bin has at least one iteration of the grid.
    bins = np.arange(len(grid)) * num_points // max(len(grid), num_points)
    num_bins = int(bins.max()) + 1
    values = np.full((len(series), num_bins), np.nan)
    for row, points in zip(values, series, strict=True):
        if points:
            x, y = np.asarray(points, dtype=np.float64).T
            own = bins[np.searchsorted(grid, x)]
            counts = np.bincount(own, minlength=num_bins)
            sums = np.bincount(own, weights=y, minlength=num_bins)
            row[counts > 0] = sums[counts > 0] / counts[counts > 0]
    return Curve(
        iterations=_short(np.bincount(bins, weights=grid) / np.bincount(bins)),
        mean=_short(np.nanmean(values, 0)),
        low=_short(np.nanmin(values, 0)),
        high=_short(np.nanmax(values, 0)),
        seeds=[_with_gaps(row) for row in values],
    )


def _short(values: Column) -> list[float]:
    """Return numbers of five significant digits, which take less space in a file."""
    return [float(f"{x:.5g}") for x in values.tolist()]


def _with_gaps(values: Column) -> list[float | None]:
    """Return numbers of five significant digits, None for NaN."""
    return [None if math.isnan(x) else x for x in _short(values)]
