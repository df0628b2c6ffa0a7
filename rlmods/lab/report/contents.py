"""What a report shows, as plain data: groups, curves, responses and runs."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlmods.errors import counted
from rlmods.lab.compare import (
    Comparison,
    comparable,
    higher_is_better,
    with_bounds,
)
from rlmods.lab.groups import Group, settings
from rlmods.lab.report.samples import samples
from rlmods.lab.statistics import mean_interval
from rlmods.run.saved import SavedRun, is_value

NUM_POINTS = 200
"""Points of a curve."""
MAX_VALUES = 800_000
"""Values of all curves together; with more runs and metrics, curves have fewer points."""
SAMPLE_CHARACTERS = 6_000_000
"""Size of the samples of all runs."""
MAX_ALARMS = 20
"""Alarms of a run that are shown."""
MAX_COSTS = 4
"""Members whose time is named in the answer. The table has the times of all members."""
ALERT_PREFIX = "alert/"
"""Beginning of the metrics that the monitor logs."""
Column = NDArray[np.float64]
Points = list[tuple[int, float]]
"""Iteration and value."""


def contents(
    groups: Sequence[Group],
    metric: str,
    last: int,
    baseline: str | None,
    num_files: int = 5,
    num_prompts: int = 8,
) -> dict[str, Any]:
    """Return everything that the page shows.

    Raises:
        UserError: no such baseline.
    """
    comparisons = comparable(groups, metric, last, baseline)
    compared = {x.name: x for x in comparisons}
    num_runs = sum(len(group.runs) for group in groups)
    max_characters = SAMPLE_CHARACTERS // num_runs
    runs: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    for i, group in enumerate(groups):
        for run in group.runs:
            shown = samples(run, num_files, num_prompts, max_characters)
            responses += [found | {"run": len(runs)} for found in shown]
            runs.append(_run(run, i))
    parts = varying([group.runs[0].parts for group in groups])
    differing = varying([settings(group.runs[0]) for group in groups])
    constants, curves = _curves(groups, metric)
    return {
        "answer": answer(groups, comparisons, metric, last),
        "metric": metric,
        "higher_is_better": higher_is_better(metric),
        "last": last,
        "baseline": next((x.baseline for x in compared.values()), None),
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "rlmods.report", *sys.argv[1:]]),
        "groups": [_group(x, x.results(metric, last), compared.get(x.name)) for x in groups],
        "parts": parts,
        "settings": {key: values for key, values in differing.items() if key not in parts},
        "runs": runs,
        "constants": constants,
        "curves": curves,
        "samples": responses,
    }


def varying(columns: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values by key, one of each mapping, of the keys whose values are not all equal; ""
    where a mapping lacks it. A mapping of one key, the name of a converted run, is not compared."""
    rows = {}
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [str(column.get(key, ""))[:200] for column in columns]
        compared = {value for value, column in zip(values, columns, strict=True) if len(column) > 1}
        if len(compared) > 1:
            rows[key] = values
    return rows


def answer(
    groups: Sequence[Group], comparisons: Sequence[Comparison], metric: str, last: int
) -> list[str]:
    """Return in sentences which member is best, how sure that is, and what the runs cost."""
    means = {}
    for group in groups:
        results = list(group.results(metric, last).values())
        if results:
            means[group.name] = mean_interval(results)
    if not means:
        other = "Choose another with --metric, such as val/reward."
        return [f"No run has a value of {metric}. {other}", _cost(groups)]
    choose = max if higher_is_better(metric) else min
    best = choose(means, key=lambda name: means[name].mean)
    equal = [name for name in means if means[name].mean == means[best].mean]
    found = f"{with_bounds(means[best], '.4g')} ({counted(means[best].num_values, 'seed')})."
    if len(means) == 1:
        return [f"{metric}: {found}", _cost(groups)]
    extreme = "highest" if choose is max else "lowest"
    if len(equal) > 1:
        share = f"{len(equal)} of {len(means)} members share the {extreme} {metric}"
        return [f"{share}: {means[best].mean:.4g}.", _cost(groups)]
    sentences = [f"{best} has the {extreme} {metric}: {found}"]
    if comparisons:
        sentences.append(_certainty(best, comparisons))
    return [*sentences, _cost(groups)]


def _certainty(best: str, comparisons: Sequence[Comparison]) -> str:
    """Return how sure it is that a member is better than the baseline, or the baseline than the
    others."""
    baseline = comparisons[0].baseline
    if best == baseline:
        worse = sum(x.better is False for x in comparisons)
        if len(comparisons) == 1:
            return f"It is the baseline. The other one is {'' if worse else 'not '}decidedly worse."
        return f"It is the baseline. Decidedly worse: {worse} of {len(comparisons)} others."
    own = [x for x in comparisons if x.name == best]
    if not own:
        return f"It has no seed in common with the baseline, {baseline}."
    difference = with_bounds(own[0].difference, "+.4g")
    if own[0].p_value is not None:
        difference += f", p = {own[0].p_value:.2g}"
    if own[0].better:
        return f"It is better than the baseline, {baseline}: {difference}."
    advice = "more seeds would tell, such as seed=1,2,3,4,5"
    return f"Not decided against the baseline, {baseline}: {difference}; {advice}."


