"""Training without a critic."""

from rlmods.critic import NoCritic
from tests.support.tiny_setup import learner, policy


def test_has_no_network():
    assert NoCritic()(policy()) is None
    assert list(learner().networks) == ["policy"]
