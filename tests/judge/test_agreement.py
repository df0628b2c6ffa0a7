from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.judge import cohens_kappa

A, T, B = 1.0, 0.5, 0.0
VERDICTS = st.lists(st.tuples(*[st.sampled_from([A, T, B, None])] * 2), min_size=1, max_size=30)


def spread(table):
    """Verdicts of two judges with these counts, [first judge's category][second judge's]."""
    pairs = [(a, b) for row, a in zip(table, (A, T, B), strict=True) for n, b in zip(row, (A, T, B), strict=True) for _ in range(n)]
    return [a for a, _ in pairs], [b for _, b in pairs]


class TestCohensKappa:
    @pytest.mark.parametrize(
        ("table", "kappa"),
        [
            ([[20, 0, 5], [0, 0, 0], [10, 0, 15]], 0.4),  # p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
            ([[45, 0, 15], [0, 0, 0], [25, 0, 15]], 0.06 / 0.46),  # p_o = 0.6, p_e = 0.6 * 0.7 + 0.4 * 0.3 = 0.54
            ([[25, 0, 35], [0, 0, 0], [5, 0, 35]], 0.14 / 0.54),  # p_o = 0.6, p_e = 0.6 * 0.3 + 0.4 * 0.7 = 0.46
            ([[4, 1, 0], [1, 2, 1], [0, 1, 2]], 23 / 47),  # p_o = 8/12, p_e = (5 * 5 + 4 * 4 + 3 * 3) / 144 = 50/144
            ([[0, 0, 3], [0, 0, 0], [3, 0, 0]], -1.0),
            ([[0, 5, 0], [0, 0, 0], [0, 0, 0]], 0.0),  # each says one thing, and not the same
            ([[7, 0, 0], [0, 0, 0], [0, 0, 0]], 1.0),  # p_e = 1
        ],
    )
    def test_by_hand(self, table, kappa):
        assert cohens_kappa(*spread(table)) == pytest.approx(kappa, abs=1e-12)

    @given(VERDICTS)
    def test_by_a_loop(self, pairs):
        known = [(a, b) for a, b in pairs if None not in (a, b)]
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        if not known:
            assert math.isnan(cohens_kappa(first, second))
            return
        agreed = sum(a == b for a, b in known) / len(known)
        chance = sum(sum(a == c for a, _ in known) * sum(b == c for _, b in known) for c in (A, T, B)) / len(known) ** 2
        want = 1.0 if chance == 1 else (agreed - chance) / (1 - chance)
        assert cohens_kappa(first, second) == pytest.approx(want, abs=1e-12)

    @given(VERDICTS)
    def test_knows_neither_first_nor_second(self, pairs):
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        turn = {A: B, B: A, T: T, None: None}
        want = cohens_kappa(first, second)
        assert cohens_kappa(second, first) == pytest.approx(want, nan_ok=True)
        assert cohens_kappa([turn[a] for a in first], [turn[b] for b in second]) == pytest.approx(want, nan_ok=True)

    def test_judges_of_different_pairs_are_not_compared(self):
        with pytest.raises(ValueError, match="zip"):
            cohens_kappa([A, B], [A])
