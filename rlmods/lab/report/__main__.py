"""Report on runs: `python -m rlmods.report DIR... [--out report.html] [--metric val/accuracy]
[--last 1] [--baseline NAME]`.

Writes one HTML file that opens without a network: learning curves, a comparison of the groups of
runs that differ only in their seed, a browser of responses, and settings and versions of every run.
`--text` prints the comparison instead; `--png FILE` draws the curves of the metric."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rlmods.errors import one_line_errors
from rlmods.lab.groups import Group, add_arguments, find_runs, group_runs, positive
from rlmods.lab.report.contents import contents
from rlmods.lab.report.page import page
from rlmods.lab.report.table import comparable, draw, text_table
from rlmods.run.files import atomic_write, wrap_write_errors


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.report",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "--out", type=Path, help="file to write; default: report.html in the first folder"
    )
    parser.add_argument(
        "--samples",
        type=positive,
        default=5,
        metavar="N",
        help="iterations of a run whose responses are shown; default: 5",
    )
    parser.add_argument(
        "--prompts",
        type=positive,
        default=8,
        metavar="N",
        help="prompts of such an iteration; default: 8",
    )
    parser.add_argument(
        "--text", action="store_true", help="print the comparison, and write no page"
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
    groups = group_runs(find_runs(arguments.folders))
    metric = arguments.metric
    printed = []
    if arguments.png:
        with wrap_write_errors(arguments.png):
            draw(groups, metric, arguments.png)
        printed.append(f"wrote {arguments.png}")
    if arguments.text:
        compared = comparable(groups, metric, arguments.last, arguments.baseline)
        printed.append(text_table(groups, compared, metric, arguments.last))
    else:
        printed.append(_write_page(arguments, groups))
    return "\n".join(printed)


def _write_page(arguments: argparse.Namespace, groups: Sequence[Group]) -> str:
    """Write the HTML file and return what is printed."""
    out = arguments.out or arguments.folders[0] / "report.html"
    shown = contents(
        groups,
        arguments.metric,
        arguments.last,
        arguments.baseline,
        arguments.samples,
        arguments.prompts,
    )
    html = page(shown)
    atomic_write(out, html)
    num_runs = sum(len(group.runs) for group in groups)
    return (
        f"wrote {out} ({num_runs} runs, {len(groups)} groups, {len(html) / 1e6:.1f} MB): open it "
        "in a browser"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(arguments)
    with one_line_errors():
        print(run(parsed))


if __name__ == "__main__":
    main()
