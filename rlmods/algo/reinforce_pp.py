"""REINFORCE++, without and with a group baseline."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class ReinforcePP(PolicyGradient):
    """PPO without the critic, normalised over the batch (arXiv 2501.03262): a prompt's own deviation is biased, and overfits a few prompts.

    `1/sum|y| sum_i sum_t min(r A, clip(r, 1-eps, 1+eps) A)`, with `A_t = (G_t - mean(G)) / std(G)` over all tokens of the batch and
    `G_t = R - beta sum_{s>=t} log(pi/pi_ref)_s`. One sample a prompt is enough.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "reinforce_pp",
        "kl": "reward",
        "ratio": "symmetric",
        "aggregation": "token_mean",
    }


class ReinforcePPBaseline(PolicyGradient):
    """REINFORCE++ with several samples a prompt (arXiv 2501.03262): their mean is taken off first, so that prompts need not be alike.

    The objective of REINFORCE++ with `G_t - mean(R)` over the prompt's answers in place of `G_t`: GRPO's mean, without its deviation.
    """

    recipe: ClassVar = {**ReinforcePP.recipe, "advantage": "reinforce_pp_baseline"}
