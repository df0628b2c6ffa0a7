import torch
from hypothesis import given, strategies as st

from rlmods.tokens import OffPolicy
from tests.support.batches import Batch, batches, few
from tests.support.reference import near_the_sampler


@few
@given(batches, st.floats(0.01, 0.6))
def test_equals_the_loop(b: Batch, threshold: float) -> None:
    behavior = b.values - b.log_ratio
    expected = near_the_sampler(b.values, behavior, b.advantages, b.mask, threshold)
    p = b.poisoned()
    found = OffPolicy(threshold)(p.values, p.advantages, p.mask, p.values - p.log_ratio)
    assert {tuple(x) for x in found.nonzero().tolist()} == expected


def test_only_wrong_responses_that_became_unlikely_are_left_out() -> None:
    """By hand: wrong and less likely, wrong and more likely, right and less likely, wrong and at
    the largest distance."""
    logprobs = torch.tensor([[-3.0, -1.0], [-0.1, -0.1], [-3.0, -1.0], [-1.5, -1.5]])
    behavior = torch.full((4, 2), -1.0)
    advantages = torch.tensor([-1.0, -1.0, 1.0, -1.0])[:, None].expand(4, 2)
    mask = torch.ones(4, 2, dtype=torch.bool)
    found = OffPolicy(0.5)(logprobs, advantages, mask, behavior)
    assert found.all(1).tolist() == [False, True, True, True]
    assert not found[0].any()
