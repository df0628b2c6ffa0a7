"""Clipped importance-sampling policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class CISPO(PolicyGradient):
    """The weight is clipped, not the token (MiniMax-M1, arXiv 2506.13585, eq. 4): PPO's clip silences rare words such as "wait" for good.

    `1/sum|y| sum_i sum_t sg[min(r, 1+high)] A log pi`, with A as in GRPO: every token keeps its gradient, at a bounded weight.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "group_norm",
        "kl": "none",
        "ratio": "cispo",
        "aggregation": "token_mean",
    }
