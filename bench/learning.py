"""Compare what this project and TRL learn from the same task with the same settings: `make
learning`.

    python -m bench.learning [--steps 1 4] [--seeds 1 2 3] [--iterations 200] [--out FOLDER]

Both sides train the embedded model on generated arithmetic, in fresh processes, here and TRL in
turn. Writes LEARNING.md, learning.json and learning.png to FOLDER (bench/, and docs/ for the
figure, without it)."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

from bench import ours
from bench.process import ROOT, exit_on_sigterm, run_python
from bench.report import command_line, noted, page, table
from bench.workloads import WORKLOADS, Workload, prepare
from rlmods.cli.evaluate import evaluate
from rlmods.data import Arithmetic
from rlmods.data.loader import PromptLoader
from rlmods.types import Prompt

LEARNING_RATES = {1: 2e-4, 4: 1e-4}
"""Learning rate by the number of optimizer steps of an iteration; 4 steps of 1e-4 are the defaults
of `algo=dapo`."""
STD_EPS = 1e-4
"""Added to the standard deviation of a group's rewards: TRL's constant."""
NUM_VAL = 2000
"""Held-out prompts for the greedy accuracy; its standard error is below 0.01."""
WINDOW = 10
"""Iterations of the moving average in the figure, on both sides."""
LAST = 20
"""Iterations at the end whose sampled accuracy is averaged."""
LEVEL = 0.05
"""Probability of calling any row of a table different if both sides have the same expectations."""
MARGIN = 0.05
"""Difference of accuracies below which the sides agree."""


@dataclass(frozen=True)
class Task:
    """Training of the embedded model on generated arithmetic, with 32 prompts x 8 responses of at
    most 16 tokens in an iteration."""

    steps: int
    """Optimizer steps of an iteration. With one the ratio is 1 everywhere; with more it is
    clipped."""
    iterations: int

    @property
    def workload(self) -> Workload:
        """Sizes of an iteration."""
        return replace(WORKLOADS["tiny"], warmup=0, iterations=self.iterations)

    @property
    def learning_rate(self) -> float:
        """Constant learning rate."""
        return LEARNING_RATES[self.steps]

    def prompts(self, seed: int) -> list[Prompt]:
        """Return the prompts of all iterations in the order in which `train.py seed=SEED` draws
        them."""
        loader = PromptLoader(Arithmetic(num_val=0)().train, self.workload.prompts, seed)
        return [loader.prompt_at(i) for i in range(self.iterations * self.workload.prompts)]

    def command(self, seed: int, model: Path, run_dir: Path) -> list[str]:
        """Return the arguments of Python that train on this project's side."""
        changes = {
            "policy": "hf",
            "policy.name": model,
            "data": "arithmetic",
            "data.num_val": 0,
            "reward": "accuracy",
            "batch.minibatches": self.steps,
            "advantage.eps": STD_EPS,
            "optimizer.lr": self.learning_rate,
            "seed": seed,
            "run_dir": run_dir,
        }
        return ours.command(ours.settings(self.workload) | changes)


@dataclass(frozen=True)
class Curve:
    """What one process learned."""

    side: str
    steps: int
    seed: int
    accuracy: Sequence[float]
    """Fraction of right responses among those sampled in each iteration."""
    greedy: float
    """Greedy accuracy of the trained model on held-out prompts."""

    @property
    def measures(self) -> dict[str, float]:
        """Summaries of the curve, by name."""
        return {
            f"sampled accuracy, last {LAST} iterations": mean(self.accuracy[-LAST:]),
            "sampled accuracy, all iterations (area under the curve)": mean(self.accuracy),
            f"greedy accuracy at the end, {NUM_VAL:,} held-out prompts": self.greedy,
        }


def greedy_accuracy(model: Path, workload: Workload) -> float:
    """Return the greedy accuracy of a model on held-out prompts, as `python -m rlmods.evaluate`
    measures it."""
    settings = [
        "data=arithmetic",
        f"data.num_val={NUM_VAL}",
        "reward=accuracy",
        f"rollout.max_tokens={workload.max_tokens}",
    ]
    return float(evaluate(str(model), settings)["val/accuracy"])


