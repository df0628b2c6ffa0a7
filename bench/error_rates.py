"""Simulate the error rates and costs of the tests of docs/comparing.md, and print them as a table:
`python bench/error_rates.py`."""

from __future__ import annotations

import sys

import numpy as np

from rlmods.lab.statistics import SequentialTest, paired_t_test

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


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
