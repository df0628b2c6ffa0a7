"""Proximal policy optimisation, with a clip or with a penalty."""

from rlmods.algo.policy_gradient import PolicyGradient


class PPO(PolicyGradient):
    """Proximal policy optimisation (arXiv:1707.06347, eq. 7; for language models arXiv:2203.02155,
    section 3.5), the last stage of RLHF.

    `1/sum|y| sum_t min(r A, clip(r, 1-eps, 1+eps) A)` over epochs of minibatches. A is GAE (gamma
    1, lambda 0.95, whitened) of the reward on the last token and `-beta log(pi/pi_ref)` on every
    token, with a critic V that is regressed on the returns with a clip. It has a baseline for each
    token, where group methods have one for each response, at the cost of a second network and of
    its error."""


class PPOKL(PolicyGradient):
    """PPO with a KL penalty instead of the clip (arXiv:1707.06347, eq. 8).

    `1/sum|y| sum_t [ r A - beta KL(pi_old || pi) ]`, with beta doubled or halved so that the KL of
    an iteration stays near a target. This soft trust region limits the change of every token, while
    a clip removes the gradient of some."""
