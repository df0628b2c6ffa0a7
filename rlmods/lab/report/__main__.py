"""Report on runs: `python -m rlmods.report DIR... [--out report.html] [--metric val/accuracy]
[--last 1] [--baseline NAME]`.

Writes one HTML file that opens without a network: learning curves, a comparison of the groups of
runs that differ only in their seed, a browser of responses, and settings and versions of every run.
`--text` prints the comparison instead."""

import argparse
import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlmods.errors import Parser, counted, one_line_errors
from rlmods.lab.compare import comparable, lines, no_value
from rlmods.lab.groups import METRIC, add_arguments, find_runs, group_runs, positive
from rlmods.lab.report.contents import answer, contents
from rlmods.run.files import atomic_write, dumps

ASSETS = Path(__file__).parent / "assets"
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"} | dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)
"""Characters that HTML or JavaScript may read as syntax, and lone surrogates, which UTF-8 cannot
encode."""


def run(arguments: argparse.Namespace) -> str:
    """Write the report, or with `--text` none, and return what is printed.

    Raises:
        UserError: no runs, no such baseline or metric, or the file cannot be written.
    """
    groups = group_runs(find_runs(arguments.folders))
    metric = arguments.metric
    last = arguments.last
    baseline = arguments.baseline
    if metric != METRIC and not any(group.results(metric, last) for group in groups):
        raise no_value(groups[0], metric)
    if arguments.text:
        comparisons = comparable(groups, metric, last, baseline)
        compared = ["", *lines(comparisons)] if comparisons else []
        return "\n".join([*answer(groups, comparisons, metric, last), *compared])
    shown = contents(groups, metric, last, baseline, arguments.samples, arguments.prompts)
    html = page(shown)
    out = arguments.out or arguments.folders[0] / "report.html"
    atomic_write(out, html)
    num_runs = sum(len(group.runs) for group in groups)
    return (
        f"wrote {out} ({counted(num_runs, 'run')}, {counted(len(groups), 'group')}, "
        f"{len(html) / 1e6:.1f} MB): open it in a browser"
    )


def page(contents: Mapping[str, Any]) -> str:
    """Return the HTML of a report, which loads nothing: scripts, styles and data are in it.

    Data are JSON in an element that is not executed, with `<`, `>` and `&` as escapes, so no text
    can end it. The script writes texts as text nodes, never as HTML. The content security policy
    allows the two scripts only, by their hashes, and no request."""
    uplot = _read("uplot.js")
    script = _read("page.js")
    inserted = {
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(uplot)} "
        f"{_hash(script)}",
        "STYLE": _read("uplot.css") + _read("page.css"),
        "UPLOT": uplot,
        "SCRIPT": script,
        "CONTENTS": dumps(contents).translate(ESCAPES),
    }
    return re.sub(r"{{(\w+)}}", lambda match: inserted[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = Parser("report", __doc__)
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
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(arguments)
    with one_line_errors():
        print(run(parsed))


if __name__ == "__main__":
    main()
