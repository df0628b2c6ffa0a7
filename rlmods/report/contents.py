"""What a report shows, as plain data."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rlmods.cli.compare import Comparison, compare, higher_is_better
from rlmods.report.curves import curves, final_means
from rlmods.report.samples import sample_files, samples
from rlmods.run.jsonl import read_rows
from rlmods.run.saved import Group, SavedRun
from rlmods.statistics import Interval, mean_interval
from rlmods.types import UserError

NUM_POINTS = 200
"""Points of a curve."""
MAX_VALUES = 1_500_000
"""Values of all curves together; with more groups and metrics, curves have fewer points."""
NUM_RUNS_WITH_SAMPLES = 12
"""Runs whose responses are in the report: the first seed of each group, the first groups."""
NUM_FILES = 3
"""Files of training responses of such a run."""
NUM_PROMPTS = 12
"""Prompts of such a file."""


def contents(groups: Sequence[Group], metric: str, last: int, baseline: str | None) -> dict[str, Any]:
    """Return everything that the page shows.

    Raises:
        UserError: no such baseline, or no group has the metric.
    """
    found = [(group, group.results(metric, last)) for group in groups]
    with_metric = [group for group, results in found if results]
    compared = comparable(with_metric, metric, last, baseline) if len(with_metric) > 1 else []
    by_name = {x.name: x for x in compared}
    first = compared[0].baseline if compared else None
    metrics = sum(len({name for run in group.runs for row in run.metrics[-1:] for name in row}) for group in groups)
    num_points = max(20, min(NUM_POINTS, MAX_VALUES // max(1, 4 * metrics)))
    return {
        "metric": metric,
        "higher_is_better": higher_is_better(metric),
        "last": last,
        "baseline": first,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "rlmods.report", *sys.argv[1:]]),
        "groups": [_group(group, results, by_name.get(group.name), num_points) for group, results in found],
        "runs": [_run(run, group.name) for group in groups for run in group.runs],
        "samples": [
            {"run": str(group.runs[0].path), "files": [samples(file, NUM_PROMPTS) for file in sample_files(group.runs[0], NUM_FILES)]}
            for group in groups[:NUM_RUNS_WITH_SAMPLES]
        ],
    }


def comparable(groups: Sequence[Group], metric: str, last: int, baseline: str | None) -> list[Comparison]:
    """Return the comparisons with the baseline of the groups that have a seed in common with it."""
    names = [group.name for group in groups]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline}: no such group; there are {'; '.join(names)}")
    first = groups[names.index(baseline) if baseline is not None else 0]
    seeds = first.results(metric, last).keys()
    others = [group for group in groups if group is first or seeds & group.results(metric, last).keys()]
    return compare(others, metric, last, first.name) if len(others) > 1 else []


def _group(group: Group, results: dict[int | str, float], comparison: Comparison | None, num_points: int) -> dict[str, Any]:
    drawn = curves(group, num_points)
    return {
        "name": group.name,
        "seeds": [run.seed for run in group.runs],
        "result": _interval(mean_interval(list(results.values()))) if results else None,
        "difference": _interval(comparison.difference) if comparison else None,
        "prompts": _interval(comparison.prompts) if comparison and comparison.prompts else None,
        "p_value": comparison.p_value if comparison else None,
        "better": comparison.better if comparison else None,
        "curves": {name: [list(x.iterations), list(x.mean), list(x.low), list(x.high)] for name, x in drawn.items()},
        "stages": final_means(drawn, "time/"),
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in asdict(interval).items()}


def _run(run: SavedRun, group: str) -> dict[str, Any]:
    accuracy = run.summary.get("val/accuracy")
    return {
        "group": group,
        "path": str(run.path),
        "seed": run.seed,
        "label": run.label,
        "exit": run.exit,
        "iterations": max((row["iteration"] for row in run.metrics if type(row.get("iteration")) is int), default=0),
        **{key: accuracy.get(key) if isinstance(accuracy, dict) else None for key in ("first", "best", "last")},
        **{key: run.summary.get(key) for key in ("wall_s", "response_tokens", "peak_memory_mb")},
        "command": None if run.overrides is None else shlex.join(["python", "train.py", *run.overrides]),
        "versions": _versions(run),
        "alarms": [_alarm(row) for row in read_rows(run.path / "hacking.jsonl")[:20]],
    }


def _versions(run: SavedRun) -> str:
    file = run.path / "versions.txt"
    return file.read_text(errors="replace")[:4000] if file.is_file() else ""


def _alarm(row: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in row.items() if isinstance(value, str | int | float))[:300]
