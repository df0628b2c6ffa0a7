import pytest
import torch
from hypothesis import given

from rlmods.ranking import BradleyTerry, PlackettLuce
from tests.ranking.test_bradley_terry import golden, golden_scores
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, rankings
from tests.test_golden import GOLDEN


@few
@given(rankings)
def test_equals_the_loop(r: Rankings) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for p in range(len(r.rank)):
        for k in range(r.rank.shape[1]):
            worse = [j for i, j in r.pairs(p) if i == k]
            if r.present[p, k]:
                expected = expected + (p + 1) * torch.log(
                    1 + sum((torch.exp(slow[p, j] - slow[p, k]) for j in worse), torch.tensor(0.0))
                )
    actual = (
        PlackettLuce()(fast, r.rank, r.present, None) * torch.arange(1, len(r.rank) + 1)
    ).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual, fast), gradient(expected, slow))


@golden
def test_golden() -> None:
    loss = PlackettLuce()(*golden_scores()).mean().item()
    assert loss == pytest.approx(GOLDEN["reward_model"]["plackett_luce_mean"], abs=1e-6)


def test_probabilities_of_all_rankings_sum_to_one() -> None:
    scores = torch.tensor([[0.3, -1.2, 0.8]], dtype=torch.float64)
    rankings_of_3 = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    everyone = torch.ones(1, 3, dtype=torch.bool)
    total = sum(
        (-PlackettLuce()(scores, torch.tensor([rank]), everyone, None)).exp().item()
        for rank in rankings_of_3
    )
    assert total == pytest.approx(1)


@few
@given(rankings)
def test_two_candidates_equal_bradley_terry(r: Rankings) -> None:
    pair = r.candidates(torch.arange(min(2, r.rank.shape[1])))
    inputs = (pair.logprobs, pair.rank, pair.present, None)
    torch.testing.assert_close(PlackettLuce()(*inputs), BradleyTerry()(*inputs))


@few
@given(rankings)
def test_ties_and_absent_candidates_contribute_nothing(r: Rankings) -> None:
    dirty = r.poisoned().logprobs.requires_grad_()
    loss = PlackettLuce()(dirty, r.rank, r.present, None)
    assert torch.equal(loss, PlackettLuce()(r.logprobs, r.rank, r.present, None))
    assert (gradient(loss.sum(), dirty)[~r.present] == 0).all()
    assert (PlackettLuce()(r.logprobs, torch.ones_like(r.rank), r.present, None) == 0).all()
