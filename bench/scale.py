"""Start, iteration and memory against the number of rows of the data, the age of the run, and the
number of ranks: what must not grow.

    python -m bench.growth data run ranks [--rows N,N] [--iterations N]

Each point trains a random model of one layer, whose iteration is all overhead. `data`: fresh runs
on JSON Lines of different length. `run`: one long run, whose last quarter is held against the
second one (`bench.soak`). `ranks`: DDP on this machine with the same work for each rank."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.process import run_python
from bench.report import number, table
from bench.soak import soak
from bench.workloads import PATTERN

AXES = ("data", "run", "ranks")
ROWS = (1_000, 30_000, 300_000)
RANKS = (1, 2, 4)
ITERATIONS = 10_000
PROMPTS = 2
"""Prompts of an iteration on a rank."""


@dataclass(frozen=True)
class Run:
    """What was measured of a run."""

    start_s: float
    """Seconds of the process outside iterations: imports, data, the model, and its export."""
    iteration_s: float
    """Median seconds of an iteration, without the first."""
    other: float
    """Fraction of an iteration that no stage claims."""
    peak_bytes: float
    """Largest resident memory of all processes."""


def overrides(**changes: Any) -> list[str]:
    """Return the settings of a run whose iterations are short."""
    settings = {
        "algo": "dapo",
        "policy": "tiny",
        "policy.pretrained": "false",
        "policy.hidden_size": 16,
        "policy.num_layers": 1,
        "policy.context_length": 512,
        "sampling": "fixed",
        "reward": "regex",
        "reward.pattern": f"'{PATTERN}'",
        "batch.prompts": PROMPTS,
        "batch.samples": 2,
        "batch.minibatches": 1,
        "rollout.max_tokens": 4,
        "validation.every": "null",
        "logger": "none",
        **changes,
    }
    return [f"{name}={value}" for name, value in settings.items()]


def write_rows(path: Path, count: int) -> None:
    """Write `count` word problems of about 200 characters."""
    draw = random.Random(0)
    with path.open("w") as file:
        for i in range(count):
            hens, ducks, more = (draw.randrange(1000) for _ in range(3))
            prompt = (
                f"A farm has {hens} hens and {ducks} ducks, and {more} more birds arrive from the "
                f"village every day. How many birds are there after {i} days, if none of them "
                "leaves the farm before the end of the month?"
            )
            row = {"prompt": prompt, "answer": str(hens + ducks + more * i)}
            file.write(json.dumps(row) + "\n")


def measure(folder: Path, name: str, iterations: int, **changes: Any) -> Run:
    """Train in a fresh process."""
    run_dir = folder / name
    typed = overrides(**changes, **{"trainer.max_iterations": iterations, "run_dir": run_dir})
    wall_s, peak = run_python(["train.py", *typed], folder / f"{name}.log")
    rows = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "time/iteration_s" in row:
            rows.append(row)
    seconds = [row["time/iteration_s"] for row in rows]
    other = [row["time/other_s"] / row["time/iteration_s"] for row in rows[1:]]
    return Run(wall_s - sum(seconds), median(seconds[1:]), median(other), peak)


def data(folder: Path, sizes: Sequence[int], iterations: int = 12) -> Iterator[list[str]]:
    """Yield a row of the table for each number of rows of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        path = folder / f"{size}.jsonl"
        write_rows(path, size)
        source = {"data": "jsonl", "data.train": path, "data.num_val": 100}
        yield [f"{size:,} rows", *cells(measure(folder, f"data-{size}", iterations, **source))]
        path.unlink()


def ranks(folder: Path, counts: Sequence[int], iterations: int = 30) -> Iterator[list[str]]:
    """Yield a row of the table for each number of ranks."""
    for count in counts:
        changes: dict[str, Any] = {"batch.prompts": PROMPTS * count}
        if count > 1:
            changes |= {"trainer": "ddp", "trainer.devices": count, "trainer.accelerator": "cpu"}
        yield [f"{count} ranks", *cells(measure(folder, f"ranks-{count}", iterations, **changes))]


def cells(run: Run) -> list[str]:
    """Return the cells of a run in a table."""
    return [
        number(run.start_s),
        number(run.iteration_s * 1000),
        f"{run.other:.0%}",
        number(run.peak_bytes / 2**20),
    ]


def long_run(folder: Path, iterations: int) -> str:
    """Return the table of one long run: what it held in its second quarter and in its last one, and
    its files."""
    run_dir = folder / "long"
    medians = soak(run_dir, overrides(), iterations, pause_s=0.5)
    rows = []
    for name, (early, late) in medians.items():
        rows.append([name, number(early), number(late), f"{late / early:.3f}"])
    grown = table(["run", "second quarter", "last quarter", "ratio"], rows)
    return f"{grown}\n\n{files(run_dir)}"


def files(run_dir: Path) -> str:
    """Return the table of the files of a run directory, by the first part of their path."""
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for path in run_dir.rglob("*"):
        if path.is_file():
            top = path.relative_to(run_dir).parts[0]
            counts[top] = counts.get(top, 0) + 1
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    rows = [[top, str(counts[top]), number(sizes[top] / 1e6)] for top in sorted(sizes)]
    return table(["path", "files", "MB"], rows)


def tables(
    axes: Sequence[str],
    folder: Path,
    sizes: Sequence[int] = ROWS,
    iterations: int = ITERATIONS,
    counts: Sequence[int] = RANKS,
) -> Iterator[str]:
    """Yield the table of each of these axes."""
    head = ["start, s", "iteration, ms", "other", "peak, MB"]
    if "data" in axes:
        yield table(["data", *head], list(data(folder, sizes)))
    if "run" in axes:
        yield long_run(folder, iterations)
    if "ranks" in axes:
        yield table(["ranks", *head], list(ranks(folder, counts)))
