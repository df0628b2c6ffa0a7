"""Statistics, against scipy and by simulation."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats

from rlmods.lab.statistics import (
    SequentialTest,
    bootstrap_interval,
    holm,
    mean_interval,
    paired,
    paired_difference,
    paired_t_test,
    t_quantile,
    t_test_p,
)


def values(n: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(0.3, 0.1, n).tolist()


class TestStudent:
    @pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 31, 100])
    def test_p_values(self, df: int) -> None:
        t = np.array([0.0, 0.1, 1.0, 2.5, 7.0, 40.0])
        np.testing.assert_allclose(
            t_test_p(t, df), 2 * scipy.stats.t.sf(t, df), rtol=1e-9, atol=1e-12
        )
        np.testing.assert_array_equal(t_test_p(-t, df), t_test_p(t, df))

    @pytest.mark.parametrize("df", [1, 2, 7, 30])
    @pytest.mark.parametrize("p", [0.5, 0.75, 0.95, 0.975, 0.9995])
    def test_quantiles(self, p: float, df: int) -> None:
        assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-9)

    def test_limits(self) -> None:
        assert t_test_p(math.inf, 3) == 0.0
        with pytest.raises(ValueError, match="df=0"):
            t_test_p(1.0, 0)
        with pytest.raises(ValueError, match="p=1"):
            t_quantile(1.0, 3)


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

    @pytest.mark.parametrize("broken", [[], [math.nan], [1.0, math.inf]])
    def test_no_values(self, broken: list[float]) -> None:
        for function in (mean_interval, bootstrap_interval, paired_t_test):
            with pytest.raises(ValueError, match=r"no values|not finite"):
                function(broken)


class TestPaired:
    A: ClassVar = {1: 0.5, 2: 0.6, 3: 0.4, 7: 0.9}
    B: ClassVar = {2: 0.7, 1: 0.55, 3: 0.45, 8: 0.1}

    def test_uses_common_seeds_only(self) -> None:
        assert paired(self.A, self.B) == pytest.approx([0.05, 0.1, 0.05])
        x = paired_difference(self.A, self.B)
        assert x.num_values == 3
        result = scipy.stats.ttest_rel([0.55, 0.7, 0.45], [0.5, 0.6, 0.4])
        interval = result.confidence_interval()
        np.testing.assert_allclose((x.low, x.high), (interval.low, interval.high), rtol=1e-9)
        assert paired_t_test(paired(self.A, self.B)) == pytest.approx(result.pvalue)

    def test_no_common_seed(self) -> None:
        with pytest.raises(ValueError, match="no key in common"):
            paired_difference({1: 0.5}, {2: 0.5})

    def test_one_common_seed(self) -> None:
        assert not paired_difference({1: 0.5}, {1: 0.7, 2: 0.1}).is_bounded
        assert paired_t_test([0.2]) == 1.0

    @pytest.mark.parametrize(
        "x", [[0.0, 0.0, 0.0], [0.1 + 1e-17, 0.1, 0.3 - 0.2], [-0.005, -0.005]]
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
        np.testing.assert_allclose(
            (actual.low, actual.high), (expected.low, expected.high), atol=5e-4
        )

    def test_is_the_same_every_time(self) -> None:
        assert bootstrap_interval(values(50)) == bootstrap_interval(values(50))
        assert bootstrap_interval(values(50)) != bootstrap_interval(values(50), seed=1)

    @pytest.mark.parametrize("x", [[1.0], [0.0, 0.0, 0.0]])
    def test_equal_values_show_no_spread(self, x: list[float]) -> None:
        assert not bootstrap_interval(x).is_bounded


def test_holm() -> None:
    # Holm, by hand
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


class TestSequential:
    def false_decisions(
        self, test: SequentialTest, num_pairs: int, shift: float = 0.0
    ) -> tuple[float, float]:
        """Return the fraction of sequences in which the test decides, and the mean number of pairs
        it uses."""
        generator = np.random.default_rng(5)
        decided, used = 0, 0
        for _ in range(num_pairs):
            x = (generator.standard_normal(test.last) * 0.03 + shift * 0.03).tolist()
            n = next(n for n in range(test.first, test.last + 1) if test.decides(x[:n]))
            decided, used = decided + (0.0 not in test(x[:n])), used + n
        return decided / num_pairs, used / num_pairs

    def test_errs_with_probability_alpha(self) -> None:
        decided, _ = self.false_decisions(SequentialTest(), 2000)
        assert 0.04 < decided < 0.06

    def test_costs_half_where_effects_are_large(self) -> None:
        decided, used = self.false_decisions(SequentialTest(), 500, shift=2.0)
        assert decided > 0.95
        assert used < 5.2  # 5.0 in docs/comparing.md

    def test_a_single_look_is_a_t_test(self) -> None:
        assert SequentialTest(10, 10).level(10) == pytest.approx(0.05, abs=0.003)
        assert SequentialTest().level(4) < 0.025

    def test_early_tests_have_higher_levels(self) -> None:
        test = SequentialTest(3, 10)
        assert test.level(3) == pytest.approx(2 * test.level(6))

    def test_no_test_after_the_last(self) -> None:
        with pytest.raises(ValueError, match="the last test has 4"):
            SequentialTest(3, 4)([0.1] * 5)

    @pytest.mark.parametrize("spread", [1.0, 5.0])
    def test_errs_as_seldom_with_accuracies_of_few_prompts(self, spread: float) -> None:
        """Differences are whole numbers of prompts, and often equal. At most 5 % of the pairs of
        equal groups seem better or worse."""
        generator, test, decided = np.random.default_rng(3), SequentialTest(), 0
        for _ in range(1000):
            x = np.round(generator.standard_normal((2, test.last)) * spread / math.sqrt(2))
            differences = ((x[0] - x[1]) / 50).tolist()
            n = next(n for n in range(test.first, test.last + 1) if test.decides(differences[:n]))
            decided += 0.0 not in test(differences[:n])
        assert decided / 1000 < 0.065  # 2 standard errors above 0.05

    def test_is_infinite_before_the_first_test(self) -> None:
        assert not SequentialTest(3, 10)([0.1, 0.1]).is_bounded
        assert not SequentialTest(3, 10).decides([0.1, 0.1])
        assert SequentialTest(3, 4).decides([0.1, -0.1, 0.1, -0.1])

    @pytest.mark.parametrize("settings", [{"first": 1}, {"first": 5, "last": 4}, {"alpha": 0.0}])
    def test_settings(self, settings: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=r"first=|alpha="):
            SequentialTest(**settings)  # type: ignore[arg-type]
