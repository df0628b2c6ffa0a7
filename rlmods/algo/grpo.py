"""Group relative policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class GRPO(PolicyGradient):
    """PPO without a critic: the other responses to the same prompt are the baseline (DeepSeekMath,
    arXiv:2402.03300, eq. 3).

    `mean_i 1/|y_i| sum_t [ min(r A, clip(r, 1-eps, 1+eps) A) - beta k3 ]`, with `A_i = (R_i -
    mean(R)) / std(R)` over the group."""
