import math

import pytest
import torch
from hypothesis import given

from rlmods.ranking import BradleyTerry
from rlmods.ranking.pairs import pair_correctness
from tests.support.batches import few, gradient
from tests.support.rankings import Rankings, ranking, rankings
from tests.test_golden import GOLDEN

golden = pytest.mark.skipif(not GOLDEN, reason="no golden numbers beside the repository")


def golden_scores() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
    """Scores, ranks, mask and margins, with the candidates of every prompt in another order."""
    scores = torch.tensor(GOLDEN["reward_model"]["scores_best_first"], dtype=torch.float64)
    order = torch.stack(
        [torch.randperm(4, generator=torch.Generator().manual_seed(i)) for i in range(len(scores))]
    )
    return scores.gather(1, order), order, torch.ones_like(order, dtype=torch.bool), None


@pytest.mark.parametrize("margin", [False, True])
@few
@given(rankings)
def test_equals_the_loop(margin: bool, r: Rankings) -> None:
    fast, slow = r.logprobs.clone().requires_grad_(), r.logprobs.clone().requires_grad_()
    actual = BradleyTerry(margin)(fast, r.rank, r.present, r.margin)
    expected = r.over_pairs(
        lambda p, i, j: torch.log(1 + torch.exp(slow[p, j] - slow[p, i] + margin * r.margin[p]))
    )
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual.sum(), fast), gradient(expected.sum(), slow))


@golden
def test_golden() -> None:
    loss = BradleyTerry()(*golden_scores()).mean().item()
    assert loss == pytest.approx(GOLDEN["reward_model"]["bradley_terry_all_pairs_mean"], abs=1e-6)


def test_equal_scores_are_ln_2_with_a_gradient() -> None:
    scores = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = BradleyTerry()(
        scores, torch.tensor([[1, 0, 2]]), torch.ones(1, 3, dtype=torch.bool), None
    )
    assert loss.item() == pytest.approx(math.log(2))
    assert gradient(loss.sum(), scores)[0].tolist() == pytest.approx([0, -1 / 3, 1 / 3])


@few
@given(rankings)
def test_ties_and_absent_candidates_contribute_nothing(r: Rankings) -> None:
    dirty = r.poisoned().logprobs.requires_grad_()
    loss = BradleyTerry()(dirty, r.rank, r.present, None)
    assert torch.equal(loss, BradleyTerry()(r.logprobs, r.rank, r.present, None))
    assert (gradient(loss.sum(), dirty)[~r.present] == 0).all()
    assert (BradleyTerry()(r.logprobs, torch.ones_like(r.rank), r.present, None) == 0).all()


def test_prompts_without_margins_have_margin_0() -> None:
    r = ranking(2, 2, seed=0)
    loss = BradleyTerry(margin=True)(r.logprobs, r.rank, r.present, None)
    assert torch.equal(loss, BradleyTerry()(r.logprobs, r.rank, r.present, None))


def test_rounding_errors_are_ties_in_pair_accuracy() -> None:
    assert pair_correctness(torch.tensor([[[0.0, 1e-6, -1e-6, 1e-3, -1e-3]]])).tolist() == [
        [[0.5, 0.5, 0.5, 1.0, 0.0]]
    ]
