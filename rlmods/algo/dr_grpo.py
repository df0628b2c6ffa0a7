"""GRPO without length and difficulty bias."""

from rlmods.algo.policy_gradient import PolicyGradient


class DrGRPO(PolicyGradient):
    """GRPO without its two biases (arXiv:2503.20783): `1/|y|` favours long incorrect responses,
    `1/std` favours easy and hard prompts.

    `1/(N L) sum_i sum_t min(r A, clip(r, 1-eps, 1+eps) A)`, with `A_i = R_i - mean(R)` over the
    group and L a constant."""
