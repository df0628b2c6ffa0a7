"""Invariances of preference losses and their gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.needs import PreferenceNeeds, needs_of
from rlmods.preference import IPO, KTO, ORPO, Sigmoid, SimPO
from tests.preference.losses import both, call
from tests.support.batches import few
from tests.support.rankings import Rankings, ranking, rankings

LOSSES = {
    "dpo": Sigmoid(),
    "cdpo": Sigmoid(label_smoothing=0.1),
    "ipo": IPO(),
    "simpo": SimPO(),
    "kto": KTO(),
    "orpo": ORPO(),
}
every_loss = pytest.mark.parametrize("part", LOSSES.values(), ids=LOSSES)
PAIRWISE = [name for name, part in LOSSES.items() if needs_of(part, PreferenceNeeds).pairs]


@every_loss
def test_loss_and_gradient_are_not_0(part: Any) -> None:
    value, grad = both(part, r := ranking(6, 4, seed=1))
    assert value.norm() > 1e-2
    assert grad[r.present].norm() > 1e-3
    assert (grad[~r.present] == 0).all()


@every_loss
@few
@given(rankings)
def test_values_of_absent_responses_change_no_bit(part: Any, r: Rankings) -> None:
    for clean, dirty in zip(both(part, r), both(part, r.poisoned()), strict=True):
        assert torch.equal(clean, dirty)
    reward = part.reward(r.poisoned().logprobs, r.poisoned().ref_logprobs, r.num_tokens)
    assert reward.isfinite().all()


@every_loss
@few
@given(rankings, st.randoms(use_true_random=False), st.integers(0, 3))
def test_invariant_to_order_of_candidates_and_to_absent_ones(
    part: Any, r: Rankings, random: Any, more: int
) -> None:
    wide = r.widened(more)
    columns = torch.tensor(random.sample(range(wide.rank.shape[1]), wide.rank.shape[1]))
    value, grad = both(part, wide)
    shuffled, shuffled_grad = both(part, wide.candidates(columns))
    torch.testing.assert_close(shuffled, both(part, r)[0])
    torch.testing.assert_close(shuffled_grad, grad[:, columns])
    torch.testing.assert_close(value, shuffled)


@every_loss
@few
@given(rankings)
def test_prompts_are_independent(part: Any, r: Rankings) -> None:
    value, _ = both(part, r)
    alone = [call(part, r.prompts(torch.tensor([p]))) for p in range(len(r.rank))]
    torch.testing.assert_close(torch.cat(alone), value)


@every_loss
def test_reference_changes_the_loss_where_it_is_declared_and_is_not_needed_elsewhere(
    part: Any,
) -> None:
    r = ranking(6, 4, seed=1)
    needs = needs_of(part, PreferenceNeeds)
    other = Rankings(r.logprobs, r.ref_logprobs * 1.5, r.num_tokens, r.rank, r.margin)
    assert torch.equal(call(part, r), call(part, other)) is not needs.reference


@pytest.mark.parametrize("name", PAIRWISE)
def test_ties_and_single_responses_have_no_preference(name: str) -> None:
    r = ranking(6, 3, seed=2)
    tied = Rankings(r.logprobs, r.ref_logprobs, r.num_tokens, torch.ones_like(r.rank), r.margin)
    single = r.candidates(torch.tensor([0]))
    single = Rankings(
        single.logprobs,
        single.ref_logprobs,
        single.num_tokens,
        torch.ones_like(single.rank),
        single.margin,
    )
    for rows in (tied, single):
        value, grad = both(LOSSES[name], rows)
        assert (value == 0).all()
        assert (grad == 0).all()


@pytest.mark.parametrize("name", [n for n in PAIRWISE if n != "orpo"])
def test_swapping_better_and_worse_negates_the_gradient_at_the_reference(name: str) -> None:
    same = torch.full((1, 2), -3.0, dtype=torch.float64)
    r = Rankings(same, same, torch.tensor([[4, 4]]), torch.tensor([[0, 1]]), torch.zeros(1))
    swapped = Rankings(same, same, r.num_tokens, torch.tensor([[1, 0]]), r.margin)
    grad = both(LOSSES[name], r)[1]
    assert grad[0, 0] < 0 < grad[0, 1]
    torch.testing.assert_close(both(LOSSES[name], swapped)[1], -grad)


@every_loss
@pytest.mark.parametrize("extreme", [-1e4, -50.0, -1e-7, 0.0])
def test_extreme_log_probabilities_stay_finite_in_float32(part: Any, extreme: float) -> None:
    logprobs = torch.tensor([[extreme, -3.0], [-3.0, extreme]], requires_grad=True)
    r = Rankings(
        logprobs,
        torch.full((2, 2), -3.0),
        torch.ones(2, 2, dtype=torch.long),
        torch.tensor([[0, 1], [0, 1]]),
        torch.zeros(2),
    )
    loss = call(part, r, logprobs)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), logprobs)[0].isfinite().all()
