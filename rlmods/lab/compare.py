"""Compare runs: `python -m rlmods.compare DIR... [--metric val/accuracy] [--last 1] [--baseline
NAME]`.

Runs in and below the folders that differ in their seed only are one group. Every group is compared
with the baseline, the first one, over the seeds that both have; a last line compares them over the
prompts of the last validation. `--json` prints the figures.

`--sequential` trains both groups with more seeds until the difference is decided or `--max-seeds`
are used: the error rate stays at 5 % although there is a test after every seed (docs/comparing.md).
`--power` prints which differences more seeds would show, also of a change that is not tried yet.
"""

import argparse
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from rlmods.errors import Parser, UserError, counted, one_line_errors, suggest
from rlmods.lab.groups import Group, add_arguments, find_runs, group_runs
from rlmods.lab.sequential import decide, train
from rlmods.lab.statistics import (
    ALPHA,
    MAX_PAIRS,
    PROBABILITY,
    Interval,
    SequentialTest,
    adjusted_tests,
    bootstrap_interval,
    detectable_effect,
    mean_interval,
    num_pairs_needed,
    paired,
)
from rlmods.run.files import dumps

HIGHER_IS_BETTER = re.compile(
    r"(train|val(/[^/]+)?)/(reward|gold_reward|accuracy|(mean|pass|maj)@\d+"
    r"|(pair|step|first_error)_accuracy)(/|$)"
)
"""More of these metrics is better: of all prompts, of a set and by source."""
FAILURES = re.compile(r"((train|val(/[^/]+)?)/)?reward/[^/]+/(timeouts|errors)$|(judge|time)/.*")
"""Failures of grading and judging, and seconds."""
LOWER_IS_BETTER = {
    *("kl", "kl_ref", "kl_old", "kl_teacher", "kl_update", "loss", "value_loss", "ptx_loss"),
    *("router_aux_loss", "clip_fraction/low", "clip_fraction/high", "value_clip_fraction"),
    *("ratio_max", "grad_norm", "sampler_logprob_gap", "ahead_logprob_gap"),
    *("correction_masked", "correction_truncated", "nonfinite_steps", "skipped_steps"),
    "overflow_steps",
    *("early_stop", "unscored_fraction", "greedy_unscored_fraction", "all_wrong_fraction"),
    *("zero_advantage_fraction", "flat_group_fraction", "duplicate_fraction", "dropped_groups"),
    *("surplus_groups", "short_of_groups", "draws", "stale_fraction", "staleness_max"),
    *("replayed_fraction", "truncated_fraction", "cut_fraction", "response_tokens"),
    *("malformed_calls", "tool_errors", "tool_s", "rejected_logprob", "calibration"),
    *("peak_memory_mb", "reward_model/loss"),
}
"""Less of these metrics is better. Names are without the phase and the set."""


MIN_DEVIATION = 1e-12
"""Standard deviation that is due to rounding."""


Results: TypeAlias = dict[int | str, float]
"""Result of each run of a group, by seed."""


@dataclass(frozen=True)
class Comparison:
    """A group beside the baseline."""

    baseline: str
    name: str
    metric: str
    baseline_mean: Interval
    mean: Interval
    difference: Interval
    """Difference of the results of the seeds that both have."""
    seeds: list[int | str]
    unused: list[int | str]
    """Seeds that only one of the two has."""
    p_value: float | None
    """Adjusted for the number of comparisons (Holm). None if the seeds show no spread."""
    num_comparisons: int
    unfinished: list[str]
    """Compared runs that have not finished, and how they ended: the result is their last value so
    far."""
    different_iterations: list[str]
    """Seeds whose two runs have their last value at different iterations, and these iterations."""
    prompts: Interval | None
    """Difference of greedy correctness by prompt, averaged over the seeds; None where the last
    validations have no prompts in common."""

    @property
    def better(self) -> bool | None:
        """True if the group is better than the baseline, False if it is worse, None if the seeds do
        not decide it."""
        if self.p_value is None or self.p_value >= ALPHA or self.difference.mean == 0:
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
    first = find_baseline(groups, baseline)
    _check_other_groups(groups)
    results = _results(groups, metric, last)
    own = results[first.name]
    others = [group for group in groups if group is not first]
    tested = adjusted_tests([_paired(first, other, results) for other in others])
    comparisons = []
    for other, (difference, p_value) in zip(others, tested, strict=True):
        found_there = results[other.name]
        seeds = [seed for seed in own if seed in found_there]
        comparisons.append(
            Comparison(
                baseline=first.name,
                name=other.name,
                metric=metric,
                baseline_mean=mean_interval(list(own.values())),
                mean=mean_interval(list(found_there.values())),
                difference=difference,
                seeds=seeds,
                unused=sorted(own.keys() ^ found_there.keys(), key=str),
                p_value=p_value,
                num_comparisons=len(others),
                unfinished=_unfinished(first, other),
                different_iterations=_different_iterations(first, other, seeds, metric),
                prompts=by_prompt(first, other),
            )
        )
    return comparisons


