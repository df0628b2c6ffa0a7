"""REINFORCE leave-one-out."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class RLOO(PolicyGradient):
    """PPO's clip and critic hardly matter when fine-tuning a good model (arXiv 2402.14740): REINFORCE with the other samples as baseline.

    `1/sum|y| sum_i sum_t r A`, with `A_i = R_i - mean(R_j, j != i)` over the answers to one prompt; R holds `-beta log(pi/pi_ref)` at every
    token. A baseline without R_i leaves the gradient unbiased, where GRPO's mean and deviation do not.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "rloo",
        "kl": "reward",
        "ratio": "none",
        "aggregation": "token_mean",
    }
