"""ReMax."""

from rlmods.algo.policy_gradient import PolicyGradient


class ReMax(PolicyGradient):
    """REINFORCE with the reward of the greedy response as baseline (arXiv:2310.10505): one more
    response per prompt instead of a critic.

    `1/sum|y| sum_i sum_t r A`, with `A_t = R - beta sum_{s>=t} log(pi/pi_ref)_s - R(greedy)`: a
    sample has a positive advantage if it is better than the greedy response."""
