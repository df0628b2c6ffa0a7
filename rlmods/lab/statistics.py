"""Statistics of comparisons between runs: intervals of means and of paired differences, tests,
tests that look several times, and how large a difference a number of seeds can see.

Runs with the same seed have the same prompts and the same random numbers, so their difference
varies less than each of them, and comparisons are paired by seed, or by prompt."""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
K = TypeVar("K", bound=Hashable)
ALPHA = 0.05
"""Probability with which a test rejects although there is no difference."""
PROBABILITY = 0.8
"""Probability with which a difference is to be seen."""
MAX_PAIRS = 1000


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    mean: float
    low: float
    """-inf if the values, a single one or equal ones, show no spread."""
    high: float
    """inf if the values, a single one or equal ones, show no spread."""
    num_values: int
    """Number of values, or of pairs."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def is_bounded(self) -> bool:
        """True if there were enough values for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean and its t interval, mean ± t(1 - (1 - confidence) / 2, n - 1) s / sqrt(n),
    with the sample standard deviation s.

    It holds for normal values. One value, or equal ones, give an infinite interval: accuracies are
    whole numbers of prompts, so that few of them are often equal although their distribution has a
    spread."""
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if _show_no_spread(x):
        return Interval(mean, -math.inf, math.inf, len(x))
    standard_error = float(x.std(ddof=1)) / math.sqrt(len(x))
    half = t_quantile(0.5 + confidence / 2, len(x) - 1) * standard_error
    return Interval(mean, mean - half, mean + half, len(x))


def paired(a: Mapping[K, float], b: Mapping[K, float]) -> list[float]:
    """Return `b - a` for each key (seed) that both have, in the order of `a`."""
    return [b[key] - a[key] for key in a if key in b]


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % percentile bootstrap interval, for many values of any
    distribution, of 10,000 resamples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3. Equal
    values, or a single one, give an infinite interval: resampling them shows nothing of the
    spread."""
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if _show_no_spread(x):
        return Interval(mean, -math.inf, math.inf, len(x))
    generator = np.random.default_rng(0)
    shape = (100, len(x))  # a hundred resamples at a time, for memory
    means = [x[generator.integers(0, len(x), shape)].mean(1) for _ in range(100)]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975]).tolist()
    return Interval(mean, low, high, len(x))


