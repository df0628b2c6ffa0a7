"""Geometric-mean policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class GMPO(PolicyGradient):
    """GRPO with the geometric instead of the arithmetic mean of the token ratios
    (arXiv:2507.20673): outliers hardly change it, so the clip bounds can be wide.

    `mean_i (prod_t r'_t)^(1/|y_i|) A`, with `r' = min(r, e^0.4)` where A > 0, `max(r, e^-0.4)`
    where A < 0, and A as in GRPO."""
