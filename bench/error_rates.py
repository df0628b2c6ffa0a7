"""Simulate the error rates and costs of the tests of docs/comparing.md, and print them as a table:
`python bench/error_rates.py`. With a file of results of the scorecard, compare how often its pairs
of entrants are told apart with how often `compare --power` foretells it."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from rlmods.lab.statistics import ALPHA, SequentialTest, paired, paired_t_test, power
from rlmods.lab.tunnel.results import read_results

EFFECTS = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Mean difference of two groups, in standard deviations of the difference of a pair."""


def decisions(
    effect: float, test: SequentialTest, num_experiments: int
) -> tuple[float, float, float]:
    """Return how often a t test over all pairs decides, how often the sequential test does, and the
    mean number of pairs it uses."""
    generator = np.random.default_rng(1)
    fixed, sequential, used = 0, 0, 0
    for _ in range(num_experiments):
        x = (generator.standard_normal(test.last) + effect).tolist()
        n = next(n for n in range(test.first, test.last + 1) if test.decides(x[:n]))
        fixed, sequential, used = (
            fixed + (paired_t_test(x) < test.alpha),
            sequential + (0.0 not in test(x[:n])),
            used + n,
        )
    return fixed / num_experiments, sequential / num_experiments, used / num_experiments


def table(num_experiments: int) -> str:
    """Return the table of the page."""
    test = SequentialTest()
    lines = [
        f"| effect | decided with {test.last} pairs | decided, sequential | pairs, sequential |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for effect in EFFECTS:
        fixed, sequential, used = decisions(effect, test, num_experiments)
        lines.append(f"| {effect:g} | {fixed:.3f} | {sequential:.3f} | {used:.1f} |")
    return "\n".join(lines)


def foretold(path: Path) -> str:
    """Return the number of pairs of entrants that a paired t test tells apart, and the number that
    the power of a difference of their size and spread foretells."""
    results = read_results(path)
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        if result.score is not None:
            scores.setdefault((result.task, result.entrant), {})[result.seed] = result.score
    found, expected, num_pairs = 0, 0.0, 0
    for (task, a), (other_task, b) in combinations(scores, 2):
        differences = paired(scores[task, a], scores[other_task, b])
        if task != other_task or len(differences) < 3:
            continue
        num_pairs += 1
        found += paired_t_test(differences) < ALPHA
        effect = abs(float(np.mean(differences))) / float(np.std(differences, ddof=1))
        expected += power(effect, len(differences))
    return f"{num_pairs} pairs: {found} told apart, {expected:.1f} foretold"


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "10000"
    print(table(int(argument)) if argument.isdecimal() else foretold(Path(argument)))