def _cost(groups: Sequence[Group]) -> str:
    """Return the time that all runs took, and the time of a run of each member if there are few."""
    runs = [run for group in groups for run in group.runs]
    total = f"{counted(len(runs), 'run')}: {duration(sum(map(_seconds, runs)))}"
    if not 1 < len(groups) <= MAX_COSTS:
        return f"{total}."
    each = []
    for group in groups:
        mean = sum(map(_seconds, group.runs)) / len(group.runs)
        each.append(f"{group.name} {duration(mean)}")
    return f"{total}; a run of {', '.join(each)}."


def _seconds(run: SavedRun) -> float:
    return float(run.metrics[-1].get("wall_s") or 0) if run.metrics else 0.0


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _curves(
    groups: Sequence[Group], metric: str
) -> tuple[dict[str, float], dict[str, dict[int, dict[str, Any]]]]:
    """Return the metrics that have one value in all runs, with this value, and the curves of the
    others, and of `metric`, by the number of the group."""
    num_columns = 1
    for group in groups:
        names = set().union(*group.runs[0].metrics)
        num_columns += (len(group.runs) + 4) * len(names)
    num_points = max(20, min(NUM_POINTS, MAX_VALUES // num_columns))
    found: dict[str, dict[int, dict[str, Any]]] = {}
    different: dict[str, set[float]] = {}
    for i, group in enumerate(groups):
        runs = list(map(columns, group.runs))
        for name in dict.fromkeys(name for run in runs for name in run):
            series = [run.get(name, []) for run in runs]
            found.setdefault(name, {})[i] = curve(series, num_points)
            for points in series:
                different.setdefault(name, set()).update(value for _, value in points)
    constants = {}
    for name, values in sorted(different.items()):
        if len(values) == 1 and name != metric:
            constants[name] = values.pop()
            del found[name]
    return constants, dict(sorted(found.items()))


def columns(run: SavedRun) -> dict[str, Points]:
    """Return iterations and values of each metric of a run."""
    found: dict[str, Points] = {}
    for row in run.metrics:
        for name, value in row.items():
            if "/" in name and is_value(value):
                found.setdefault(name, []).append((row["iteration"], value))
    return found


def curve(series: Sequence[Points], num_points: int) -> dict[str, Any]:
    """Return the curve of a metric of several seeds: iterations `x` and the `mean` of the seeds
    that have a value there; of several seeds also the smallest value `low`, the largest `high`, and
    the values by `seeds`, None where a seed has none.

    Where there are more iterations than points, each point is the mean of neighbours."""
    grid = np.unique([iteration for points in series for iteration, _ in points])
    # Neighbours of the grid share a bin; every bin has at least one iteration of the grid.
    bins = np.arange(len(grid)) * num_points // max(len(grid), num_points)
    num_bins = int(bins.max()) + 1
    values: list[Column] = []
    for points in series:
        x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
        own = bins[np.searchsorted(grid, x)]
        sums = np.bincount(own, weights=y, minlength=num_bins)
        with np.errstate(invalid="ignore"):  # NaN where a seed has no value
            values.append(sums / np.bincount(own, minlength=num_bins))
    shown: dict[str, Any] = {
        "x": _short(np.bincount(bins, weights=grid) / np.bincount(bins)),
        "mean": _short(np.nanmean(values, 0)),
    }
    if len(series) > 1:
        shown["low"] = _short(np.nanmin(values, 0))
        shown["high"] = _short(np.nanmax(values, 0))
        shown["seeds"] = list(map(_short, values))
    return shown


def _short(values: Column) -> list[float | None]:
    """Return numbers of five significant digits, which take less space in a file; None for NaN."""
    return [None if math.isnan(x) else float(f"{x:.5g}") for x in values.tolist()]


def _group(
    group: Group, results: Mapping[int | str, float], comparison: Comparison | None
) -> dict[str, Any]:
    compared: dict[str, Any] = {}
    if comparison is not None:
        compared = {**asdict(comparison), "better": comparison.better}
    return {
        "name": group.name,
        "label": group.runs[0].label,
        "result": asdict(mean_interval(list(results.values()))) if results else None,
        "difference": compared.get("difference"),
        "prompts": compared.get("prompts"),
        "p_value": compared.get("p_value"),
        "better": compared.get("better"),
    }


def _run(run: SavedRun, group: int) -> dict[str, Any]:
    versions = run.versions()
    command = versions.pop("command", None)
    if command is None and run.overrides is not None:
        command = shlex.join(["python", "train.py", *run.overrides])
    alarms = _alarms(run)
    return {
        "group": group,
        "path": str(run.path),
        "seed": str(run.seed),
        "label": run.label,
        "exit": run.exit,
        "iterations": run.iteration,
        "wall_s": run.metrics[-1].get("wall_s") if run.metrics else None,
        "command": command,
        "versions": list(versions.items()),
        "alarms": alarms[:MAX_ALARMS],
        "num_alarms": len(alarms),
    }


def _alarms(run: SavedRun) -> list[list[Any]]:
    alarms = []
    for row in run.metrics:
        for name, value in row.items():
            if name.startswith(ALERT_PREFIX):
                alarms.append([row.get("iteration"), name.removeprefix(ALERT_PREFIX), value])
    return alarms
