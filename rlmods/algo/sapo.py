"""Soft adaptive policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class SAPO(PolicyGradient):
    """No cliff at the edge of the trust region (arXiv 2511.20347): one outlying token neither ends its own gradient nor its response's.

    `mean_i 1/|y_i| sum_t f(r) A`, with `f(r) = 4/tau sigmoid(tau (r-1))`, tau 1.0 where A > 0 and 1.05 elsewhere, and A as in GRPO: the
    gradient fades as r leaves 1, and faster where a token is pushed down, because that spreads over the whole vocabulary.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "group_norm",
        "kl": "none",
        "ratio": "soft",
        "aggregation": "sequence_mean",
    }
