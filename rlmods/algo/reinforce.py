"""REINFORCE with a running baseline."""

from rlmods.algo.policy_gradient import PolicyGradient


class REINFORCE(PolicyGradient):
    """The plain policy gradient (Williams 1992, doi:10.1007/BF00992696), the starting point of all
    other algorithms here.

    `1/sum|y| sum_i sum_t r A`, with `A_i = R_i - b` and b the running mean of R, which includes
    `-beta log(pi/pi_ref)` of every token. One baseline for all prompts costs nothing and has a high
    variance: responses to easy prompts have a positive advantage on average."""
