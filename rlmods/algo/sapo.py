"""Soft adaptive policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class SAPO(PolicyGradient):
    """GRPO with a smooth gate instead of the clip (arXiv:2511.20347): an outlying token keeps a
    small gradient, and does not remove that of its response.

    `mean_i 1/|y_i| sum_t f(r) A`, with `f(r) = 4/tau sigmoid(tau (r-1))`, tau 1.0 where A > 0 and
    1.05 elsewhere, and A as in GRPO. The gradient decreases as r leaves 1, and faster for A < 0,
    where probability moves to the whole vocabulary."""
