"""The critic's regression."""

import math

import pytest
import torch
from hypothesis import given

from rlmods.advantage import GAE
from rlmods.aggregation import TokenMean
from rlmods.critic.loss import value_loss
from rlmods.types import Totals
from tests.support.batches import Batch, batch, batches, few, gradient
from tests.test_golden import GOLDEN, close, read


def test_equals_the_reference_numbers():
    if not GOLDEN:
        pytest.skip("no golden numbers here")
    golden, mask = GOLDEN["value_loss"], torch.tensor(GOLDEN["mask"])
    new = torch.tensor(golden["new_values"], dtype=torch.float64).requires_grad_()
    returns = GAE(1.0, 0.95)(read("rewards"), mask, torch.tensor(GOLDEN["group"]), read("values")).returns
    per_token, _ = value_loss(new, read("values"), returns, mask, golden["clip"])
    loss = TokenMean()(per_token, mask, Totals(mask.sum(), mask.any(1).sum()))
    close(loss, golden["loss"])
    close(gradient(loss, new), golden["grad_new_values"])


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope", "clipped"),
    [
        (0.5, 0.0, 1.0, 0.5 * 0.8**2, 0.0, True),  # moved towards the target beyond the bound: no reason to move further
        (0.1, 0.0, 1.0, 0.5 * 0.9**2, -0.9, False),  # within the bound
        (-0.5, 0.0, 1.0, 0.5 * 1.5**2, -1.5, False),  # moved away: the unclipped term is the worse one, and pulls back
    ],
)
def test_table(value, old, target, loss, slope, clipped):
    v = torch.tensor([[value]], requires_grad=True)
    found, marked = value_loss(v, torch.tensor([[old]]), torch.tensor([[target]]), torch.tensor([[True]]), 0.2)
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert v.grad.item() == pytest.approx(slope)
    assert marked.item() is clipped


def test_without_a_clip_it_is_the_square():
    v = torch.tensor([[3.0]])
    found, marked = value_loss(v, torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([[True]]), None)
    assert (found.item(), marked.item()) == (2.0, False)


@few
@given(batches)
def test_garbage_in_masked_slots_changes_no_bit(b: Batch):
    found = []
    for x in (b, b.poisoned()):
        v = x.values.clone().requires_grad_()
        loss, _ = value_loss(v, x.rewards, x.advantages, x.mask)
        found.append((loss, gradient(loss.sum(), v)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_something_moves():
    b = batch(4, 5, seed=0)
    loss, _ = value_loss(b.values, b.rewards, b.advantages, b.mask)
    assert loss[b.mask].norm() > 0.1
    assert not math.isnan(float(loss.sum()))
