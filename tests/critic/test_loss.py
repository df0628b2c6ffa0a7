"""The value loss."""

import pytest
import torch
from hypothesis import given

from rlmods.advantage import GAE
from rlmods.aggregation import TokenMean
from rlmods.critic import loss as critic_loss
from rlmods.critic.loss import clip_range, value_loss
from rlmods.types import Totals
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few, gradient
from tests.test_golden import GOLDEN, close, read


def test_equals_reference_values():
    if not GOLDEN:
        pytest.skip("no golden values available")
    golden, mask = GOLDEN["value_loss"], torch.tensor(GOLDEN["mask"])
    new = torch.tensor(golden["new_values"], dtype=torch.float64).requires_grad_()
    returns = GAE(1.0, 0.95)(
        read("rewards"), mask, torch.tensor(GOLDEN["group"]), read("values")
    ).returns
    per_token, _ = value_loss(new, read("values"), returns, mask, golden["clip"])
    loss = TokenMean()(per_token, mask, Totals(mask.sum(), mask.any(1).sum()))
    close(loss, golden["loss"])
    close(gradient(loss, new), golden["grad_new_values"])


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope", "clipped"),
    [
        # moved towards the target beyond the clip: no gradient
        (0.5, 0.0, 1.0, 0.5 * 0.8**2, 0.0, True),
        (0.1, 0.0, 1.0, 0.5 * 0.9**2, -0.9, False),  # within the clip
        # moved away: the unclipped term is larger, and has a gradient
        (-0.5, 0.0, 1.0, 0.5 * 1.5**2, -1.5, False),
    ],
)
def test_loss_and_gradient_by_hand(value, old, target, loss, slope, clipped):
    v = torch.tensor([[value]], requires_grad=True)
    per_token, is_clipped = value_loss(
        v, torch.tensor([[old]]), torch.tensor([[target]]), torch.tensor([[True]]), 0.2
    )
    per_token.sum().backward()
    assert per_token.item() == pytest.approx(loss)
    assert v.grad.item() == pytest.approx(slope)
    assert is_clipped.item() is clipped


def test_without_clipping_it_is_the_square():
    v = torch.tensor([[3.0]])
    per_token, is_clipped = value_loss(
        v, torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([[True]]), None
    )
    assert (per_token.item(), is_clipped.item()) == (2.0, False)


@few
@given(batches)
def test_masked_values_have_no_influence(b: Batch):
    results = []
    for x in (b, b.poisoned()):
        v = x.values.clone().requires_grad_()
        loss, _ = value_loss(v, x.rewards, x.advantages, x.mask)
        results.append((loss, gradient(loss.sum(), v)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


class TestClipRange:
    def test_is_in_standard_deviations_of_the_returns(self):
        b = batch(6, 7, seed=2)
        have = clip_range(b.poisoned().rewards, b.mask, 0.5)
        assert have == pytest.approx(0.5 * float(b.rewards[b.mask].std(unbiased=False)))
        assert clip_range(100 * b.rewards + 7, b.mask, 0.5) == pytest.approx(100 * have)

    @pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
    def test_equal_returns_are_not_clipped(self, value):
        assert (
            clip_range(torch.full((4, 5), value), torch.ones(4, 5, dtype=torch.bool), 0.5) is None
        )

    def test_without_clip_or_tokens(self):
        b = batch(6, 7, seed=2)
        assert clip_range(b.rewards, b.mask, None) is None
        assert clip_range(b.rewards, torch.zeros_like(b.mask), 0.5) is None

    def test_is_over_all_ranks(self, monkeypatch):
        b = batch(6, 7, seed=2)
        halves = [b.select(torch.arange(3)), b.select(torch.arange(3, 6))]
        found = on_ranks(
            monkeypatch,
            critic_loss,
            *[lambda h=h: clip_range(h.rewards, h.mask, 0.5) for h in halves],
        )
        assert found == pytest.approx([0.5 * float(b.rewards[b.mask].std(unbiased=False))] * 2)
