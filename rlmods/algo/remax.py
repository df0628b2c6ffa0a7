"""ReMax."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class ReMax(PolicyGradient):
    """REINFORCE measured against the greedy answer (arXiv 2310.10505): a baseline for each prompt from one more answer, not from a critic.

    `1/sum|y| sum_i sum_t r A`, with `A_t = R - beta sum_{s>=t} log(pi/pi_ref)_s - R(greedy)`: a sample is good where it beats what the
    policy would say for certain.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "greedy",
        "kl": "reward",
        "ratio": "none",
        "aggregation": "token_mean",
    }
