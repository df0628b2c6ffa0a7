"""REINFORCE with a running baseline."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class REINFORCE(PolicyGradient):
    """The plain policy gradient (Williams 1992, doi:10.1007/BF00992696): what every other algorithm here improves on.

    `1/sum|y| sum_i sum_t r A`, with `A_i = R_i - b` and b the running mean of R, which holds `-beta log(pi/pi_ref)` at every token. One
    number for all prompts is the cheapest baseline there is, and the noisiest: an easy prompt looks good whatever is answered.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "ema",
        "kl": "reward",
        "ratio": "none",
        "aggregation": "token_mean",
    }
