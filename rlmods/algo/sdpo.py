"""Self-distillation policy optimisation."""

from rlmods.algo.gkd import GKD


class SDPO(GKD):
    """Self-distillation from correct siblings and feedback (arXiv:2601.20802): the policy, shown
    what a response lacked, is the teacher of its every token.

    `1/sum|y| sum_i sum_t D(p_T(. | x'_i, y_<t), pi(. | x, y_<t))` over the responses i that have a
    correct sibling or feedback, which x'_i shows. D compares the `top_k` tokens that are most
    likely under pi, and all others together.

    With `algo.beta=1 algo.top_k=null` it is the reverse KL over all tokens. `algo=distill
    teacher=self` is an estimate of that from the sampled token, which `advantage=sum` adds to the
    advantage of a reward. The authors also weight a token by pi / pi_old, clipped at 2. The
    ratio is 1 in the first optimizer step on a batch, and they make one; here it is left out."""