def paired_t_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's test that the mean of the differences is 0; 1 for a
    single one or equal ones."""
    x = np.asarray(differences, dtype=np.float64)
    if _show_no_spread(x):
        return 1.0
    t = float(x.mean()) * math.sqrt(len(x)) / float(x.std(ddof=1))
    return float(t_test_p(t, len(x) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down method, which bounds the
    probability of any false rejection.

    p'_(i) = max over j <= i of min(1, (m - j + 1) p_(j)) for the sorted p_(1) <= ... <= p_(m).
    Source: Holm, 1979."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable").tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def adjusted_tests(
    differences: Sequence[Sequence[float]],
) -> list[tuple[Interval, float | None]]:
    """Return the interval of each paired difference, and the p-value of its t test, adjusted for
    their number (`holm`); None if the values show no spread."""
    intervals = list(map(mean_interval, differences))
    p_values = holm(list(map(paired_t_test, differences)))
    return [(x, p if x.is_bounded else None) for x, p in zip(intervals, p_values, strict=True)]


@dataclass(frozen=True)
class SequentialTest:
    """A paired t test after each of several numbers of pairs, whose probability of any false
    rejection is `alpha`.

    The test of n pairs rejects at the level c / n, which finds large effects early. c is the
    `alpha` quantile of the smallest n p_n of the tests under the null hypothesis. Its distribution
    depends on no parameter of normal differences and is simulated with a fixed seed.

    Source: Pocock, 1977 (group sequential tests); Shao and Feng, 2007,
    doi:10.1016/j.cct.2007.02.006 (critical values for few values by simulation)."""

    first: int = 4
    """Number of pairs at the first test, at least 2."""
    last: int = 10
    """Number of pairs at the last one; there is a test after each pair between."""
    alpha: float = 0.05
    """Probability that any test rejects if the mean difference is 0."""

    def level(self, num_pairs: int) -> float:
        """Return the nominal level of the test of `num_pairs` pairs."""
        return _level_times_pairs(self.first, self.last, self.alpha) / num_pairs

    def __call__(self, differences: Sequence[float]) -> Interval:
        """Return the interval after at most `last` differences. The intervals of all tests hold
        together with probability `1 - alpha`; they are infinite before the first test."""
        n = len(differences)
        if n < self.first:
            return Interval(float(np.mean(differences)), -math.inf, math.inf, n)
        return mean_interval(differences, 1 - self.level(n))

    def decides(self, differences: Sequence[float]) -> bool:
        """Return True if the interval excludes 0, or no test is left."""
        return 0.0 not in self(differences) or len(differences) == self.last


@lru_cache(maxsize=64)
def _level_times_pairs(
    first: int, last: int, alpha: float, num_simulations: int = 200_000
) -> float:
    """Return the `alpha` quantile of the smallest n p_n of the tests of n = first, ..., last normal
    differences of mean 0, less two standard errors of the simulation."""
    generator = np.random.default_rng(0)
    smallest = np.full(num_simulations, math.inf)
    sums = np.zeros(num_simulations)
    squares = np.zeros(num_simulations)
    for n in range(1, last + 1):
        x = generator.standard_normal(num_simulations)
        sums += x
        squares += x * x
        if n >= first:
            variance = (squares - sums**2 / n) / (n - 1)
            p_values = t_test_p(sums / np.sqrt(n * variance), n - 1)
            smallest = np.minimum(smallest, n * p_values)
    standard_error = math.sqrt(alpha * (1 - alpha) / num_simulations)
    return float(np.quantile(smallest, max(0.0, alpha - 2 * standard_error)))


def t_test_p(t: Array | float, df: int) -> Array:
    """Return P(|T| >= |t|) for Student's t with a whole number of degrees of freedom.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4, in theta = arctan(t / sqrt(df)).
    (Importing `scipy.stats` takes longer than a command of the lab.)"""
    theta = np.arctan(np.abs(np.asarray(t, dtype=np.float64)) / math.sqrt(df))
    cosine = np.cos(theta)
    odd = df % 2
    term = cosine.copy() if odd else np.ones_like(theta)
    series = np.zeros_like(theta)
    for k in range(2 + odd, df + 1, 2):  # powers of the cosine up to df - 2
        series = series + term
        term = term * cosine**2 * (k - 1) / k
    inner = (theta + np.sin(theta) * series) * 2 / math.pi if odd else np.sin(theta) * series
    result: Array = np.clip(1.0 - inner, 0.0, 1.0)
    return result


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t for 0.5 <= p < 1, by bisection of `t_test_p`."""
    return smallest_number(lambda t: bool(t_test_p(t, df) <= 2 * (1 - p)))


def smallest_number(holds: Callable[[float], bool], num_halvings: int = 45) -> float:
    """Return the smallest positive number for which a condition holds that also holds for all
    larger ones, by bisection."""
    low = 0.0
    high = 1.0
    while not holds(high):
        high *= 2
    for _ in range(num_halvings):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _show_no_spread(x: Array) -> bool:
    """Return True for a single value, or values that are equal up to the rounding of their last
    digit."""
    return bool(np.ptp(x) <= 1e-12 * np.abs(x).max())


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
    normal = NormalDist().cdf
    rejects = [normal(shift - t * x) + normal(-shift - t * x) for x in s]
    return float(np.average(rejects, weights=density))


def detectable_effect(num_pairs: int, alpha: float = ALPHA) -> float:
    """Return the smallest difference that is seen with `PROBABILITY`, in standard deviations of the
    difference of a pair."""
    return smallest_number(
        lambda effect: power(effect, num_pairs, alpha) >= PROBABILITY, num_halvings=30
    )


def num_pairs_needed(effect: float, alpha: float = ALPHA) -> int | None:
    """Return the smallest number of pairs that see a difference with `PROBABILITY`. None: more than
    `MAX_PAIRS`."""
    if power(effect, MAX_PAIRS, alpha) < PROBABILITY:
        return None
    candidates = range(2, MAX_PAIRS + 1)
    return candidates[
        bisect_left(candidates, PROBABILITY, key=lambda count: power(effect, count, alpha))
    ]
