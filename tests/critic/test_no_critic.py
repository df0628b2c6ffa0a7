from rlmods.critic import NoCritic
from tests.support.tiny_setup import learner, policy


def test_makes_no_network():
    assert NoCritic()(policy()) is None
    assert list(learner().networks) == ["policy"]
