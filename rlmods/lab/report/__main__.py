"""Report on runs: `python -m rlmods.report DIR... [--out report.html] [--metric val/accuracy]
[--last 1] [--baseline NAME]`.

Writes one HTML file that opens without a network: learning curves, a comparison of the groups of
runs that differ only in their seed, a browser of responses, and settings and versions of every run.
`--text` prints the comparison instead; `--csv FILE` and `--png FILE` write the curves of the
metric."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlmods.cli.command import command
from rlmods.errors import UserError
from rlmods.lab.saved import find_runs, group_runs
from rlmods.report.contents import comparable, contents
from rlmods.report.page import page
from rlmods.report.table import as_csv, draw, text_table
from rlmods.run.files import atomic_write, wrap_write_errors


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.report",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, or a folder of runs"
    )
    parser.add_argument(
        "--out", type=Path, help="file to write; default: report.html in the first folder"
    )
    parser.add_argument(
        "--metric", default="val/accuracy", help="metric that is compared; default: val/accuracy"
    )
    parser.add_argument(
        "--last",
        type=int,
        default=1,
        help="number of last values whose mean is the result of a run; default: 1",
    )
    parser.add_argument(
        "--baseline",
        help="name of the group that the others are compared with; default: the first one",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=5,
        metavar="N",
        help="iterations of a run whose responses are shown; default: 5",
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=8,
        metavar="N",
        help="prompts of such an iteration; default: 8",
    )
    parser.add_argument(
        "--text", action="store_true", help="print the comparison, and write no page"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the curves of the metric as CSV too"
    )
    parser.add_argument(
        "--png", type=Path, metavar="FILE", help="draw the curves of the metric too"
    )
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace) -> str:
    """Write the report and return what is printed.

    Raises:
        UserError: no runs, or a file cannot be written.
    """
    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: must be at least 1")
    for name in ("samples", "prompts"):
        if getattr(arguments, name) < 0:
            raise UserError(f"--{name} {getattr(arguments, name)}: must be 0 or more")
    groups = group_runs(find_runs(arguments.folders))
    printed = []
    if arguments.csv:
        atomic_write(arguments.csv, as_csv(groups, arguments.metric))
        printed.append(f"wrote {arguments.csv}")
    if arguments.png:
        with wrap_write_errors(arguments.png):
            draw(groups, arguments.metric, arguments.png)
        printed.append(f"wrote {arguments.png}")
    if arguments.text:
        with_metric = [group for group in groups if group.results(arguments.metric)]
        compared = (
            comparable(with_metric, arguments.metric, arguments.last, arguments.baseline)
            if len(with_metric) > 1
            else []
        )
        printed.append(text_table(groups, compared, arguments.metric, arguments.last))
    else:
        out = arguments.out or arguments.folders[0] / "report.html"
        html = page(
            contents(
                groups,
                arguments.metric,
                arguments.last,
                arguments.baseline,
                arguments.samples,
                arguments.prompts,
            )
        )
        atomic_write(out, html)
        num_runs = sum(len(group.runs) for group in groups)
        printed.append(
            f"wrote {out} ({num_runs} runs, {len(groups)} groups, {len(html) / 1e6:.1f} MB): "
            "open it in a browser"
        )
    return "\n".join(printed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    command(["report"], None, lambda: run(parsed))


if __name__ == "__main__":
    main()
