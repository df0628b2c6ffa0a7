import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.training.ranking_metrics import auc, calibration_error, correlation
from tests.support.batches import few

LABELLED = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12)


@few
@given(LABELLED)
def test_auc_is_the_chance_that_a_positive_one_scores_above_a_negative_one(
    examples: list[tuple[int, bool]],
) -> None:
    good, bad = ([x for x, label in examples if label is kind] for kind in (True, False))
    wins = [1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad]
    scores, labels = (torch.tensor(column) for column in zip(*examples, strict=True))
    assert auc(scores.float(), labels) == pytest.approx(sum(wins) / len(wins) if wins else 0.5)


@few
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_calibration_error_is_that_of_each_tenth_by_its_share(
    examples: list[tuple[float, bool]],
) -> None:
    want = 0.0
    for b in range(10):
        inside = [(p, t) for p, t in examples if int(p * 10) == b or (b == 9 and p == 1)]
        if inside:
            gap = sum(p for p, _ in inside) / len(inside) - sum(t for _, t in inside) / len(inside)
            want += len(inside) / len(examples) * abs(gap)
    probability, true = zip(*examples, strict=True)
    assert calibration_error(
        torch.tensor(probability, dtype=torch.float64), torch.tensor(true)
    ) == pytest.approx(want, abs=1e-9)


def test_calibration_error_of_nothing_is_0() -> None:
    assert calibration_error(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0


@few
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=12))
def test_correlation_is_pearsons(points: list[tuple[float, float]]) -> None:
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    found = correlation(x, y)
    if x.std() > 1e-6 and y.std() > 1e-6:
        assert found == pytest.approx(torch.corrcoef(torch.stack([x, y]))[0, 1].item(), abs=1e-6)
    assert -1.000001 <= found <= 1.000001


def test_correlation_with_what_does_not_vary_is_0() -> None:
    assert correlation(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])) == 0


def test_auc_of_large_scores() -> None:
    """torchmetrics gives 0.5 here, because its sigmoid saturates."""
    assert auc(torch.tensor([20.0, 25.0]), torch.tensor([False, True])) == 1.0