def train(side: str, task: Task, seed: int, model: Path, folder: Path) -> Curve:
    """Train in a fresh process and evaluate the trained model.

    Raises:
        RuntimeError: training failed, or has another number of iterations.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if side == "here":
        seconds, _ = run_python(task.command(seed, model, folder), folder.with_suffix(".log"))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        # not in those of alerts and validations
        accuracy = [row["train/accuracy"] for row in rows if "train/accuracy" in row]
    else:
        arguments = [
            "-m",
            "bench.trl_learning",
            json.dumps(asdict(task)),
            str(seed),
            str(model),
            str(folder),
        ]
        seconds, _ = run_python(arguments, folder.with_suffix(".log"))
        accuracy = [float(line) for line in (folder / "accuracy.jsonl").read_text().splitlines()]
    if len(accuracy) != task.iterations:
        raise RuntimeError(f"{folder}: {len(accuracy)} iterations instead of {task.iterations}")
    curve = Curve(
        side, task.steps, seed, accuracy, greedy_accuracy(folder / "export", task.workload)
    )
    summary = ", ".join(f"{value:.3f}" for value in curve.measures.values())
    print(f"{task.steps} steps, seed {seed}, {side}: {summary} ({seconds:.0f} s)", flush=True)
    return curve


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Compare two samples of at least two values each by Welch's test of equal means (Biometrika
    34, 1947).

    Returns:
        the p value, and the ends of the confidence interval of the difference of the means that
        misses the true one with probability `LEVEL`.
    """
    difference = mean(a) - mean(b)
    if not variance(a) + variance(b):
        return float(not difference), difference, difference
    with warnings.catch_warnings():
        # of one sample without variance
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        test = ttest_ind(a, b, equal_var=False)
    low, high = test.confidence_interval(1 - LEVEL)
    return float(test.pvalue), float(low), float(high)


def select(curves: Sequence[Curve], side: str, steps: int) -> list[Curve]:
    """Return the curves of a side with this number of steps."""
    return [curve for curve in curves if (curve.side, curve.steps) == (side, steps)]


def section(curves: Sequence[Curve], steps: int) -> str:
    """Return the section of one number of steps: a row for each measure, and whether the sides
    differ beyond the noise of seeds."""
    sides = {side: select(curves, side, steps) for side in ("here", "TRL")}
    names, rows = list(sides["here"][0].measures), []
    differing, unknown = list[str](), list[str]()
    for name in names:
        here, trl = ([curve.measures[name] for curve in found] for found in sides.values())
        p, low, high = welch(here, trl)
        cells = [f"{mean(values):.3f} ± {stdev(values):.3f}" for values in (here, trl)]
        difference = mean(here) - mean(trl)
        rows.append([name, *cells, f"{difference:+.3f} ({low:+.3f} to {high:+.3f})", f"{p:.2f}"])
        if p < LEVEL / len(names):
            differing.append(name)
        elif max(-low, high) > MARGIN:
            unknown.append(name)
    seeds = ", ".join(str(curve.seed) for curve in sides["here"])
    title = f"## {steps} optimizer step{'s' if steps > 1 else ''} of an iteration"
    count = len(sides["here"][0].accuracy)
    setting = (
        f"Learning rate {LEARNING_RATES[steps]:g}, {count} iterations, seeds {seeds}: mean ± "
        "standard deviation over seeds."
    )
    head = ["measure", "here", "TRL", f"difference ({1 - LEVEL:.0%} interval)", "p"]
    return "\n\n".join([title, setting, table(head, rows), verdict(differing, unknown)])


