import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.sampling import Dynamic
from tests.support.batches import few

GROUPS = st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=20)


@pytest.mark.parametrize("wrong_score", [0.0, -1.0])
@few
@given(GROUPS)
def test_keeps_a_group_iff_some_and_not_all_are_correct(
    wrong_score: float, rows: list[tuple[int, bool]]
) -> None:
    group = torch.tensor([g for g, _ in rows])
    scores = torch.tensor([1.0 if correct else wrong_score for _, correct in rows])
    keep = Dynamic()(scores, group).tolist()
    for (group_id, _), kept in zip(rows, keep, strict=True):
        members = [correct for g, correct in rows if g == group_id]
        assert kept == (0 < sum(members) < len(members))


def test_groups_are_defined_by_id_and_not_by_position() -> None:
    scores, group = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([7, 5, 7, 7])
    assert Dynamic()(scores, group).tolist() == [True, False, True, True]


def test_float_noise_is_not_a_difference() -> None:
    scores = torch.tensor([0.1, 0.1, 0.1, 0.1 + 1e-7])
    assert scores.max() > scores.min()
    assert not Dynamic()(scores, torch.zeros(4, dtype=torch.long)).any()


def test_unscored_responses_are_ignored_and_kept_or_dropped_with_their_group() -> None:
    nan = float("nan")
    scores, group = torch.tensor([1.0, nan, 0.0, 1.0, nan, nan]), torch.tensor([0, 0, 0, 1, 1, 2])
    assert Dynamic()(scores, group).tolist() == [True, True, True, False, False, False]
