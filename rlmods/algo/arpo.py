"""Agentic reinforced policy optimisation."""

from rlmods.algo.policy_gradient import PolicyGradient


class ARPO(PolicyGradient):
    """GRPO over trees of responses with calls of tools, which branch where the policy is uncertain
    about a result (arXiv:2507.19849).

    Of the M responses to a prompt, N are sampled from the prompt on (`branching.num_initial`).
    After the result of a tool, a response branches if `alpha + beta (H - H_initial) > tau`, where H
    are entropies of the first k tokens; the branches share the tokens before. The objective is that
    of GRPO over all M responses, `mean_i 1/|y_i| sum_t [ min(r A, clip(r, 1-eps, 1+eps) A) - beta
    k3 ]` over sampled tokens t, with the advantages `(R_i - mean(R)) / std(R)`: of the row
    (`advantage=branch_soft`, as in the paper), or on shared tokens the mean over the rows that
    share them (`advantage=branch_hard`). Beyond the paper, `advantage=tree` credits each segment
    with the change of the mean reward below it."""
