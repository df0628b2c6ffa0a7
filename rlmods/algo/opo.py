"""On-policy RL with optimal reward baseline."""

from rlmods.algo.policy_gradient import PolicyGradient


class OPO(PolicyGradient):
    """Exact on-policy training with the baseline that minimises the variance of the gradient
    (arXiv:2505.23585), without a clip, a KL penalty or an entropy bonus.

    `1/sum|y| sum_i sum_t r A`, with `A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|` over the responses
    to a prompt, and one optimizer step per iteration, so that r = 1."""
