"""Proximal policy optimisation, with a clip or with a penalty."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class PPO(PolicyGradient):
    """The classic road's last stage (arXiv 1707.06347, eq. 7; with language models arXiv 2203.02155, section 3.5).

    `1/sum|y| sum_t min(r A, clip(r, 1-eps, 1+eps) A)` over epochs of minibatches, where A is GAE (gamma 1, lambda 0.95, whitened) of
    `reward at the end - beta log(pi/pi_ref) at every token` against a critic V, itself regressed on the returns with a clip. One
    baseline a token, where group methods have one a response; it costs a second network and what that network gets wrong.
    """

    recipe: ClassVar = {
        "sampling": "fixed",
        "advantage": "gae_whitened",
        "critic": "separate",
        "kl": "reward",
        "ratio": "symmetric",
        "aggregation": "token_mean",
    }


class PPOKL(PolicyGradient):
    """PPO with a penalty for leaving the old policy in place of a clip (arXiv 1707.06347, eq. 8).

    `1/sum|y| sum_t [ r A - beta KL(pi_old || pi) ]`, beta doubled or halved so that the KL of an iteration stays near a target: a soft
    trust region, which moves every token a little where a clip stops some of them dead.
    """

    recipe: ClassVar = {**PPO.recipe, "ratio": "kl_penalty"}
