"""Statistics, against scipy and by simulation."""

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats

from rlmods.lab.statistics import (
    MAX_PAIRS,
    SequentialTest,
    bootstrap_interval,
    detectable_effect,
    holm,
    mean_interval,
    num_pairs_needed,
    paired,
    paired_t_test,
    power,
    t_quantile,
    t_test_p,
)


def values(n: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(0.3, 0.1, n).tolist()


class TestStudent:
    @pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 31, 100])
    def test_p_values(self, df: int) -> None:
        t = np.array([0.0, 0.1, 1.0, 2.5, 7.0, 40.0, math.inf])
        expected = 2 * scipy.stats.t.sf(t, df)
        np.testing.assert_allclose(t_test_p(t, df), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(t_test_p(-t, df), t_test_p(t, df))

    @pytest.mark.parametrize("df", [1, 2, 7, 30])
    @pytest.mark.parametrize("p", [0.5, 0.75, 0.95, 0.975, 0.9995])
    def test_quantiles(self, p: float, df: int) -> None:
        assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-9)


class TestMeanInterval:
    @pytest.mark.parametrize("n", [2, 3, 10])
    @pytest.mark.parametrize("confidence", [0.8, 0.95])
    def test_equals_scipy(self, n: int, confidence: float) -> None:
        x = values(n)
        expected = scipy.stats.t.interval(confidence, n - 1, np.mean(x), scipy.stats.sem(x))
        actual = mean_interval(x, confidence)
        np.testing.assert_allclose((actual.low, actual.high), expected, rtol=1e-9)
        assert (actual.num_values, actual.is_bounded) == (n, True)

    def test_a_single_value_says_nothing_of_the_spread(self) -> None:
        x = mean_interval([0.5])
        assert (x.mean, x.low, x.high, x.is_bounded) == (0.5, -math.inf, math.inf, False)
        assert 1e9 in x


class TestPaired:
    A: ClassVar = {1: 0.5, 2: 0.6, 3: 0.4, 7: 0.9}
    B: ClassVar = {2: 0.7, 1: 0.55, 3: 0.45, 8: 0.1}

    def test_uses_common_seeds_only(self) -> None:
        differences = paired(self.A, self.B)
        assert differences == pytest.approx([0.05, 0.1, 0.05])
        x = mean_interval(differences)
        result = scipy.stats.ttest_rel([0.55, 0.7, 0.45], [0.5, 0.6, 0.4])
        interval = result.confidence_interval()
        np.testing.assert_allclose((x.low, x.high), (interval.low, interval.high), rtol=1e-9)
        assert paired_t_test(differences) == pytest.approx(result.pvalue)
        assert paired(self.A, {8: 0.1}) == []

    @pytest.mark.parametrize(
        "x", [[0.2], [0.0, 0.0, 0.0], [0.1 + 1e-17, 0.1, 0.3 - 0.2], [-0.005, -0.005]]
    )
    def test_equal_differences_show_no_spread(self, x: list[float]) -> None:
        assert paired_t_test(x) == 1.0
        assert not mean_interval(x).is_bounded

    @pytest.mark.parametrize("num_seeds", [2, 3, 4])
    @pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
    def test_errs_in_five_percent_with_accuracies_of_few_prompts(
        self, num_seeds: int, spread: float
    ) -> None:
        """Differences of two or three seeds are whole numbers of prompts, and often equal."""
        x = np.round(np.random.default_rng(4).standard_normal((2000, num_seeds)) * spread) / 200
        # 2 standard errors above 0.05
        assert np.mean([paired_t_test(differences.tolist()) < 0.05 for differences in x]) < 0.06


class TestBootstrap:
    def test_agrees_with_scipy(self) -> None:
        x = values(200)
        expected = scipy.stats.bootstrap(
            (x,), np.mean, method="percentile", n_resamples=9999, rng=1
        ).confidence_interval
        actual = bootstrap_interval(x)
        bounds = (expected.low, expected.high)
        np.testing.assert_allclose((actual.low, actual.high), bounds, atol=5e-4)
        assert bootstrap_interval(x) == actual, "the same every time"

    @pytest.mark.parametrize("x", [[1.0], [0.0, 0.0, 0.0]])
    def test_equal_values_show_no_spread(self, x: list[float]) -> None:
        assert not bootstrap_interval(x).is_bounded


