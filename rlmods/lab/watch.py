"""Show the curves of runs in the terminal while they train: `python -m rlmods.watch DIR... [--once]
[--metrics val/accuracy,train/reward]`.

Ends when all runs have ended. Off a terminal, or with `--once`, prints the curves once.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlmods.errors import Parser, one_line_errors
from rlmods.lab.groups import find_runs
from rlmods.run.saved import NOT_FINISHED

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
    parts = np.array_split(np.asarray(values), min(width, len(values)))
    means = [float(part.mean()) for part in parts]
    low = min(means)
    scale = (len(BLOCKS) - 1) / ((max(means) - low) or 1.0)
    return "".join(BLOCKS[round((x - low) * scale)] for x in means)


def screen(folders: Sequence[Path], metrics: Sequence[str], width: int) -> tuple[str, bool]:
    """Return the runs as they are now, and whether all have ended."""
    lines = []
    runs = find_runs(folders)
    for run in runs:
        status = f"seed {run.seed}  iteration {run.iteration}  {run.exit}"
        lines.append(f"{run.path}  {run.label}  {status}")
        for name in metrics:
            values = [value for _, value in run.series(name)]
            if values:
                curve = sparkline(values, max(10, min(60, width - 64)))
                extremes = f"from {min(values):.4g} to {max(values):.4g}"
                lines.append(f"  {name:<22}  {values[-1]:>10.4g}  {curve}  {extremes}")
        lines.append("")
    return "\n".join(lines), all(run.exit != NOT_FINISHED for run in runs)


def watch(folders: Sequence[Path], metrics: Sequence[str], once: bool, console: Console) -> None:
    """Show the runs until all have ended."""
    shown, has_ended = screen(folders, metrics, console.width)
    if once or not console.is_terminal:
        console.print(Text(shown), soft_wrap=True)
        return
    with Live(Text(shown, no_wrap=True), console=console, auto_refresh=False) as live:
        while not has_ended:
            time.sleep(INTERVAL_S)
            shown, has_ended = screen(folders, metrics, console.width)
            live.update(Text(shown, no_wrap=True), refresh=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = Parser("watch", __doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, or a folder of runs"
    )
    parser.add_argument("--metrics", default=",".join(METRICS), help="names separated by commas")
    parser.add_argument("--once", action="store_true", help="print the curves once")
    parsed = parser.parse_args(arguments)
    with one_line_errors():
        watch(parsed.folders, parsed.metrics.split(","), parsed.once, Console())


if __name__ == "__main__":
    main()
