"""Show the curves of runs in the terminal while they train: `python -m rlmods.watch DIR... [--once]
[--metrics val/accuracy,train/reward]`.

Ends when all runs have ended. Off a terminal, or with `--once`, prints the curves once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlmods.cli.command import command
from rlmods.lab.saved import SavedRun, find_runs
from rlmods.run.printable import one_line

BLOCKS = "▁▂▃▄▅▆▇█"
METRICS = (
    "val/accuracy",
    "train/accuracy",
    "train/reward",
    "train/entropy",
    "train/kl_ref",
    "train/response_tokens",
    "train/grad_norm",
)
INTERVAL_S = 2.0


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as blocks of eight heights between the smallest and the largest; more than
    `width` are averaged."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((x - low) * scale)] for x in means)


def screen(runs: Sequence[SavedRun], metrics: Sequence[str], width: int) -> list[str]:
    """Return the lines that show the runs as they are now."""
    lines = []
    for run in runs:
        iteration = max((row["iteration"] for row in run.metrics), default=0)
        lines.append(
            one_line(f"{run.path}  {run.label}  seed {run.seed}  iteration {iteration}  {run.exit}")
        )
        series = {name: [value for _, value in run.series(name)] for name in metrics}
        shown = {name: values for name, values in series.items() if values}
        name_width = max(map(len, shown), default=0)
        for name, values in shown.items():
            line = sparkline(values, max(10, min(60, width - name_width - 42)))
            lines.append(
                f"  {name:<{name_width}}  {values[-1]:>10.4g}  {line}  from {min(values):.4g} "
                f"to {max(values):.4g}"
            )
        lines.append("")
    return lines


def watch(folders: Sequence[Path], metrics: Sequence[str], once: bool, console: Console) -> None:
    """Show the runs until all have ended."""

    def lines(height: int) -> tuple[Text, bool]:
        runs = find_runs(folders)
        shown = screen(runs, metrics, console.width)
        more = [f"... {len(shown) - height + 1} lines more"] if len(shown) > height else []
        return Text("\n".join(shown[: height - len(more)] + more), no_wrap=True), all(
            run.exit != "not finished" for run in runs
        )

    if once or not console.is_terminal:
        console.print(lines(10**6)[0], soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            text, ended = lines(console.height - 1)
            live.update(text, refresh=True)
            if ended:
                return
            time.sleep(INTERVAL_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.watch",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, or a folder of runs"
    )
    parser.add_argument("--metrics", default=",".join(METRICS), help="names separated by commas")
    parser.add_argument("--once", action="store_true", help="print the curves once")
    parsed = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    def action() -> str:
        watch(parsed.folders, parsed.metrics.split(","), parsed.once, Console())
        return ""

    command(["watch"], None, action)


if __name__ == "__main__":
    main()
