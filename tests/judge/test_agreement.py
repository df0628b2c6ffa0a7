from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.judge import cohens_kappa

A, T, B = 1.0, 0.5, 0.0
VERDICTS = st.lists(st.tuples(*[st.sampled_from([A, T, B, None])] * 2), min_size=1, max_size=30)


def verdicts_from_table(table):
    """Expand a contingency table, [first judge's category][second judge's category], into the
    verdicts of both judges."""
    pairs = [
        (a, b)
        for row, a in zip(table, (A, T, B), strict=True)
        for n, b in zip(row, (A, T, B), strict=True)
        for _ in range(n)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


class TestCohensKappa:
    @pytest.mark.parametrize(
        ("table", "kappa"),
        [
            # p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
            ([[20, 0, 5], [0, 0, 0], [10, 0, 15]], 0.4),
            # p_o = 0.6, p_e = 0.6 * 0.7 + 0.4 * 0.3 = 0.54
            ([[45, 0, 15], [0, 0, 0], [25, 0, 15]], 0.06 / 0.46),
            # p_o = 0.6, p_e = 0.6 * 0.3 + 0.4 * 0.7 = 0.46
            ([[25, 0, 35], [0, 0, 0], [5, 0, 35]], 0.14 / 0.54),
            # p_o = 8/12, p_e = (5 * 5 + 4 * 4 + 3 * 3) / 144 = 50/144
            ([[4, 1, 0], [1, 2, 1], [0, 1, 2]], 23 / 47),
            ([[0, 0, 3], [0, 0, 0], [3, 0, 0]], -1.0),
            # each uses a single category, and they differ
            ([[0, 5, 0], [0, 0, 0], [0, 0, 0]], 0.0),
            ([[7, 0, 0], [0, 0, 0], [0, 0, 0]], 1.0),  # p_e = 1
        ],
    )
    def test_matches_values_computed_by_hand(self, table, kappa):
        assert cohens_kappa(*verdicts_from_table(table)) == pytest.approx(kappa, abs=1e-12)

    @given(VERDICTS)
    def test_matches_a_reference_loop(self, pairs):
        known = [(a, b) for a, b in pairs if None not in (a, b)]
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        if not known:
            assert math.isnan(cohens_kappa(first, second))
            return
        observed = sum(a == b for a, b in known) / len(known)
        chance = (
            sum(sum(a == c for a, _ in known) * sum(b == c for _, b in known) for c in (A, T, B))
            / len(known) ** 2
        )
        expected = 1.0 if chance == 1 else (observed - chance) / (1 - chance)
        assert cohens_kappa(first, second) == pytest.approx(expected, abs=1e-12)

    @given(VERDICTS)
    def test_is_symmetric_in_the_judges_and_in_the_responses(self, pairs):
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        swap = {A: B, B: A, T: T, None: None}
        expected = cohens_kappa(first, second)
        assert cohens_kappa(second, first) == pytest.approx(expected, nan_ok=True)
        assert cohens_kappa([swap[a] for a in first], [swap[b] for b in second]) == pytest.approx(
            expected, nan_ok=True
        )

    def test_rejects_different_numbers_of_pairs(self):
        with pytest.raises(ValueError, match="zip"):
            cohens_kappa([A, B], [A])
