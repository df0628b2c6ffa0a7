"""On-policy distillation."""

from rlmods.algo.policy_gradient import PolicyGradient


class Distill(PolicyGradient):
    """On-policy distillation: the policy samples, and the teacher grades each token (Thinking
    Machines Lab 2025, "On-Policy Distillation"; the reverse KL on the policy's own samples of
    MiniLLM, arXiv:2306.08543, and GKD, arXiv:2306.13649).

    `1/sum|y| sum_i sum_t r A_t`, with `A_t = log p_T(y_t | x', y_<t) - log pi_old(y_t | x, y_<t)`
    (`advantage=teacher`)

    x' is the teacher's prompt, which may show what x does not. Rewards are logged only; with
    `advantage=sum` the policy learns from both."""
