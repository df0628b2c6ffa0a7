"""Clipped importance-sampling policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class CISPO(PolicyGradient):
    """Clip the importance weight instead of the token's objective (MiniMax-M1, arXiv:2506.13585,
    eq. 4). PPO's clip removes the gradient of rare but important tokens such as "wait".

    `1/sum|y| sum_i sum_t sg[min(r, 1+high)] A log pi`, with A as in GRPO: every token keeps its
    gradient, with a bounded weight."""