def test_holm() -> None:
    # Holm, by hand
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def decisions(
    test: SequentialTest, count: int, draw: Callable[[], list[float]]
) -> tuple[float, float]:
    """Return the fraction of sequences of differences in which the test decides, and the mean
    number of pairs it uses."""
    decided = 0
    used = 0
    for _ in range(count):
        x = draw()
        n = next(n for n in range(test.first, test.last + 1) if test.decides(x[:n]))
        decided += 0.0 not in test(x[:n])
        used += n
    return decided / count, used / count


class TestSequential:
    @pytest.mark.parametrize("spread", [None, 1.0, 5.0])
    def test_errs_with_probability_alpha(self, spread: float | None) -> None:
        """With normal differences, and with differences that are whole numbers of prompts, and
        often equal."""
        generator = np.random.default_rng(5)

        def draw() -> list[float]:
            x = generator.standard_normal(10)
            if spread is not None:
                x = np.round(x * spread) / 50
            return x.tolist()

        decided, _ = decisions(SequentialTest(), 2000, draw)
        assert (0.04 if spread is None else 0.0) < decided < 0.06

    def test_costs_half_where_effects_are_large(self) -> None:
        generator = np.random.default_rng(5)
        draw = lambda: generator.normal(2.0, 1.0, 10).tolist()  # noqa: E731
        decided, used = decisions(SequentialTest(), 500, draw)
        assert decided > 0.95
        assert used < 5.2  # 5.0 in docs/comparing.md

    def test_levels(self) -> None:
        """Early tests have higher levels, and a single one is a t test."""
        assert SequentialTest(10, 10).level(10) == pytest.approx(0.05, abs=0.003)
        assert SequentialTest().level(4) < 0.025
        test = SequentialTest(3, 10)
        assert test.level(3) == pytest.approx(2 * test.level(6))

    def test_is_infinite_before_the_first_test(self) -> None:
        assert not SequentialTest(3, 10)([0.1, 0.1]).is_bounded
        assert not SequentialTest(3, 10).decides([0.1, 0.1])
        assert SequentialTest(3, 4).decides([0.1, -0.1, 0.1, -0.1])


@pytest.mark.parametrize("num_pairs", [2, 3, 5, 12])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
class TestPower:
    def test_is_the_level_without_a_difference(self, num_pairs: int, alpha: float) -> None:
        assert power(0.0, num_pairs, alpha) == pytest.approx(alpha, rel=1e-3)

    @pytest.mark.parametrize("effect", [-1.0, 0.3, 1.0, 2.0])
    def test_equals_the_noncentral_t(self, num_pairs: int, alpha: float, effect: float) -> None:
        df = num_pairs - 1
        bound = scipy.stats.t.ppf(1 - alpha / 2, df)
        shift = abs(effect) * math.sqrt(num_pairs)
        expected = scipy.stats.nct.sf(bound, df, shift) + scipy.stats.nct.cdf(-bound, df, shift)
        assert power(effect, num_pairs, alpha) == pytest.approx(expected, abs=1e-4)


def test_is_how_often_the_test_rejects() -> None:
    """200 simulated comparisons for each of three effects, 600 in all."""
    generator = np.random.default_rng(0)
    for effect in (0.5, 1.0, 2.0):
        found = [
            paired_t_test((0.1 * (generator.standard_normal(6) + effect)).tolist()) < 0.05
            for _ in range(200)
        ]
        expected = power(effect, 6)
        standard_error = math.sqrt(expected * (1 - expected) / 200)
        assert abs(np.mean(found) - expected) < 3 * standard_error


@pytest.mark.parametrize("num_pairs", [3, 8])
def test_the_detectable_effect_is_seen_with_its_probability(num_pairs: int) -> None:
    effect = detectable_effect(num_pairs, 0.01)
    assert power(effect, num_pairs, 0.01) == pytest.approx(0.8, abs=1e-4)


def test_pairs_needed_are_the_fewest() -> None:
    for effect in (0.4, 1.3, 4.0):
        needed = num_pairs_needed(effect)
        assert needed is not None
        assert power(effect, needed) >= 0.8
        assert needed == 2 or power(effect, needed - 1) < 0.8
    assert num_pairs_needed(0.01) is None
    assert power(0.01, MAX_PAIRS) < 0.8
