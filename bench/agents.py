"""Compare algorithms on the embedded agent task with three seeds: `python bench/agents.py FOLDER
[JOBS]`. About an hour on two CPU cores.

First trains the warm start, whose policy knows how to call the calculator and mostly forgets to,
then every algorithm from it with equal settings and an equal number of responses. A run is the
printed command; finished runs are not repeated, interrupted ones are resumed. Prints the table of
docs/environments.md and draws docs/agents.png: held-out accuracy against the tokens that were
sampled."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3)
TARGET = 0.8
"""Held-out accuracy whose cost is compared."""
WARM_START = "experiment=tiny_tools_warm_start"
COMMON = (
    "experiment=tiny_tools policy=hf ~policy.weights batch.prompts=16 batch.samples=16 optimizer.lr=3e-5 "
    "validation.every=1 trainer.max_iterations=16"
)
ALGORITHMS = {
    "ARPO": "algo=arpo branching.mode=probability branching.tau=0",
    "GRPO": "algo=grpo",
    "DAPO": "algo=dapo",
    "PPO": "algo=ppo",
}
COLORS = ("#dc2626", "#2563eb", "#16a34a", "#9333ea")


@dataclass(frozen=True)
class Curve:
    """What a run had sampled at each of its validations, and what it reached. Held-out responses
    are not counted."""

    tokens: Sequence[int]
    """Sampled tokens, without those that a response shares with the one it branches off from."""
    calls: Sequence[int]
    """Calls of tools, counted in the same way."""
    accuracy: Sequence[float]

    def first(self, target: float) -> int | None:
        """Return the index of the first of two validations in a row that reach the target; None if
        there is none."""
        return next(
            (i for i, (a, b) in enumerate(pairwise(self.accuracy)) if min(a, b) >= target), None
        )


def read_curve(run: Path) -> Curve:
    """Read the curve of a run from its metrics."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = accumulate(own(row, "response_tokens", "shared_tokens") for row in rows)
    calls = accumulate(own(row, "tool_calls", "shared_tool_calls") for row in rows)
    points = [
        (t, c, row["val/accuracy"])
        for t, c, row in zip(tokens, calls, rows, strict=True)
        if "val/accuracy" in row
    ]
    return Curve(*map(list, zip(*points, strict=True)))


def own(row: dict[str, Any], total: str, shared: str) -> int:
    """Return the sum over the responses of an iteration: what they have in all, without what they
    share."""
    num_responses = float(row.get("train/responses", 0))
    num_own = float(row.get(f"train/{total}", 0.0)) - float(row.get(f"train/{shared}", 0.0))
    return round(num_responses * num_own)


def command(algorithm: str, seed: int, folder: Path) -> list[str]:
    """Return the overrides of a run."""
    return [
        *ALGORITHMS[algorithm].split(),
        *COMMON.split(),
        f"policy.name={folder}/warm_start/export",
        f"seed={seed}",
        f"run_dir={folder}/{algorithm.lower()}-{seed}",
    ]


def run(overrides: Sequence[str], threads: int) -> None:
    """Run one command, or resume it if it was interrupted. Skips a finished run.

    Raises:
        subprocess.CalledProcessError: it failed; its output is beside its directory.
    """
    path = Path(
        next(word for word in overrides if word.startswith("run_dir=")).removeprefix("run_dir=")
    )
    summary = path / "summary.json"
    if summary.is_file() and json.loads(summary.read_text())["exit"] == "finished":
        return
    print("python train.py", *overrides, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        words = [sys.executable, str(ROOT / "train.py"), *overrides, "resume=auto"]
        subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, env=environment, check=True)


def table(curves: dict[str, list[Curve]]) -> str:
    """Return the comparison in Markdown: means over the seeds."""
    lines = [
        f"| | accuracy before | after | best | tokens to {TARGET} | calls to {TARGET} | all "
        "tokens | all calls |",
        "|---" * 8 + "|",
    ]
    for name, runs in curves.items():
        reached = [(curve, curve.first(TARGET)) for curve in runs]
        costs = [(curve.tokens[i], curve.calls[i]) for curve, i in reached if i is not None]
        to_target = (
            [f"{fmean(cost):,.0f}" for cost in zip(*costs, strict=True)]
            if len(costs) == len(runs)
            else [f"{len(costs)} of {len(runs)}"] * 2
        )
        accuracy = [
            f"{fmean(pick(curve.accuracy) for curve in runs):.3f}"
            for pick in (lambda a: a[0], lambda a: a[-1], max)
        ]
        totals = [
            f"{fmean(x):,.0f}"
            for x in ([curve.tokens[-1] for curve in runs], [curve.calls[-1] for curve in runs])
        ]
        lines.append("| " + " | ".join([name, *accuracy, *to_target, *totals]) + " |")
    return "\n".join(lines) + "\n"


def draw(curves: dict[str, list[Curve]], out: Path) -> None:
    """Plot accuracy against sampled tokens, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.4), dpi=130)
    for (name, runs), color in zip(curves.items(), COLORS, strict=True):
        for i, curve in enumerate(runs):
            axes.plot(
                curve.tokens,
                curve.accuracy,
                color=color,
                label=name if i == 0 else None,
                linewidth=1.2,
                alpha=0.8,
            )
    axes.axhline(TARGET, color="#94a3b8", linewidth=0.8, linestyle="--")
    axes.set(
        xlabel="sampled tokens", ylabel="held-out accuracy, greedy", ylim=(0, 1), xlim=(0, None)
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out)


def main(folder: Path, jobs: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    run([WARM_START, f"run_dir={folder}/warm_start"], threads)
    with ThreadPoolExecutor(jobs) as pool:
        words = [command(name, seed, folder) for seed in SEEDS for name in ALGORITHMS]
        for job in [pool.submit(run, each, threads) for each in words]:
            job.result()
    curves = {
        name: [read_curve(folder / f"{name.lower()}-{seed}") for seed in SEEDS]
        for name in ALGORITHMS
    }
    print(table(curves), end="")
    draw(curves, ROOT / "docs/agents.png")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
