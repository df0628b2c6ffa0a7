"""Group sequence policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class GSPO(PolicyGradient):
    """GRPO with one ratio per response (arXiv:2507.18071, eq. 5): the reward is given to the
    sequence, so the sequence is clipped, and the noise of single tokens does not accumulate.

    `mean_i min(s A, clip(s, 1-3e-4, 1+4e-4) A)`, with `s_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|)` and
    A as in GRPO."""
