"""Compare runs: `python -m rlmods.compare DIR... [--metric val/accuracy] [--last 1] [--baseline
NAME]`.

Runs in and below the folders that differ in their seed only are one group. Every group is compared
with the baseline, the first one, over the seeds that both have; a last line compares them over the
prompts of the last validation. `--json` prints the figures.

`--sequential` trains both groups with more seeds until the difference is decided or `--max-seeds`
are used: the error rate stays at 5 % although there is a test after every seed (docs/comparing.md).
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlmods.cli.command import command
from rlmods.config.received import TO_CONFIRM
from rlmods.errors import UserError, suggest
from rlmods.lab.saved import Group, SavedRun, find_runs, group_runs
from rlmods.lab.statistics import (
    Interval,
    SequentialTest,
    bootstrap_interval,
    holm,
    mean_interval,
    paired,
    paired_t_test,
)
from rlmods.run.name import member_name
from rlmods.run.printable import one_line

LOWER_IS_BETTER = (
    "kl",
    "loss",
    "timeouts",
    "errors",
    "truncated",
    "time/",
    "memory",
    "gap",
    "response_tokens",
)
"""Parts of the names of metrics of which less is better."""
ALPHA = 0.05
OVERRIDE = re.compile(r"[+~]*(?!hydra\b)[A-Za-z_][\w.@/-]*(=.*)?", re.DOTALL)
"""Overrides that `--sequential` repeats. Options of the command line (`--multirun`) and settings of
Hydra are not among them."""
REACHING = (*TO_CONFIRM, "tools", "tracking_uri")
"""Settings that reach beyond the process, by the last part of their names. `--sequential` repeats
them with `--trust` only."""
FOLDER = Path(__file__).resolve().parent
"""Folder of the commands."""


@dataclass(frozen=True)
class Comparison:
    """A group beside the baseline."""

    baseline: str
    name: str
    metric: str
    baseline_mean: Interval
    mean: Interval
    difference: Interval
    """Of the results of the seeds that both have."""
    seeds: list[int | str]
    unused: list[int | str]
    """Seeds that only one of the two has."""
    p_value: float
    """Adjusted for the number of comparisons (Holm)."""
    num_comparisons: int
    unfinished: list[str]
    """Compared runs that have not finished, and how they ended: the result is their last value so
    far."""
    different_iterations: list[str]
    """Seeds whose two runs have their last value at different iterations, and these iterations."""
    prompts: Interval | None
    """Difference by prompt, averaged over the seeds; None where the last validations have no
    prompts in common."""

    @property
    def better(self) -> bool | None:
        """True if the group is better than the baseline, False if it is worse, None if the seeds do
        not decide it."""
        if self.p_value >= ALPHA or not self.difference.is_bounded or self.difference.mean == 0:
            return None
        return (self.difference.mean > 0) == higher_is_better(self.metric)


def compare(
    groups: Sequence[Group], metric: str, last: int = 1, baseline: str | None = None
) -> list[Comparison]:
    """Return a comparison of each group with the baseline.

    Raises:
        UserError: there is one group only, no such baseline, a group without the metric, or without
        a seed in common with the baseline.
    """
    if len(groups) < 2:
        runs = ", ".join(str(run.path) for run in groups[0].runs[:3])
        found = (
            "there is one run only"
            if len(groups[0].runs) == 1
            else "all runs have the same settings apart from the seed"
        )
        raise UserError(f"{found} ({runs}): give runs with other parts too")
    names = [group.name for group in groups]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline}: {suggest(baseline, names)}")
    first = groups[names.index(baseline) if baseline is not None else 0]
    results = {group.name: group.results(metric, last) for group in groups}
    for group in groups:
        if not results[group.name]:
            known = sorted(
                {
                    key
                    for run in group.runs
                    for row in run.metrics
                    for key in row
                    if key.startswith("val/")
                }
            )
            raise UserError(
                f"--metric {metric}: {group.runs[0].path} has no value of it; "
                f"{suggest(metric, known)}"
            )
    others = [group for group in groups if group is not first]
    differences = [_paired(results, first.name, other.name) for other in others]
    adjusted = holm([paired_t_test(difference) for difference in differences])
    return [
        Comparison(
            first.name,
            other.name,
            metric,
            mean_interval(list(results[first.name].values())),
            mean_interval(list(results[other.name].values())),
            mean_interval(difference),
            [seed for seed in results[first.name] if seed in results[other.name]],
            sorted(results[first.name].keys() ^ results[other.name].keys(), key=str),
            p_value,
            len(others),
            _unfinished(first, other),
            _different_iterations(first, other, metric),
            by_prompt(first, other),
        )
        for other, difference, p_value in zip(others, differences, adjusted, strict=True)
    ]


def _paired(results: Mapping[str, dict[int | str, float]], a: str, b: str) -> list[float]:
    try:
        return paired(results[a], results[b])
    except ValueError as error:
        seeds = ",".join(map(str, sorted(results[a], key=str)))
        raise UserError(
            f"{a} and {b} have no seed in common: train {b} with seed={seeds} too"
        ) from error


def _unfinished(a: Group, b: Group) -> list[str]:
    """Return the runs of common seeds that have not finished, and how they ended."""
    common = {run.seed for run in a.runs} & {run.seed for run in b.runs}
    runs = [
        run
        for group in (a, b)
        for run in group.runs
        if run.seed in common and run.exit != "finished"
    ]
    return [
        f"{run.path} ({run.exit}, iteration {max((i for i, _ in run.series('wall_s')), default=0)})"
        for run in runs
    ]


def _different_iterations(a: Group, b: Group, metric: str) -> list[str]:
    """Return the seeds whose two runs have their last value of the metric at different iterations,
    and these iterations."""
    last = [
        {run.seed: series[-1][0] for run in group.runs if (series := run.series(metric))}
        for group in (a, b)
    ]
    return [
        f"seed={seed}: {last[0][seed]} and {last[1][seed]}"
        for seed in last[0]
        if last[0][seed] != last[1].get(seed, last[0][seed])
    ]


def by_prompt(a: Group, b: Group) -> Interval | None:
    """Return the bootstrap interval over prompts of `b - a`, where each prompt has the mean of its
    correctness over the common seeds."""
    seeds = {run.seed: run for run in a.runs}
    pairs = [(seeds[run.seed].by_prompt(), run.by_prompt()) for run in b.runs if run.seed in seeds]
    values: dict[str, list[float]] = {}
    for before, after in pairs:
        for name in before.keys() & after.keys():
            values.setdefault(name, []).append(after[name] - before[name])
    return (
        bootstrap_interval([sum(x) / len(x) for _, x in sorted(values.items())]) if values else None
    )


def higher_is_better(metric: str) -> bool:
    """Return False for metrics such as losses and times."""
    return "per_s" in metric or not any(name in metric for name in LOWER_IS_BETTER)


def lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the comparisons in plain words."""
    first = comparisons[0]
    text = [f"{first.metric}, baseline {one_line(first.baseline)}: {_mean(first.baseline_mean)}"]
    for x in comparisons:
        verdict = {True: "better than", False: "worse than", None: "not decided against"}[x.better]
        text += [
            "",
            f"{one_line(x.name)}: {_mean(x.mean)}",
            f"  {verdict} the baseline: {_difference(x.difference, len(x.seeds))}",
        ]
        if x.difference.is_bounded:
            adjustment = (
                f", adjusted for {x.num_comparisons} comparisons (Holm)"
                if x.num_comparisons > 1
                else ""
            )
            text.append(f"  p = {x.p_value:.3g} (paired t test over seeds{adjustment})")
        else:
            reason = "One common seed does not show how much seeds differ"
            if len(x.seeds) > 1:
                reason = "Equal differences show no spread of seeds"
            text.append(f"  {reason}: train both with more, seed=1,2,3,4,5.")
        if x.unused:
            text.append(
                "  Not used, because only one of the two has them: "
                f"seed={','.join(map(str, x.unused))}"
            )
        if x.unfinished:
            text.append(
                "  Not finished, the last values so far are compared: "
                f"{one_line(', '.join(x.unfinished))}"
            )
        if x.different_iterations:
            text.append(
                "  Last values of the baseline and of this group at different iterations: "
                f"{one_line(', '.join(x.different_iterations))}"
            )
        if x.prompts is not None:
            p = x.prompts
            bounds = f", 95 % from {p.low:+.4f} to {p.high:+.4f}" if p.is_bounded else ""
            text.append(
                f"  By prompt, for these seeds: {p.mean:+.4f}{bounds} (bootstrap over "
                f"{p.num_values} prompts)"
            )
    return text