def comparable(
    groups: Sequence[Group], metric: str, last: int, baseline: str | None
) -> list[Comparison]:
    """Return the comparisons with the baseline of the groups that have a seed in common with it.

    Raises:
        UserError: no such baseline.
    """
    results = {group.name: group.results(metric, last) for group in groups}
    with_metric = [group for group in groups if results[group.name]]
    if not with_metric:
        return []
    first = find_baseline(with_metric, baseline)
    seeds = results[first.name].keys()
    others = [group for group in with_metric if seeds & results[group.name].keys()]
    return compare(others, metric, last, first.name) if len(others) > 1 else []


def _results(groups: Sequence[Group], metric: str, last: int) -> dict[str, Results]:
    """Return the results of each group by its name.

    Raises:
        UserError: a group without the metric.
    """
    results = {group.name: group.results(metric, last) for group in groups}
    for group in groups:
        if not results[group.name]:
            raise no_value(group, metric)
    return results


def _check_other_groups(groups: Sequence[Group]) -> None:
    """
    Raises:
        UserError: there is one group only.
    """
    if len(groups) == 1:
        runs = ", ".join(str(run.path) for run in groups[0].runs[:3])
        found = "all runs have the same settings apart from the seed"
        if len(groups[0].runs) == 1:
            found = "there is one run only"
        raise UserError(f"{found} ({runs}): give runs with other parts too")


def find_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """Return the group of this name, or with a run of this path; the first one for None.

    Raises:
        UserError: there is no such group.
    """
    for group in groups:
        if name is None or name == group.name or name in [str(run.path) for run in group.runs]:
            return group
    known = [group.name for group in groups]
    raise UserError(f"--baseline {name}: no such group: {suggest(str(name), known)}")


def no_value(group: Group, metric: str) -> UserError:
    """Return the error for a metric that the runs of a group lack."""
    run = group.runs[0]
    known = {key for row in run.metrics for key in row if key.startswith("val/")}
    return UserError(
        f"--metric {metric}: {run.path} has no value of it; {suggest(metric, sorted(known))}"
    )


def _paired(a: Group, b: Group, results: Mapping[str, Results]) -> list[float]:
    differences = paired(results[a.name], results[b.name])
    if not differences:
        seeds = ",".join(map(str, sorted(results[a.name], key=str)))
        raise UserError(
            f"{a.name} and {b.name} have no seed in common: train {b.name} with seed={seeds} too"
        )
    return differences


def _unfinished(a: Group, b: Group) -> list[str]:
    common = a.by_seed.keys() & b.by_seed.keys()
    return [
        f"{run.path} ({run.exit}, iteration {run.iteration})"
        for run in (*a.runs, *b.runs)
        if run.seed in common and run.exit != "finished"
    ]


def _different_iterations(a: Group, b: Group, seeds: Sequence[int | str], metric: str) -> list[str]:
    """Return the seeds whose two runs have their last value of the metric at different iterations,
    and these iterations."""
    found = []
    for seed in seeds:
        ends = [group.by_seed[seed].series(metric)[-1][0] for group in (a, b)]
        if ends[0] != ends[1]:
            found.append(f"seed={seed}: {ends[0]} and {ends[1]}")
    return found


