"""The results of groups as a table in a terminal and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlmods.errors import UserError, suggest
from rlmods.lab.compare import Comparison, compare
from rlmods.lab.groups import Group
from rlmods.lab.report.curves import curves
from rlmods.lab.statistics import Interval, mean_interval


def comparable(
    groups: Sequence[Group], metric: str, last: int, baseline: str | None
) -> list[Comparison]:
    """Return the comparisons with the baseline of the groups that have a seed in common with it.
    The baseline is named by its group, or by the path of one of its runs.

    Raises:
        UserError: no such baseline.
    """
    results = {group.name: group.results(metric, last) for group in groups}
    with_metric = [group for group in groups if results[group.name]]
    named = {group.name: group for group in with_metric}
    for group in with_metric:
        for run in group.runs:
            named.setdefault(str(run.path), group)
    if baseline is not None and baseline not in named:
        names = [group.name for group in with_metric]
        raise UserError(f"--baseline {baseline}: no such group: {suggest(baseline, names)}")
    if not with_metric:
        return []
    first = with_metric[0] if baseline is None else named[baseline]
    seeds = results[first.name].keys()
    others = [group for group in with_metric if seeds & results[group.name].keys()]
    return compare(others, metric, last, first.name) if len(others) > 1 else []


def text_table(
    groups: Sequence[Group], comparisons: Sequence[Comparison], metric: str, last: int
) -> str:
    """Return aligned columns: group, seeds, mean and interval, difference from the baseline and its
    p-value.

    Seeds without a value of the metric are not in the mean: they are written as `4 of 5`."""
    by_name = {x.name: x for x in comparisons}
    rows = [["group", "seeds", metric, "difference", "p", ""]]
    for group in groups:
        results = list(group.results(metric, last).values())
        seeds = str(len(results))
        if len(results) < len(group.runs):
            seeds = f"{len(results)} of {len(group.runs)}"
        shown = _interval(mean_interval(results), ".4f") if results else "none"
        comparison = by_name.get(group.name)
        end = ["", "", ""]
        if comparison is not None:
            verdict = {True: "better", False: "worse", None: "not decided"}[comparison.better]
            difference = _interval(comparison.difference, "+.4f")
            end = [difference, f"{comparison.p_value:.2g}", verdict]
        elif comparisons and group.name == comparisons[0].baseline:
            end = ["", "", "baseline"]
        rows.append([group.name, seeds, shown, *end])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _interval(interval: Interval, form: str) -> str:
    bounds = f" [{interval.low:{form}}, {interval.high:{form}}]" if interval.is_bounded else ""
    return f"{interval.mean:{form}}{bounds}"


def draw(groups: Sequence[Group], metric: str, path: Path) -> None:
    """Draw the metric of each group, with the range of its seeds.

    Raises:
        UserError: matplotlib is not installed, or no group has the metric.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("--png needs matplotlib: pip install -e '.[plot]'") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        curve = curves(group, 400).get(metric)
        if curve is not None:
            label = group.name.replace("$", r"\$")
            [line] = axes.plot(curve.iterations, curve.mean, label=label)
            band = axes.fill_between(curve.iterations, curve.low, curve.high, alpha=0.15)
            band.set(color=line.get_color(), linewidth=0)
    if not axes.lines:
        raise UserError(f"--metric {metric}: no run has a value of it")
    axes.set(xlabel="iteration", ylabel=metric)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