def _mean(interval: Interval) -> str:
    spread = f", 95 % from {interval.low:.4f} to {interval.high:.4f}" if interval.is_bounded else ""
    return (
        f"{interval.mean:.4f}{spread} ({interval.num_values} seed{'s' * (interval.num_values > 1)})"
    )


def _difference(interval: Interval, num_seeds: int) -> str:
    bounds = (
        f", 95 % from {interval.low:+.4f} to {interval.high:+.4f}" if interval.is_bounded else ""
    )
    return f"{interval.mean:+.4f}{bounds} (paired by {num_seeds} seed{'s' * (num_seeds > 1)})"


@dataclass(frozen=True)
class Sequential:
    """Adds seeds to two groups until a `SequentialTest` decides."""

    test: SequentialTest
    metric: str
    last: int
    train: Callable[[SavedRun, int], SavedRun]
    """Trains a run of the settings of another with a seed, or returns it if it is finished."""

    def __call__(self, a: Group, b: Group) -> tuple[Interval, list[int]]:
        """Return the interval of `b - a` after the last test, and the seeds that were used.

        Raises:
            UserError: a run fails or lacks the metric.
        """
        seeds = self.seeds(a, b)
        differences: list[float] = []
        for n, seed in enumerate(seeds, 1):
            values = [self._result(group, seed) for group in (a, b)]
            differences.append(values[1] - values[0])
            interval = self.test(differences)
            bounds = (
                f", from {interval.low:+.4f} to {interval.high:+.4f}" if interval.is_bounded else ""
            )
            print(
                f"{n} of at most {self.test.last} seeds: {interval.mean:+.4f}{bounds}", flush=True
            )
            if n >= self.test.first and self.test.decides(differences):
                return interval, seeds[:n]
        raise AssertionError("the last test decides")

    def seeds(self, a: Group, b: Group) -> list[int]:
        """Return the seeds in the order of the tests: those of the runs that are not in 1, ...,
        `test.last`, then these. Added runs do not change it, so that the same command goes on with
        the same tests."""
        added = range(1, self.test.last + 1)
        others = {
            run.seed
            for group in (a, b)
            for run in group.runs
            if isinstance(run.seed, int) and run.seed not in added
        }
        return [*sorted(others), *added][: self.test.last]

    def _result(self, group: Group, seed: int) -> float:
        run = next((run for run in group.runs if run.seed == seed and run.exit == "finished"), None)
        run = run or self.train(
            next((run for run in group.runs if run.overrides is not None), group.runs[0]), seed
        )
        if (value := run.result(self.metric, self.last)) is None:
            raise UserError(f"--metric {self.metric}: {run.path} has no value of it")
        return value