def by_prompt(a: Group, b: Group) -> Interval | None:
    """Return the bootstrap interval over prompts of `b - a`, where each prompt has the mean of its
    correctness over the common seeds."""
    values: dict[str, list[float]] = {}
    for seed, run in b.by_seed.items():
        before = a.by_seed[seed].by_prompt() if seed in a.by_seed else {}
        for name, correct in run.by_prompt().items():
            if name in before:
                values.setdefault(name, []).append(correct - before[name])
    means = [sum(values[name]) / len(values[name]) for name in sorted(values)]
    return bootstrap_interval(means) if means else None


def higher_is_better(metric: str) -> bool:
    """Return False for metrics such as losses and times, by the tables above."""
    if FAILURES.match(metric):
        return False
    if HIGHER_IS_BETTER.match(metric):
        return True
    _, _, name = metric.partition("/")
    _, _, of_set = name.partition("/")
    return LOWER_IS_BETTER.isdisjoint((name, of_set if metric.startswith("val/") else name))


def lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the comparisons in plain words."""
    first = comparisons[0]
    text = [f"{first.metric}, baseline {first.baseline}: {_mean(first.baseline_mean)}"]
    for comparison in comparisons:
        text += ["", *_comparison_lines(comparison)]
    return text


def _comparison_lines(x: Comparison) -> list[str]:
    verdict = {True: "better than", False: "worse than", None: "not decided against"}[x.better]
    pairs = f"paired by {counted(len(x.seeds), 'seed')}"
    text = [
        f"{x.name}: {_mean(x.mean)}",
        f"  {verdict} the baseline: {with_bounds(x.difference, '+.4f')} ({pairs})",
    ]
    if x.p_value is not None:
        adjustment = ""
        if x.num_comparisons > 1:
            adjustment = f", adjusted for {x.num_comparisons} comparisons (Holm)"
        text.append(f"  p = {x.p_value:.3g} (paired t test over seeds{adjustment})")
    else:
        reason = "One common seed does not show how much seeds differ"
        if len(x.seeds) > 1:
            reason = "Equal differences show no spread of seeds"
        text.append(f"  {reason}: train both with more, seed=1,2,3,4,5.")
    if x.unused:
        seeds = ",".join(map(str, x.unused))
        text.append(f"  Not used, because only one of the two has them: seed={seeds}")
    if x.unfinished:
        runs = ", ".join(x.unfinished)
        text.append(f"  Not finished, the last values so far are compared: {runs}")
    if x.different_iterations:
        text.append(
            "  Last values of the baseline and of this group at different iterations: "
            f"{', '.join(x.different_iterations)}"
        )
    if x.prompts is not None:
        text.append(
            f"  Greedy accuracy by prompt, for these seeds: {with_bounds(x.prompts, '+.4f')} "
            f"(bootstrap over {counted(x.prompts.num_values, 'prompt')})"
        )
    return text


def power_lines(groups: Sequence[Group], metric: str, last: int, baseline: str | None) -> list[str]:
    """Return which differences more seeds would show. A single group says what to expect of a
    change that it is compared with.

    Raises:
        UserError: a group with one seed, or without the metric.
    """
    first = find_baseline(groups, baseline)
    results = _results(groups, metric, last)
    others = [group for group in groups if group is not first]
    alpha = ALPHA / max(1, len(others))
    text = [f"{metric}: differences seen with probability {PROBABILITY:g} at p < {ALPHA:g}"]
    if len(others) > 1:
        text[0] += f", adjusted for {len(others)} comparisons"
    if not others:
        values = list(results[first.name].values())
        text.append(f"a change of {first.name}, if its seeds vary as much and independently:")
        return text + _power_of(values, math.sqrt(2), 0.0, alpha)
    for other in others:
        differences = _paired(first, other, results)
        text.append(f"{other.name} against {first.name}:")
        text += _power_of(differences, 1.0, float(np.mean(differences)), alpha)
    return text


def _power_of(values: Sequence[float], factor: float, effect: float, alpha: float) -> list[str]:
    """Return which differences are seen if a pair of seeds varies `factor` times as much as
    `values`."""
    if len(values) < 2:
        raise UserError("--power: one seed does not show how much seeds differ: train seed=1,2,3")
    deviation = factor * float(np.std(values, ddof=1))
    if deviation < MIN_DEVIATION:
        raise UserError("--power: equal values show no spread of seeds: train more, seed=1,2,3,4,5")
    uncertainty = 1 / math.sqrt(2 * (len(values) - 1))
    text = [
        f"  standard deviation of the difference of a pair: {deviation:.4g}, "
        f"standard error {uncertainty:.0%} from {counted(len(values), 'seed')}"
    ]
    for num_pairs in (3, 5, 10, 20):
        seen = deviation * detectable_effect(num_pairs, alpha=alpha)
        text.append(f"  {num_pairs:>2} seeds: {seen:.4g}")
    if effect and deviation:
        needed = num_pairs_needed(abs(effect) / deviation, alpha=alpha)
        seeds = f"more than {MAX_PAIRS}" if needed is None else str(needed)
        text.append(f"  the difference so far, {effect:+.4g}, if it is the true one: {seeds} seeds")
    return text


def with_bounds(interval: Interval, form: str) -> str:
    """Return the mean, and the bounds if there are any."""
    bounds = f", 95 % from {interval.low:{form}} to {interval.high:{form}}"
    return f"{interval.mean:{form}}{bounds if interval.is_bounded else ''}"


def _mean(interval: Interval) -> str:
    return f"{with_bounds(interval, '.4f')} ({counted(interval.num_values, 'seed')})"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = Parser("compare", __doc__)
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument(
        "--power", action="store_true", help="print which differences more seeds would show"
    )
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


def run(arguments: argparse.Namespace) -> str:
    """Return the output of the command."""
    groups = group_runs(find_runs(arguments.folders))
    if arguments.power and (arguments.sequential or arguments.json):
        raise UserError("--power trains nothing and prints text: type it without other actions")
    if arguments.sequential:
        return _run_sequential(arguments, groups)
    if arguments.power:
        text = power_lines(groups, arguments.metric, arguments.last, arguments.baseline)
        if len(groups) > 1:
            found = compare(groups, arguments.metric, arguments.last, arguments.baseline)
            text = [*lines(found), "", *text]
        return "\n".join(text)
    found = compare(groups, arguments.metric, arguments.last, arguments.baseline)
    if arguments.json:
        return dumps([asdict(x) | {"better": x.better} for x in found], indent=2)
    return "\n".join(lines(found))


def _run_sequential(arguments: argparse.Namespace, groups: Sequence[Group]) -> str:
    _check_other_groups(groups)
    a = find_baseline(groups, arguments.baseline)
    b = groups[1] if a is groups[0] else groups[0]
    if len(groups) > 2:
        folders = [str(run.path) for run in (*a.runs, *b.runs)]
        raise UserError(
            f"--sequential compares two groups, not {len(groups)}: give the runs of two, such as "
            f"{shlex.join(folders)} ({a.name}, and {b.name})"
        )
    test = SequentialTest(arguments.min_seeds, arguments.max_seeds, ALPHA)
    if not 2 <= test.first <= test.last:
        raise UserError(
            f"--min-seeds {test.first} --max-seeds {test.last}: type 2 <= min-seeds <= max-seeds"
        )
    trainer = partial(train, trust=arguments.trust)
    interval, seeds = decide(a, b, test, arguments.metric, arguments.last, trainer)
    verdict = "not decided against"
    if 0.0 not in interval:
        is_better = (interval.mean > 0) == higher_is_better(arguments.metric)
        verdict = "better than" if is_better else "worse than"
    if arguments.json:
        found = {
            "baseline": a.name,
            "name": b.name,
            "difference": asdict(interval),
            "seeds": seeds,
            "verdict": verdict,
        }
        return dumps(found, indent=2)
    return (
        f"{b.name} is {verdict} {a.name} in {arguments.metric}: "
        f"{interval.mean:+.4f}, from {interval.low:+.4f} to {interval.high:+.4f}\n"
        f"({counted(len(seeds), 'seed')}; the tests after {arguments.min_seeds} to "
        f"{arguments.max_seeds} seeds together err with a probability of {ALPHA:.0%})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(arguments)
    again = "interrupted: finished seeds are kept; run the same command again to continue"
    with one_line_errors(again):
        print(run(parsed))


if __name__ == "__main__":
    main()
