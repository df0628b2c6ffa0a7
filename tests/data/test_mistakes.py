from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.data.mistakes import MAX_CANDIDATES, mistakes, ranked_candidates


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (57, [56, 58, 47, 67, 75]),
        (-132, [-133, -131, -142, -122, -123]),
        (4, [3, 5, -6, 14]),
        (33, [32, 34, 23, 43]),
    ],
)
def test_off_by_one_off_by_ten_or_swapped(answer, wrong):
    assert mistakes(answer) == wrong


@given(answer=st.integers(-9999, 9999), num=st.integers(2, MAX_CANDIDATES), seed=st.integers(0, 9))
def test_candidates_are_different_have_one_sign_and_are_ranked_by_distance(answer, num, seed):
    candidates, ranks = ranked_candidates(answer, num, Random(seed))
    assert len(set(candidates)) == len(ranks) == num
    assert candidates[ranks.index(0)] == answer
    assert ranks.count(0) == 1
    assert all((x < 0) == (answer < 0) for x in candidates)
    for x, i in zip(candidates, ranks, strict=True):
        for y, j in zip(candidates, ranks, strict=True):
            assert (i < j) == (abs(x - answer) < abs(y - answer))
    assert sorted(set(ranks)) == list(range(max(ranks) + 1))


def test_few_wrong_answers_are_plausible_ones():
    for seed in range(50):
        candidates, _ = ranked_candidates(57, 3, Random(seed))
        assert set(candidates) - {57} <= set(mistakes(57))
