"""Decoupled clip and dynamic sampling policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class DAPO(PolicyGradient):
    """GRPO with a higher upper clip bound, which keeps exploration, and without groups of equal
    rewards, which have no gradient (arXiv:2503.14476, eq. 8).

    `1/sum|y| sum_i sum_t min(r A, clip(r, 1-low, 1+high) A)` over groups with `0 < #correct < G`,
    low 0.2 < high 0.28, no KL. Every token has the same weight, and responses near the length limit
    get a soft penalty."""
