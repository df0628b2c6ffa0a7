"""The page of a scorecard: scores, curves and costs in one file, with pictures and no scripts."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from rlmods.lab.statistics import Interval
from rlmods.lab.tunnel.results import MEASURED, Card, Cell, Curve, Result
from rlmods.lab.tunnel.tasks import Task

COLOURS = (
    *("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626"),
    *("#0891b2", "#a16207", "#be185d", "#65a30d", "#6b7280"),
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em;
  color: #1f2937 }
h1 { font-size: 1.6em } h2 { font-size: 1.2em; margin-top: 2em }
table { border-collapse: collapse; width: 100% }
th, td { padding: .35em .6em; text-align: left; border-bottom: 1px solid #e5e7eb;
  vertical-align: top }
th { font-weight: 600 } td.number { font-variant-numeric: tabular-nums; white-space: nowrap }
.better { background: #dcfce7 } .worse { background: #fee2e2 } .none { color: #9ca3af }
small { color: #6b7280; display: block } figure { display: inline-block; margin: .5em }
figcaption { text-align: center; font-size: .85em }
.key { margin-right: 1.2em }
td, th, .key { overflow-wrap: anywhere } td:first-child { min-width: 9em }
.wide { overflow-x: auto }
.reason { white-space: normal; max-width: 24em }
code { background: #f3f4f6; padding: .1em .3em }
@media (prefers-color-scheme: dark) {
  body { background: #111827; color: #e5e7eb } th, td { border-color: #374151 }
  .better { background: #14532d } .worse { background: #7f1d1d } code { background: #1f2937 }
  small { color: #9ca3af } }
"""

HOW_TO_READ = (
    "A score is the mean height of the task's curve over the tokens of the run: 0 for a policy "
    "that stays as it was, 1 for one that is perfect at once. Brackets: 95 % interval over seeds. "
    "Below it is the difference from the baseline, paired by seed. Green and red: better and worse "
    "than the baseline, p &lt; 0.05 after Holm's correction for all comparisons of the page."
)


def page(
    command: str,
    entrants: Sequence[str],
    tasks: Sequence[Task],
    card: Card,
    results: Mapping[tuple[str, str], Sequence[Result]],
    costs: Mapping[str, str],
) -> str:
    """Return the HTML of a scorecard.

    Args:
        command: command that makes the page again.
        entrants: names; the first one is the baseline.
        results: of the seeds, by entrant and task.
        costs: what the runs of an entrant took, in words, by entrant.
    """
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(entrants)}
    return "\n".join(
        [
            "<!DOCTYPE html><html lang=en><head><meta charset=utf-8>",
            "<meta http-equiv=Content-Security-Policy "
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            f"<title>scorecard</title><style>{STYLE}</style></head><body>",
            "<h1>Scorecard</h1>",
            f"<p>{_summary(entrants[0], card)}</p>",
            _legend(colours),
            _table(entrants, tasks, card),
            f"<p><small>{HOW_TO_READ}</small></p>",
            f"<p><small>The baseline is {escape(entrants[0])}.</small></p>",
            _radar(entrants, tasks, card, colours),
            "<h2>Readings</h2>",
            _readings(entrants, tasks, card),
            "<h2>Curves</h2>",
            *[_pictures(task, entrants, results, colours) for task in tasks],
            "<h2>Cost</h2>",
            _costs(costs),
            f"<p><small>made by <code>{escape(command)}</code></small></p>",
            "</body></html>",
        ]
    )


def _summary(baseline: str, card: Card) -> str:
    """Return in a sentence how many differences from the baseline are decided."""
    others = [key for key in card if card[key].difference is not None]
    decided = [key for key in others if card[key].better is not None]
    if not others:
        return "No comparison: name a second algorithm."
    if all(card[key].p_value is None for key in others):
        return "One seed shows no spread, so nothing is decided: type seeds=3."
    found = [
        f"{escape(entrant)} {'better' if card[entrant, task].better else 'worse'} on {escape(task)}"
        for entrant, task in decided
    ]
    count = f"{len(decided)} of {len(others)} comparisons with {escape(baseline)} are decided"
    return f"{count}: {'; '.join(found)}." if found else f"{count}."


def _legend(colours: Mapping[str, str]) -> str:
    keys = [
        f"<span class=key><svg width=14 height=14><rect width=14 height=14 rx=3 fill='{colour}'/>"
        f"</svg> {escape(name)}</span>"
        for name, colour in colours.items()
    ]
    return f"<p>{''.join(keys)}</p>"


def interval_text(interval: Interval, form: str = ".2f") -> str:
    """Return `0.52 [0.48, 0.56]`, without bounds if there are none."""
    bounds = f" [{interval.low:{form}}, {interval.high:{form}}]" if interval.is_bounded else ""
    return f"{interval.mean:{form}}{bounds}"


def _table(entrants: Sequence[str], tasks: Sequence[Task], card: Card) -> str:
    header = "".join(f"<th>{escape(name)}</th>" for name in entrants)
    rows = [f"<tr><th>capability</th>{header}</tr>"]
    for task in tasks:
        name = f"<td>{escape(task.name)}<small>{escape(task.capability)}</small></td>"
        cells = "".join(_cell(card[entrant, task.name]) for entrant in entrants)
        rows.append(f"<tr>{name}{cells}</tr>")
    return f"<div class=wide><table>{''.join(rows)}</table></div>"


