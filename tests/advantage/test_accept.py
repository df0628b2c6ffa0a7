import torch
from hypothesis import given, strategies as st

from rlmods.advantage import Accept
from rlmods.aggregation import TokenMean
from rlmods.ratio import LogLikelihood
from tests.support.batches import Batch, batch, batches, few, gradient
from tests.support.reference import true_slots


@few
@given(batches, st.floats(-1, 1))
def test_equals_the_loop(b: Batch, threshold: float) -> None:
    p = b.poisoned()
    advantages = Accept(threshold)(p.rewards, p.mask, p.group).advantages
    for i, ts in enumerate(true_slots(b.mask)):
        accepted = sum(float(b.rewards[i, t]) for t in ts) >= threshold
        assert advantages[i].tolist() == [
            float(accepted and t in ts) for t in range(b.mask.shape[1])
        ]


def test_reward_equal_to_the_threshold_is_accepted() -> None:
    rewards = torch.tensor([[0.25, 0.25], [0.25, 0.125], [1.0, -0.5]])
    advantages = Accept(0.5)(
        rewards, torch.ones(3, 2, dtype=torch.bool), torch.tensor([0, 0, 0])
    ).advantages
    assert advantages.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_gradient_with_log_likelihood_is_sft_on_accepted_responses() -> None:
    b = batch(8, 6, seed=2)
    logprobs = b.log_ratio.clone().requires_grad_()
    advantages = Accept(0.0)(b.rewards, b.mask, b.group).advantages
    passed = advantages.any(1, keepdim=True) & b.mask
    assert passed.any()
    assert not passed.any(1)[b.mask.any(1)].all()
    loss = -TokenMean()(
        LogLikelihood()(logprobs - b.values, advantages, b.mask).objective, b.mask, b.totals
    )
    torch.testing.assert_close(gradient(loss, logprobs), -passed.double() / b.totals.tokens)
