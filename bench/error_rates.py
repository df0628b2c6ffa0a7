"""Simulate the error rates and costs of the tests of docs/comparing.md, and print them as a table:
`python bench/error_rates.py`, and how often power that is estimated from a few pairs foretells a
decision. With a file of results of the scorecard, count how many of its pairs of entrants are told
apart, and how often some seeds of an entrant are told from others of the same entrant, which are
false positives."""

import sys
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from rlmods.lab.statistics import ALPHA, SequentialTest, holm, paired, paired_t_test, power
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


def foresight(effect: float, num_pairs: int, num_experiments: int) -> tuple[float, float]:
    """Return the mean power that the effect in some pairs promises, and how often a t test of as
    many other pairs decides."""
    generator = np.random.default_rng(2)
    promised, found = 0.0, 0
    for _ in range(num_experiments):
        pilot, others = generator.standard_normal((2, num_pairs)) + effect
        promised += power(abs(float(pilot.mean())) / float(pilot.std(ddof=1)), num_pairs)
        found += paired_t_test(others.tolist()) < ALPHA
    return promised / num_experiments, found / num_experiments


def foresight_table(num_experiments: int) -> str:
    """Return the table of power that is estimated from as many pairs as are tested."""
    lines = [
        "| effect | pairs | promised | decided | power |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for num_pairs in (3, 5, 10):
        for effect in EFFECTS:
            promised, found = foresight(effect, num_pairs, num_experiments)
            exact = power(effect, num_pairs)
            lines.append(
                f"| {effect:g} | {num_pairs} | {promised:.2f} | {found:.2f} | {exact:.2f} |"
            )
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
    """Return how many pairs of entrants a paired t test tells apart on each task, before and after
    Holm's correction for the pairs of the task, in all, and the power that the same differences
    promise."""
    lines = []
    apart: set[str] = set()
    num_pairs, num_found, promised = 0, 0, 0.0
    for task in dict.fromkeys(task for task, _ in scores):
        entrants = [entrant for name, entrant in scores if name == task]
        differences = {
            (a, b): paired(scores[task, a], scores[task, b]) for a, b in combinations(entrants, 2)
        }
        tested = {pair: x for pair, x in differences.items() if len(x) >= NUM_SEEDS}
        if not tested:
            continue
        p_values = dict(zip(tested, map(paired_t_test, tested.values()), strict=True))
        found = [pair for pair, p in p_values.items() if p < ALPHA]
        corrected = sum(p < ALPHA for p in holm(list(p_values.values())))
        apart |= {entrant for pair in found for entrant in pair}
        num_pairs += len(tested)
        num_found += len(found)
        for x in tested.values():
            effect = abs(float(np.mean(x))) / float(np.std(x, ddof=1))
            promised += power(effect, len(x))
        lines.append(f"{task}: {len(tested)} pairs, {len(found)} told apart, {corrected} by Holm")
    lines.append(f"{num_pairs} pairs: {num_found} told apart, {promised:.1f} promised")
    lines.append(f"told from another one: {', '.join(sorted(apart))}")
    return "\n".join(lines)


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
        print(foresight_table(int(argument) // 25))
    else:
        scores = read_scores(Path(argument))
        print(told_apart(scores))
        print(false_positives(scores))