def _cell(cell: Cell) -> str:
    if cell.mean is None:
        return f"<td class=none>none<small class=reason>{escape(cell.reason)}</small></td>"
    kind = {True: " better", False: " worse", None: ""}[cell.better]
    text = interval_text(cell.mean)
    if cell.difference is not None:
        p_value = "" if cell.p_value is None else f", p = {cell.p_value:.2g}"
        text += f"<small>{interval_text(cell.difference, '+.2f')}{p_value}</small>"
    if cell.reason:
        text += f"<small class=reason>{escape(cell.reason)}</small>"
    return f"<td class='number{kind}'>{text}</td>"


def _radar(
    entrants: Sequence[str], tasks: Sequence[Task], card: Card, colours: Mapping[str, str]
) -> str:
    """Return a picture with an axis for each task, from 0 in the centre to 1."""
    if len(tasks) < 3:
        return ""
    size = 460
    centre = size / 2
    angles = 2 * np.pi * np.arange(len(tasks)) / len(tasks) - np.pi / 2
    axes = 160 * np.stack([np.cos(angles), np.sin(angles)], 1)
    shapes = []
    for ring in (0.25, 0.5, 0.75, 1.0):
        corners = _points(centre + ring * axes)
        shapes.append(f"<polygon points='{corners}' fill=none stroke='#d1d5db'/>")
    for task, axis in zip(tasks, axes, strict=True):
        x, y = centre + axis
        label_x, label_y = centre + 1.2 * axis
        shapes.append(f"<line x1={centre} y1={centre} x2={x:.1f} y2={y:.1f} stroke='#d1d5db'/>")
        shapes.append(
            f"<text x={label_x:.1f} y={label_y:.1f} text-anchor=middle font-size=13 "
            f"fill=currentColor>{escape(task.name)}</text>"
        )
    for entrant in entrants:
        means = [card[entrant, task.name].mean for task in tasks]
        is_there = [mean is not None for mean in means]
        values = [mean.mean for mean in means if mean is not None]
        corners = _points(centre + np.clip(values, 0, 1)[:, None] * axes[is_there])
        shapes.append(
            f"<polygon points='{corners}' fill='{colours[entrant]}' fill-opacity=.08 "
            f"stroke='{colours[entrant]}' stroke-width=2 />"
        )
    frame = f"width={size} height={size} viewBox='0 0 {size} {size}'"
    return f"<h2>Strengths</h2><svg {frame}>{''.join(shapes)}</svg>"


def _points(points: NDArray[np.float64]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _readings(entrants: Sequence[str], tasks: Sequence[Task], card: Card) -> str:
    """Return a sentence for each capability."""
    lines = []
    for task in tasks:
        means = {name: card[name, task.name].mean for name in entrants}
        known = {name: mean.mean for name, mean in means.items() if mean is not None}
        if not known:
            continue
        highest = max(known.values())
        best = ", ".join(name for name, score in known.items() if score == highest)
        decided = [name for name in entrants[1:] if card[name, task.name].better is not None]
        words = []
        for name in decided:
            word = "better" if card[name, task.name].better else "worse"
            words.append(f"{name} is {word} than {entrants[0]}")
        certainty = ", ".join(words) if words else "no difference is decided"
        sentence = f"{task.question} Highest: {best}, {highest:.2f}; {certainty}."
        lines.append(f"<li><b>{escape(task.name)}</b>: {escape(sentence)}</li>")
    return f"<ul>{''.join(lines)}</ul>"


def _pictures(
    task: Task,
    entrants: Sequence[str],
    results: Mapping[tuple[str, str], Sequence[Result]],
    colours: Mapping[str, str],
) -> str:
    """Return a picture of the task's metric over tokens, and smaller ones of what was measured
    beside it, a line for each run."""
    runs = [(colours[name], run) for name in entrants for run in results.get((name, task.name), ())]
    figures = []
    for metric in (task.metric, *MEASURED):
        lines = [(colour, run.curves[metric]) for colour, run in runs if metric in run.curves]
        if lines:
            width = 260 if metric == task.metric else 140
            figures.append(_picture(metric, lines, width))
    heading = f"<h3>{escape(task.name)}</h3>" if figures else ""
    return heading + "".join(figures)


def _picture(metric: str, lines: Sequence[tuple[str, Curve]], width: int) -> str:
    """Return a picture of lines in colours."""
    height = 210
    left = 38
    floor = 186
    points = np.concatenate([line for _, line in lines])
    largest = points[:, 0].max() or 1.0
    low = points[:, 1].min()
    high = points[:, 1].max()
    scale = np.array([(width - left - 8) / largest, (8 - floor) / ((high - low) or 1.0)])
    shapes = []
    for colour, line in lines:
        corners = _points((np.array(line) - [0, low]) * scale + [left, floor])
        shapes.append(
            f"<polyline points='{corners}' fill=none stroke='{colour}' stroke-width=1.5 "
            "stroke-opacity=.8 />"
        )
    text = "font-size=11 fill=currentColor"
    shapes += [
        f"<text x=0 y=16 {text}>{high:.3g}</text><text x=0 y={floor} {text}>{low:.3g}</text>",
        f"<text x={width - 8} y={height - 6} text-anchor=end {text}>{largest / 1000:.0f}k tokens"
        "</text>",
        f"<line x1={left} y1={floor} x2={width - 8} y2={floor} stroke='#9ca3af'/>",
    ]
    picture = f"<svg width={width} height={height}>{''.join(shapes)}</svg>"
    return f"<figure>{picture}<figcaption>{escape(metric)}</figcaption></figure>"


def _costs(costs: Mapping[str, str]) -> str:
    rows = [f"<tr><td>{escape(n)}</td><td>{escape(cost)}</td></tr>" for n, cost in costs.items()]
    return f"<table>{''.join(rows)}</table>"
