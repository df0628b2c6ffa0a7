"""Power of the paired t test."""

import math

import numpy as np
import pytest
from scipy import stats

from rlmods.lab.power import MAX_PAIRS, detectable_effect, num_pairs_needed, power
from rlmods.lab.statistics import paired_t_test


@pytest.mark.parametrize("num_pairs", [2, 3, 5, 12])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
class TestPower:
    def test_is_the_level_without_a_difference(self, num_pairs: int, alpha: float) -> None:
        assert power(0.0, num_pairs, alpha) == pytest.approx(alpha, rel=1e-3)

    @pytest.mark.parametrize("effect", [-1.0, 0.3, 1.0, 2.0])
    def test_equals_the_noncentral_t(self, num_pairs: int, alpha: float, effect: float) -> None:
        df = num_pairs - 1
        bound = stats.t.ppf(1 - alpha / 2, df)
        shift = abs(effect) * math.sqrt(num_pairs)
        expected = stats.nct.sf(bound, df, shift) + stats.nct.cdf(-bound, df, shift)
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
    effect = detectable_effect(num_pairs, 0.9, 0.01)
    assert power(effect, num_pairs, 0.01) == pytest.approx(0.9, abs=1e-4)


def test_pairs_needed_are_the_fewest() -> None:
    for effect in (0.4, 1.3, 4.0):
        needed = num_pairs_needed(effect)
        assert needed is not None
        assert power(effect, needed) >= 0.8
        assert needed == 2 or power(effect, needed - 1) < 0.8
    assert num_pairs_needed(0.01) is None
    assert power(0.01, MAX_PAIRS) < 0.8