def verdict(differing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return what the intervals say of the measures that differ beyond noise, and of those whose
    interval leaves `MARGIN`."""
    if differing:
        return f"**The sides differ: {'; '.join(differing)}.**"
    if unknown:
        return (
            "No difference beyond noise, but more seeds are needed for intervals within "
            f"±{MARGIN}: {'; '.join(unknown)}."
        )
    return f"The sides agree: every interval lies within ±{MARGIN}."


def smooth(
    values: Sequence[float], window: int = WINDOW
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the last iteration of each window, counted from 1, and the mean over the window."""
    window = min(window, len(values))
    means = np.convolve(values, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(values) + 1), means


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Plot the sampled accuracy of both sides: mean over seeds, and the range from the lowest to
    the highest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(curve.steps for curve in curves))
    figure, panels = plt.subplots(
        1, len(tasks), figsize=(4.6 * len(tasks), 3.4), dpi=130, sharey=True, squeeze=False
    )
    for panel, steps in zip(panels[0], tasks, strict=True):
        for side, color in (("here", "#2563eb"), ("TRL", "#ea580c")):
            smoothed = [smooth(curve.accuracy) for curve in select(curves, side, steps)]
            x, y = smoothed[0][0], np.stack([means for _, means in smoothed])
            panel.plot(x, y.mean(0), color=color, label=side, linewidth=1.6)
            panel.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.2, linewidth=0)
        panel.set(
            xlabel="iteration",
            xlim=(0, None),
            title=f"{steps} optimizer step{'s' if steps > 1 else ''} of an iteration",
        )
        panel.title.set_fontsize(10)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set(ylabel=f"sampled accuracy, mean of {WINDOW} iterations")
    panels[0, 0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.learning", description="Compare what this project and TRL learn."
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        choices=LEARNING_RATES,
        default=[1, 4],
        help="optimizer steps of an iteration",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="at least two")
    parser.add_argument("--iterations", type=int, default=200, help="of each process")
    parser.add_argument(
        "--out", type=Path, help="folder of LEARNING.md, learning.json and learning.png"
    )
    options = parser.parse_args(arguments)
    if len(set(options.seeds)) < 2:
        parser.error("the spread needs at least two seeds, as in --seeds 1 2 3")
    if find_spec("trl") is None:
        parser.error(
            "TRL is not installed: type make -C bench learning, which installs it into .venv-bench"
        )
    return options


def write(
    curves: Sequence[Curve],
    steps: Sequence[int],
    start: Mapping[str, str],
    command: str,
    results: Path,
    plot: Path,
) -> None:
    """Write the table and the figure."""
    draw(curves, plot / "learning.png")
    figure = (
        f"![Sampled accuracy over iterations]({os.path.relpath(plot / 'learning.png', results)})"
    )
    sections = [figure, *(section(curves, count) for count in steps)]
    (results / "LEARNING.md").write_text(page("Learning beside TRL", command, start, sections))


def main(arguments: Sequence[str]) -> None:
    """Train both sides with every seed, and write and print the results."""
    options, curves = parse(arguments), list[Curve]()
    # which changes no curve
    start = {name: value for name, value in noted().items() if name != "Load average before"}
    folder = ROOT / "runs" / "bench" / time.strftime("learning-%Y%m%d-%H%M%S")
    results, plot = ((options.out or ROOT / place).resolve() for place in ("bench", "docs"))
    for path in (results, plot):
        path.mkdir(parents=True, exist_ok=True)
    for steps in options.steps:
        task = Task(steps, options.iterations)
        model = prepare(task.workload, folder).model
        start |= {"Greedy accuracy before training": f"{greedy_accuracy(model, task.workload):.3f}"}
        for seed in options.seeds:
            for side in ("here", "TRL"):
                curves.append(train(side, task, seed, model, folder / f"{side}-{steps}-{seed}"))
                (results / "learning.json").write_text(
                    json.dumps({**start, "curves": [asdict(curve) for curve in curves]}, indent=1)
                    + "\n"
                )
    write(curves, options.steps, start, command_line("bench.learning", arguments), results, plot)
    print((results / "LEARNING.md").read_text())
    shutil.rmtree(folder)


if __name__ == "__main__":
    exit_on_sigterm()
    main(sys.argv[1:])
