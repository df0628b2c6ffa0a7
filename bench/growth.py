"""Seconds and peak memory of an iteration against response length, group size, prompts and model
size, and what must not grow (`bench.scale`): with the data, the age of the run, and the ranks.

    python -m bench.growth [length] [group] [prompts] [model] [data] [run] [ranks]
        [--small] [--out FOLDER] [--rows N,N] [--iterations N]

Every point of the first four is a fresh process that trains a random model on responses of exactly the given length,
with the default token budget. Writes GROWTH.md, which tells how fast time, work and memory grow,
growth.json and growth.png to FOLDER (bench/, and docs/ for the figure, without it). `--small`: two
small points on each axis, to try the command."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import scale
from bench.endless import Endless
from bench.limit import Architecture, decode_flops, decode_steps, prefill_flops, update_flops
from bench.process import ROOT, exit_on_sigterm, run_python
from bench.records import read
from bench.report import command_line, noted, number, page, table
from bench.workloads import PATTERN

WARMUP, ITERATIONS = 1, 2
TOLERANCE = 0.15
"""Exponent by which time may grow faster than the operations, for noise and for work that is not in
matrix products."""


@dataclass(frozen=True)
class Point:
    """One iteration to measure: a random model of 4 layers, and `prompts` x `samples` responses of
    `tokens` tokens."""

    axis: str
    prompts: int = 4
    samples: int = 8
    tokens: int = 64
    hidden_size: int = 256

    def architecture(self) -> Architecture:
        """Return the sizes of the model."""
        return Architecture.of(
            Endless(
                pretrained=False, hidden_size=self.hidden_size, context_length=self.tokens + 64
            )().model
        )

    def arguments(self, run_dir: Path, records: Path) -> list[str]:
        """Return the arguments of Python that train at this point."""
        settings = {
            "algo": "dapo",
            "policy": "tiny",
            "policy._target_": "bench.endless.Endless",
            "policy.pretrained": "false",
            "policy.hidden_size": self.hidden_size,
            "policy.context_length": self.tokens + 64,
            "data.num_train": self.prompts,
            "data.num_val": 0,
            "reward": "regex",
            "reward.pattern": f"'{PATTERN}'",
            "sampling": "fixed",
            "batch.prompts": self.prompts,
            "batch.samples": self.samples,
            "batch.minibatches": 1,
            "rollout.max_tokens": self.tokens,
            "optimizer.lr": 1e-6,
            "validation.every": "null",
            "trainer.max_iterations": WARMUP + ITERATIONS,
            "logger": "none",
            "run_dir": run_dir,
            "+callbacks.recorder._target_": "bench.ours.Recorder",
            "+callbacks.recorder.path": records,
        }
        return [
            "train.py",
            *(f"{name}={value}" for name, value in settings.items()),
            "~callbacks.checkpoint",
        ]


@dataclass(frozen=True)
class Measurement:
    """What was measured at a point."""

    point: Point
    x: float
    """Position on the axis: tokens, responses to a prompt, prompts, or millions of parameters."""
    seconds: float
    """Median seconds of an iteration."""
    rollout: float
    update: float
    peak_bytes: float
    """Largest resident memory of the process tree."""
    flops: float
    """Operations that an iteration needs (`bench.limit`)."""


LABELS = {
    "length": "response length, tokens",
    "group": "responses to a prompt",
    "prompts": "prompts",
    "model": "million parameters",
}
"""Axes of the figure, by name."""


def points(axis: str, small: bool = False) -> list[Point]:
    """Return the points of an axis."""
    found = {
        "length": [
            Point(axis, prompts=1, samples=16, tokens=n)
            for n in (64, 128, 256, 512, 1024, 2048, 4096)
        ],
        "group": [Point(axis, samples=n) for n in (2, 4, 8, 16, 32, 64)],
        "prompts": [Point(axis, prompts=n) for n in (1, 2, 4, 8, 16, 32, 64)],
        "model": [Point(axis, hidden_size=n) for n in (128, 192, 256, 384, 512, 768, 1024)],
    }[axis]
    if not small:
        return found
    if axis == "model":
        return [
            replace(point, samples=2, tokens=4, hidden_size=size)
            for point, size in zip(found[:2], (32, 64), strict=True)
        ]
    return [
        replace(
            p,
            prompts=min(p.prompts, 2),
            samples=min(p.samples, 4),
            tokens=p.tokens // 16,
            hidden_size=32,
        )
        for p in found[:2]
    ]


def position(point: Point, arch: Architecture) -> float:
    """Return where a point is on its axis."""
    return {
        "length": point.tokens,
        "group": point.samples,
        "prompts": point.prompts,
        "model": arch.parameters / 1e6,
    }[point.axis]


def work(arch: Architecture, prompts: Sequence[int], responses: Sequence[int]) -> int:
    """Return the operations of rollout and update."""
    decode = sum(decode_flops(arch, context) for context in decode_steps(prompts, responses))
    return prefill_flops(arch, prompts) + decode + update_flops(arch, prompts, responses)


def measure(point: Point, folder: Path) -> Measurement:
    """Train at one point in a fresh process.

    Raises:
        RuntimeError: training failed, or a response does not have the length of the point.
    """
    arch = point.architecture()
    x = position(point, arch)
    name = f"{point.axis}-{x:g}"
    _, peak = run_python(
        point.arguments(folder / name, folder / f"{name}.jsonl"), folder / f"{name}.log"
    )
    records = read(folder / f"{name}.jsonl")[WARMUP:]
    if any(set(record.response_lengths) != {point.tokens} for record in records):
        raise RuntimeError(f"{name}: responses are not {point.tokens} tokens long")
    seconds, rollout, update = (
        median(values)
        for values in zip(
            *((r.seconds, r.stages["rollout"], r.stages["update"]) for r in records), strict=True
        )
    )
    flops = work(arch, records[0].prompt_lengths, records[0].response_lengths)
    return Measurement(point, x, seconds, rollout, update, peak, flops)


@dataclass(frozen=True)
class Line:
    """Least-squares fit `y = intercept + slope x`."""

    intercept: float
    slope: float
    r2: float
    """Explained share of the variance of y; 1 for points on a line."""


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line."""
    slope, intercept = np.polyfit(x, y, 1)
    residual, total = np.var(np.asarray(y) - intercept - slope * np.asarray(x)), np.var(y)
    return Line(float(intercept), float(slope), float(1 - residual / total) if total else 1.0)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return k of `y ~ x^k` over the upper half of the points, at least two: the slope of log y
    over log x. 1: linear; 2: quadratic."""
    count = max(2, len(x) // 2)
    return float(np.polyfit(np.log(x[-count:]), np.log(y[-count:]), 1)[0])


def summary(found: Sequence[Measurement]) -> list[str]:
    """Return the row of an axis: fit of the time, and exponents of time, work and memory."""
    x, seconds = [m.x for m in found], [m.seconds for m in found]
    line = fit_line(x, seconds)
    grows, needed = exponent(x, seconds), exponent(x, [m.flops for m in found])
    verdict = "yes" if grows <= needed + TOLERANCE else "**no**"
    memory = f"{number(found[0].peak_bytes / 1e9)} to {number(found[-1].peak_bytes / 1e9)}"
    fitted = f"{line.intercept:.3g} + {line.slope:.3g} x (R² {line.r2:.3f})"
    span = f"{x[0]:g} to {x[-1]:g}"
    return [
        LABELS[found[0].point.axis],
        span,
        fitted,
        f"{grows:.2f}",
        f"{needed:.2f}",
        verdict,
        memory,
    ]


def summary_table(found: Sequence[Measurement]) -> str:
    """Return the table of all axes."""
    axes = list(dict.fromkeys(m.point.axis for m in found))
    head = [
        "x",
        "from",
        "seconds",
        "exponent of seconds",
        "of operations",
        "no faster",
        "peak memory, GB",
    ]
    return table(head, [summary([m for m in found if m.point.axis == axis]) for axis in axes])


def draw(found: Sequence[Measurement], path: Path) -> None:
    """Plot seconds, with the fitted line, and peak memory against every axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = list(dict.fromkeys(m.point.axis for m in found))
    figure, grid = plt.subplots(
        2, len(axes), figsize=(3.4 * len(axes), 5.4), dpi=110, squeeze=False
    )
    for column, axis in zip(grid.T, axes, strict=True):
        own = [m for m in found if m.point.axis == axis]
        x, line = (
            np.array([m.x for m in own]),
            fit_line([m.x for m in own], [m.seconds for m in own]),
        )
        column[0].plot(
            x, line.intercept + line.slope * x, color="#94a3b8", linestyle="--", label="line"
        )
        for name, color in (("seconds", "#2563eb"), ("rollout", "#16a34a"), ("update", "#ea580c")):
            label = "iteration" if name == "seconds" else name
            column[0].plot(
                x,
                [getattr(m, name) for m in own],
                color=color,
                marker="o",
                markersize=3,
                label=label,
            )
        column[1].plot(
            x, [m.peak_bytes / 1e9 for m in own], color="#9333ea", marker="o", markersize=3
        )
        column[1].set(xlabel=LABELS[axis])
        for panel in column:
            panel.set(ylim=(0, None), xlim=(0, None))
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set(ylabel="seconds of an iteration")
    grid[1, 0].set(ylabel="peak memory, GB")
    grid[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def curves(
    axes: Sequence[str], small: bool, folder: Path, results: Path, start: Mapping[str, Any]
) -> list[Measurement]:
    """Measure the points of these axes, print them and write growth.json."""
    found: list[Measurement] = []
    for axis in axes:
        for point in points(axis, small):
            found.append(measure(point, folder))
            last = found[-1]
            stages = f"rollout {last.rollout:.3g}, update {last.update:.3g}"
            print(
                f"{axis} {last.x:g}: {last.seconds:.3g} s ({stages}), "
                f"{last.peak_bytes / 1e9:.2f} GB",
                flush=True,
            )
            (results / "growth.json").write_text(
                json.dumps({**start, "points": [asdict(m) for m in found]}, indent=1) + "\n"
            )
    return found


def numbers(text: str) -> list[int]:
    """Parse numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str]) -> None:
    """Measure, write and print."""
    known = (*LABELS, *scale.AXES)
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth", description="Growth of time and memory."
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(known)}; default: all")
    parser.add_argument("--small", action="store_true", help="two small points on each axis")
    parser.add_argument("--out", type=Path, help="folder of growth.json and growth.png")
    parser.add_argument("--rows", type=numbers, default=scale.ROWS, help="rows of the data: N,N")
    parser.add_argument("--iterations", type=int, default=scale.ITERATIONS, help="length of `run`")
    options = parser.parse_args(arguments)
    chosen = options.axes or known
    if unknown := [axis for axis in chosen if axis not in known]:
        parser.error(f"{unknown[0]} is not an axis: type some of {', '.join(known)}")
    folder = ROOT / "runs" / "bench" / time.strftime("growth-%Y%m%d-%H%M%S")
    results, plot = ((options.out or ROOT / place) for place in ("bench", "docs"))
    for path in (results, plot):
        path.mkdir(parents=True, exist_ok=True)
    start = noted()
    sections: list[str] = []
    axes = [axis for axis in chosen if axis in LABELS]
    if axes:
        found = curves(axes, options.small, folder, results, start)
        draw(found, plot / "growth.png")
        figure = os.path.relpath(plot / "growth.png", results)
        sections += [
            summary_table(found),
            f"![Seconds and peak memory of an iteration against each axis]({figure})",
        ]
    sizes: dict[str, Any] = {"sizes": options.rows, "iterations": options.iterations}
    if options.small:
        sizes = {"sizes": (200, 400), "iterations": 8, "counts": (1,)}
    for section in scale.tables(chosen, folder, **sizes):
        print(f"{section}\n", flush=True)
        sections.append(section)
    command = command_line("bench.growth", arguments)
    (results / "GROWTH.md").write_text(page("Growth of time and memory", command, start, sections))
    print(sections[0])
    shutil.rmtree(folder)


if __name__ == "__main__":
    exit_on_sigterm()
    main(sys.argv[1:])