def train(like: SavedRun, seed: int, *, trust: bool = False) -> SavedRun:
    """Train the command of a run with another seed, in a folder beside it; continue it if it was
    interrupted. `trust`: also if it has settings that reach beyond the process (`REACHING`).

    Raises:
        UserError: the run has not recorded its command, the file for the output of training is a
        link, or training fails.
        KeyboardInterrupt: training was interrupted.
    """
    if like.overrides is None:
        raise UserError(
            f"{like.path}: its summary.json has no overrides, as of a run that has not ended; "
            "train more seeds by hand: seed=1,2,3"
        )
    if unsafe := [
        x for x in like.overrides if not OVERRIDE.fullmatch(x) or "_target_" in x or "${" in x
    ]:
        raise UserError(
            f"{like.path}: summary.json has the override {one_line(unsafe[0])}; train more "
            "seeds by hand: seed=1,2,3"
        )
    reaching = [x for x in like.overrides if _reaches(x)]
    if reaching and not trust:
        problem = f"its command has {one_line(reaching[0])}, which reaches beyond the process"
        raise UserError(f"{like.path}: {problem}: if you trust it, type --trust")
    kept = [
        x
        for x in like.overrides
        if x.lstrip("+~").split("=")[0] not in ("seed", "run_dir", "resume")
    ]
    overrides = [*kept, f"seed={seed}"]
    folder = like.path.parent / member_name(overrides)
    run = SavedRun(folder)
    if run.exit == "finished":
        return run
    words = [
        sys.executable,
        str(FOLDER / "train.py"),
        *overrides,
        f"run_dir='{folder.absolute()}'",
        "resume=auto",
    ]
    print(f"training {one_line(shlex.join(['train.py', *overrides]))}", flush=True)
    log = like.path.parent / f".{folder.name}.log"
    if log.is_symlink():
        raise UserError(
            f"{log}: is a link, and the output of training would be written to "
            f"{log.resolve()}: delete it"
        )
    with log.open("ab") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        with forward_signals(process) as received:
            status = process.wait()
    if received or status in (75, 130):
        raise KeyboardInterrupt
    if status:
        end = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
        raise UserError(f"training failed: {one_line(''.join(end))} (all of it is in {log})")
    return SavedRun(folder)


