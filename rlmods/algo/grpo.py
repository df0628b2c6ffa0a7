"""Group relative policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class GRPO(PolicyGradient):
    """No critic: the other answers to the same question are the baseline (DeepSeekMath, arXiv 2402.03300, eq. 3).

    `mean_i 1/|y_i| sum_t [ min(r A, clip(r, 1-eps, 1+eps) A) - beta k3 ]`, with `A_i = (R_i - mean(R)) / std(R)` over the group.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "group_norm",
        "kl": "loss",
        "ratio": "symmetric",
        "aggregation": "sequence_mean",
    }
