"""The results of groups as a table in a terminal, as CSV and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rlmods.errors import UserError
from rlmods.lab.compare import Comparison
from rlmods.lab.saved import Group
from rlmods.lab.statistics import Interval, mean_interval
from rlmods.report.curves import curves
from rlmods.run.printable import one_line


def text_table(
    groups: Sequence[Group], comparisons: Sequence[Comparison], metric: str, last: int
) -> str:
    """Return aligned columns: group, seeds, mean and interval, difference from the baseline and its
    p-value.

    Seeds without a value of the metric are not in the mean: they are written as `4 of 5`."""
    by_name = {x.name: x for x in comparisons}
    rows = [("group", "seeds", metric, "difference", "p", "")]
    for group in groups:
        results = list(group.results(metric, last).values())
        found = by_name.get(group.name)
        verdict = (
            ""
            if found is None
            else {True: "better", False: "worse", None: "not decided"}[found.better]
        )
        if comparisons and group.name == comparisons[0].baseline:
            verdict = "baseline"
        difference = _interval(found.difference, "+.4f") if found else ""
        seeds = (
            str(len(results))
            if len(results) == len(group.runs)
            else f"{len(results)} of {len(group.runs)}"
        )
        shown = _interval(mean_interval(results), ".4f") if results else "none"
        rows.append(
            (
                one_line(group.name),
                seeds,
                shown,
                difference,
                f"{found.p_value:.2g}" if found else "",
                verdict,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _interval(interval: Interval, form: str) -> str:
    bounds = f" [{interval.low:{form}}, {interval.high:{form}}]" if interval.is_bounded else ""
    return f"{interval.mean:{form}}{bounds}"


def as_csv(groups: Sequence[Group], metric: str) -> str:
    """Return group, run, seed, iteration and value of the metric, a line for each value.

    Cells that a spreadsheet would execute, which begin with `=`, `+`, `-` or `@`, begin with an
    apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["group", "run", "seed", "iteration", metric])
    for group in groups:
        for run in group.runs:
            for iteration, value in run.series(metric):
                writer.writerow(
                    [
                        _cell(group.name),
                        _cell(str(run.path)),
                        _cell(str(run.seed)),
                        iteration,
                        value,
                    ]
                )
    return file.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


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
    drawn = 0
    for group in groups:
        curve = curves(group, 400).get(metric)
        if curve is not None:
            drawn += 1
            [line] = axes.plot(curve.iterations, curve.mean, label=group.name.replace("$", r"\$"))
            axes.fill_between(
                curve.iterations,
                curve.low,
                curve.high,
                alpha=0.15,
                color=line.get_color(),
                linewidth=0,
            )
    if not drawn:
        raise UserError(f"--metric {metric}: no run has a value of it")
    axes.set(xlabel="iteration", ylabel=metric)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
