"""Geometric-mean policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class GMPO(PolicyGradient):
    """A geometric mean where GRPO takes an arithmetic one (arXiv 2507.20673): outlying ratios hardly move it, so bounds can be wide.

    `mean_i (prod_t r'_t)^(1/|y_i|) A`, with `r' = min(r, e^0.4)` where A > 0, `max(r, e^-0.4)` where A < 0, and A as in GRPO.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "group_norm",
        "kl": "none",
        "ratio": "geometric_mean",
        "aggregation": "sequence_mean",
    }
