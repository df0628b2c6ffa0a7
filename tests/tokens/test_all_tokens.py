import torch

from rlmods.tokens import AllTokens, HighEntropy
from tests.algo.test_policy_gradient import off_policy
from tests.support.tiny_setup import close, gradients


def test_selects_nothing_and_equals_a_selection_of_all() -> None:
    made, batch = off_policy()
    own = gradients(made, batch)
    assert made.tokens(batch, made.policy(batch.tokens, batch.mask)) is None
    made, batch = off_policy(tokens=AllTokens())
    assert torch.equal(gradients(made, batch), own)
    made, batch = off_policy(tokens=HighEntropy(1.0))
    close(gradients(made, batch), own)
