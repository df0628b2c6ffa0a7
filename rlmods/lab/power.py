"""How large a difference a number of seeds can see, before they are trained."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from rlmods.lab.statistics import ALPHA, smallest_number, t_quantile

PROBABILITY = 0.8
"""Probability with which a difference is to be seen."""
MAX_PAIRS = 1000


def power(effect: float, num_pairs: int, alpha: float = ALPHA) -> float:
    """Return the probability that the two-sided paired t test rejects at the level `alpha`.

    P(|Z + effect sqrt(n)| > t S), with the quantile t of Student's t with n - 1 degrees of freedom,
    a standard normal Z and (n - 1) S^2 of a chi-squared distribution: the noncentral t
    distribution, integrated over S.

    Args:
        effect: mean difference, in standard deviations of the difference of a pair.
        num_pairs: n, at least 2.
    """
    df = num_pairs - 1
    t = t_quantile(1 - alpha / 2, df)
    edges = np.linspace(0.0, 1 + 8 / math.sqrt(2 * df), 4001)
    s = (edges[1:] + edges[:-1]) / 2
    log_density = (df - 1) * np.log(s) - df * s**2 / 2
    density = np.exp(log_density - log_density.max())
    shift = effect * math.sqrt(num_pairs)
    rejects = [_normal(shift - t * x) + _normal(-shift - t * x) for x in s]
    return float(np.average(rejects, weights=density))


def detectable_effect(
    num_pairs: int, probability: float = PROBABILITY, alpha: float = ALPHA
) -> float:
    """Return the smallest difference that is seen with a probability, in standard deviations of the
    difference of a pair."""
    return smallest_number(
        lambda effect: power(effect, num_pairs, alpha) >= probability, num_halvings=30
    )


def num_pairs_needed(
    effect: float, probability: float = PROBABILITY, alpha: float = ALPHA
) -> int | None:
    """Return the smallest number of pairs that see a difference with a probability. None: more than
    `MAX_PAIRS`."""
    if power(effect, MAX_PAIRS, alpha) < probability:
        return None
    candidates = range(2, MAX_PAIRS + 1)
    return candidates[
        bisect_left(candidates, probability, key=lambda count: power(effect, count, alpha))
    ]


def _normal(x: float) -> float:
    """Return the distribution function of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2
