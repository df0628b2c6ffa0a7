"""Group sequence policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class GSPO(PolicyGradient):
    """The unit that is rewarded is the unit that is clipped (arXiv 2507.18071, eq. 5): one ratio a response, so no token's noise piles up.

    `mean_i min(s A, clip(s, 1-3e-4, 1+4e-4) A)`, with `s_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|)` and A as in GRPO.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "group_norm",
        "kl": "none",
        "ratio": "sequence",
        "aggregation": "sequence_mean",
    }
