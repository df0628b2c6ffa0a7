"""REINFORCE leave-one-out."""

from rlmods.algo.policy_gradient import PolicyGradient


class RLOO(PolicyGradient):
    """REINFORCE with the mean reward of the prompt's other samples as baseline (arXiv:2402.14740).
    PPO's clip and critic matter little when fine-tuning a good model.

    `1/sum|y| sum_i sum_t r A`, with `A_i = R_i - mean(R_j, j != i)` over the responses to a prompt;
    R includes `-beta log(pi/pi_ref)` of every token. A baseline without R_i leaves the gradient
    unbiased; GRPO's mean and standard deviation do not."""
