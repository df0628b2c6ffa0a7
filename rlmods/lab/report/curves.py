"""Curves of metrics: mean and range over the seeds of a group, on at most a number of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlmods.lab.saved import Group, SavedRun, is_value

Column = NDArray[np.float64]
EMPTY: tuple[Column, Column] = (np.empty(0), np.empty(0))


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


def columns(run: SavedRun) -> dict[str, tuple[Column, Column]]:
    """Return iterations and values of each metric of a run."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in run.metrics:
        for name, value in row.items():
            if name != "iteration" and is_value(value):
                x, y = found.setdefault(name, ([], []))
                x.append(row["iteration"])
                y.append(value)
    return {
        name: (np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
        for name, (x, y) in found.items()
    }


def curves(group: Group, num_points: int) -> dict[str, Curve]:
    """Return the curve of each metric of a group. Where there are more iterations than points, each
    point is the mean of neighbours."""
    runs = [columns(run) for run in group.runs]
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _curve([run.get(name, EMPTY) for run in runs], num_points) for name in names}


def _curve(series: Sequence[tuple[Column, Column]], num_points: int) -> Curve:
    grid = np.unique(np.concatenate([x for x, _ in series]))
    # Neighbours of the grid share a bin; every bin has at least one iteration of the grid.
    bins = np.minimum(
        np.arange(len(grid)) * num_points // max(len(grid), num_points), num_points - 1
    )
    num_bins = int(bins.max()) + 1
    values = np.full((len(series), num_bins), np.nan)
    for row, (x, y) in zip(values, series, strict=True):
        own = bins[np.searchsorted(grid, x)]
        counts = np.bincount(own, minlength=num_bins)
        row[counts > 0] = (np.bincount(own, weights=y, minlength=num_bins) / np.maximum(counts, 1))[
            counts > 0
        ]
    middle = np.bincount(bins, weights=grid) / np.bincount(bins)
    mean, low, high = (
        _short(x) for x in (np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0))
    )
    seeds = [[None if math.isnan(x) else x for x in _short(row)] for row in values]
    return Curve(_short(middle), mean, low, high, seeds)


def _short(values: Column) -> list[float]:
    """Return numbers of five significant digits, which take less space in a file."""
    return [float(f"{x:.5g}") for x in values.tolist()]