def _reaches(override: str) -> bool:
    """Return whether an override has a setting of `REACHING`: in its key
    (`environment.tools.0=...`), or in a mapping that is its value."""
    key, _, value = override.partition("=")
    names = re.split(r"[.@]", key.lstrip("+~")) + (
        re.findall(r"\w+", value) if "{" in value else []
    )
    return any(name in REACHING or (names[0] == "callbacks" and name == "path") for name in names)


@contextmanager
def forward_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Send Ctrl-C and SIGTERM to a training run, which saves and ends, instead of ending this
    process. Yields the signals received.

    The run has to be in another session: a terminal sends Ctrl-C to all processes of its session,
    and the second one ends a run without saving."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        process.send_signal(number)

    previous = {
        number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.compare",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, or a folder of runs"
    )
    parser.add_argument(
        "--metric", default="val/accuracy", help="metric of metrics.jsonl; default: val/accuracy"
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
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument(
        "--sequential", action="store_true", help="train more seeds until the difference is decided"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="repeat commands with settings such as url and tools, which reach further",
    )
    parser.add_argument(
        "--min-seeds",
        type=int,
        default=4,
        help="seeds before the first test of --sequential; default: 4",
    )
    parser.add_argument(
        "--max-seeds",
        type=int,
        default=10,
        help="seeds of the last test of --sequential; default: 10",
    )
    return parser.parse_args(arguments)


def run(arguments: argparse.Namespace) -> dict[str, Any] | list[dict[str, Any]] | str:
    """Return the output of the command."""
    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: must be at least 1")
    groups = group_runs(find_runs(arguments.folders))
    if not arguments.sequential:
        found = compare(groups, arguments.metric, arguments.last, arguments.baseline)
        return (
            [asdict(x) | {"better": x.better} for x in found]
            if arguments.json
            else "\n".join(lines(found))
        )
    if len(groups) != 2:
        raise UserError(
            f"--sequential compares two groups, not {len(groups)} "
            f"({', '.join(group.name for group in groups)})"
        )
    names = [group.name for group in groups]
    if arguments.baseline is not None and arguments.baseline not in names:
        raise UserError(f"--baseline {arguments.baseline}: {suggest(arguments.baseline, names)}")
    a, b = groups if arguments.baseline in (None, names[0]) else groups[::-1]
    try:
        test = SequentialTest(arguments.min_seeds, arguments.max_seeds, ALPHA)
    except ValueError as error:
        raise UserError(
            f"--min-seeds {arguments.min_seeds} --max-seeds {arguments.max_seeds}: {error}"
        ) from error
    interval, seeds = Sequential(
        test, arguments.metric, arguments.last, partial(train, trust=arguments.trust)
    )(a, b)
    verdict = "not decided against"
    if 0.0 not in interval:
        verdict = (
            "better than"
            if (interval.mean > 0) == higher_is_better(arguments.metric)
            else "worse than"
        )
    if arguments.json:
        return {
            "baseline": a.name,
            "name": b.name,
            "difference": asdict(interval),
            "seeds": seeds,
            "verdict": verdict,
        }
    return (
        f"{one_line(b.name)} is {verdict} {one_line(a.name)} in {arguments.metric}: "
        f"{interval.mean:+.4f}, "
        f"from {interval.low:+.4f} to {interval.high:+.4f}\n"
        f"({len(seeds)} seeds; the tests after {test.first} to {test.last} seeds together err "
        f"with a probability of {ALPHA:.0%})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    again = "interrupted: finished seeds are kept; run the same command again to continue"
    command(["compare"], None, lambda: run(parsed), indent=2, interrupt_message=again)


if __name__ == "__main__":
    main()
