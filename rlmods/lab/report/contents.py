"""What a report shows, as plain data."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rlmods.errors import UserError, suggest
from rlmods.lab.compare import Comparison, compare, higher_is_better
from rlmods.lab.saved import Group, SavedRun, is_value
from rlmods.lab.statistics import Interval, mean_interval
from rlmods.report.curves import curves
from rlmods.report.samples import Limits, samples
from rlmods.run.jsonl import read_rows

NUM_POINTS = 200
"""Points of a curve."""
MAX_VALUES = 800_000
"""Values of all curves together; with more runs and metrics, curves have fewer points."""
SAMPLE_CHARACTERS = 6_000_000
"""Size of the samples of all runs."""
MAX_ALARMS = 20
"""Alarms of a run that are shown."""


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
    results = [group.results(metric, last) for group in groups]
    with_metric = [group for group, own in zip(groups, results, strict=True) if own]
    compared = {x.name: x for x in comparable(with_metric, metric, last, baseline)}
    first = next((x.baseline for x in compared.values()), None)
    runs = [(i, run) for i, group in enumerate(groups) for run in group.runs]
    limits = Limits(num_files, num_prompts, SAMPLE_CHARACTERS // len(runs))
    return {
        "metric": metric,
        "higher_is_better": higher_is_better(metric),
        "last": last,
        "baseline": first,
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "rlmods.lab.report", *sys.argv[1:]]),
        "groups": [
            _group(group, own, compared.get(group.name))
            for group, own in zip(groups, results, strict=True)
        ],
        "parts": varying([group.runs[0].parts for group in groups]),
        "settings": varying([group.runs[0].settings for group in groups]),
        "runs": [_run(run, i) for i, run in runs],
        "curves": _curves(groups),
        "samples": [
            group | {"run": j} for j, (_, run) in enumerate(runs) for group in samples(run, limits)
        ],
    }


def comparable(
    groups: Sequence[Group], metric: str, last: int, baseline: str | None
) -> list[Comparison]:
    """Return the comparisons with the baseline of the groups that have a seed in common with it.
    The baseline is named by its group, or by the path of one of its runs."""
    named = {
        **{str(run.path): group for group in groups for run in group.runs},
        **{group.name: group for group in groups},
    }
    if baseline is not None and baseline not in named:
        raise UserError(
            f"--baseline {baseline}: no such group: "
            f"{suggest(baseline, [group.name for group in groups])}"
        )
    if len(groups) < 2:
        return []
    first = groups[0] if baseline is None else named[baseline]
    seeds = first.results(metric, last).keys()
    others = [
        group for group in groups if group is first or seeds & group.results(metric, last).keys()
    ]
    return compare(others, metric, last, first.name) if len(others) > 1 else []


def varying(columns: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values by key, one of each mapping, of the keys whose values are not all equal; ""
    where a mapping lacks it."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = {
        key: [str(column[key])[:200] if key in column else "" for column in columns] for key in keys
    }
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _curves(groups: Sequence[Group]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the curves by metric and index of the group: `x`, `mean` and, of several seeds, `low`,
    `high` and the values by `seed`."""
    num_metrics = sum(
        (len(group.runs) + 4) * len({name for row in group.runs[0].metrics for name in row})
        for group in groups
    )
    num_points = max(20, min(NUM_POINTS, MAX_VALUES // max(1, num_metrics)))
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for i, group in enumerate(groups):
        for name, curve in curves(group, num_points).items():
            band = (
                {"low": curve.low, "high": curve.high, "seeds": curve.seeds}
                if len(group.runs) > 1
                else {}
            )
            if "/" in name:
                found.setdefault(name, {})[i] = {"x": curve.iterations, "mean": curve.mean, **band}
    return dict(sorted(found.items()))


def _group(
    group: Group, results: Mapping[int | str, float], comparison: Comparison | None
) -> dict[str, Any]:
    return {
        "name": group.name,
        "label": group.runs[0].label,
        "result": _interval(mean_interval(list(results.values()))) if results else None,
        "difference": _interval(comparison.difference) if comparison else None,
        "prompts": _interval(comparison.prompts) if comparison and comparison.prompts else None,
        "p_value": comparison.p_value if comparison else None,
        "better": comparison.better if comparison else None,
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None
        for key, value in asdict(interval).items()
    }


def _run(run: SavedRun, group: int) -> dict[str, Any]:
    versions = [line.partition(" ") for line in _versions(run).splitlines()]
    typed = next((value for name, _, value in versions if name == "command"), None)
    recorded = None if run.overrides is None else shlex.join(["python", "train.py", *run.overrides])
    alarms = read_rows(run.path / "hacking.jsonl")
    wall_s = [row["wall_s"] for row in run.metrics[-1:] if is_value(row.get("wall_s"))]
    return {
        "group": group,
        "path": str(run.path),
        "seed": str(run.seed),
        "label": run.label,
        "exit": run.exit,
        "iterations": max((row["iteration"] for row in run.metrics), default=0),
        "wall_s": wall_s[0] if wall_s else None,
        "command": typed or recorded,
        "versions": [[name, value] for name, _, value in versions if name and name != "command"],
        "alarms": [_alarm(row) for row in alarms[:MAX_ALARMS]],
        "num_alarms": len(alarms),
    }


def _alarm(row: Mapping[str, Any]) -> list[Any]:
    iteration = row.get("iteration")
    return [
        iteration if is_value(iteration) else None,
        *(str(row.get(key, ""))[:300] for key in ("kind", "words", "figure")),
    ]


def _versions(run: SavedRun) -> str:
    file = run.path / "versions.txt"
    if not file.is_file():
        return ""
    with file.open(errors="replace") as lines:
        return lines.read(8000)
