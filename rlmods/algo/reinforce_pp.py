"""REINFORCE++, without and with a group baseline."""

from rlmods.algo.policy_gradient import PolicyGradient


class ReinforcePP(PolicyGradient):
    """PPO without the critic, with advantages normalised over the batch (arXiv:2501.03262): the
    standard deviation of a single prompt's responses is a biased estimate, and overfits to few
    prompts.

    `1/sum|y| sum_i sum_t min(r A, clip(r, 1-eps, 1+eps) A)`, with `A_t = (G_t - mean(G)) / std(G)`
    over all tokens of the batch and `G_t = R - beta sum_{s>=t} log(pi/pi_ref)_s`. It works with one
    sample per prompt."""


class ReinforcePPBaseline(PolicyGradient):
    """REINFORCE++ with several samples per prompt (arXiv:2501.03262), whose mean reward is
    subtracted first, so that prompts of different difficulty are comparable.

    The objective of REINFORCE++ with `R - mean(R)` over the prompt's responses in place of `G_t`,
    GRPO's baseline without its divisor, and the KL from the reference as a loss of its own,
    estimated by k2: `- beta/sum|y| sum_i sum_t log(pi/pi_ref)_t^2 / 2`."""
