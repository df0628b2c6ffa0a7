"""Simulate the error rates and costs of the tests of docs/comparing.md, and print them as a table:
`python bench/error_rates.py`. With a file of results of the scorecard, compare how often its pairs
of entrants are told apart with how often `compare --power` predicts it, and how often two halves of
the seeds of one entrant are told apart, which are false positives."""

import sys
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from rlmods.lab.statistics import ALPHA, SequentialTest, paired, paired_t_test, power
from rlmods.lab.tunnel.results import read_results

EFFECTS = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Mean difference of two groups, in standard deviations of the difference of a pair."""


NUM_SEEDS = 3
"""Number of seeds of an entrant of the scorecard."""


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


Scores = dict[tuple[str, str], dict[int, float]]
"""Score by seed, by task and entrant."""


def read_scores(path: Path) -> Scores:
    """Return the scores of a file of results."""
    scores: Scores = {}
    for result in read_results(path):
        if result.score is not None:
            scores.setdefault((result.task, result.entrant), {})[result.seed] = result.score
    return scores


def told_apart(scores: Scores) -> str:
    """Return the number of pairs of entrants that a paired t test tells apart, and the number that
    the power of a difference of their size and spread predicts."""
    found, expected, num_pairs = 0, 0.0, 0
    for (task, a), (other_task, b) in combinations(scores, 2):
        differences = paired(scores[task, a], scores[other_task, b])
        if task != other_task or len(differences) < 3:
            continue
        num_pairs += 1
        found += paired_t_test(differences) < ALPHA
        effect = abs(float(np.mean(differences))) / float(np.std(differences, ddof=1))
        expected += power(effect, len(differences))
    return f"{num_pairs} pairs: {found} told apart, {expected:.1f} predicted"


def false_positives(scores: Scores) -> str:
    """Return how often a paired t test tells `NUM_SEEDS` seeds of an entrant from as many others of
    the same entrant, over all such pairs of sets."""
    found, num_pairs = 0, 0
    for of_seed in scores.values():
        for chosen in combinations(sorted(of_seed), NUM_SEEDS):
            rest = [seed for seed in sorted(of_seed) if seed > chosen[0] and seed not in chosen]
            for others in permutations(rest, NUM_SEEDS):
                pairs = zip(chosen, others, strict=True)
                differences = [of_seed[a] - of_seed[b] for a, b in pairs]
                num_pairs += 1
                found += paired_t_test(differences) < ALPHA
    rate = found / max(1, num_pairs)
    return f"{num_pairs} pairs of {NUM_SEEDS} seeds of one entrant: {rate:.3f} told apart"


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "10000"
    if argument.isdecimal():
        print(table(int(argument)))
    else:
        scores = read_scores(Path(argument))
        print(told_apart(scores))
        print(false_positives(scores))
