"""Decoupled clip and dynamic sampling policy optimisation."""

from typing import ClassVar

from rlmods.algo.policy_gradient import PolicyGradient


class DAPO(PolicyGradient):
    """GRPO that keeps exploring (arXiv 2503.14476, eq. 8): rare good tokens may rise further, groups that teach nothing are drawn again.

    `1/sum|y| sum_i sum_t min(r A, clip(r, 1-low, 1+high) A)` over groups with `0 < #correct < G`, low 0.2 < high 0.28, no KL; every
    token weighs the same, and overlong answers are penalised softly before they are cut.
    """

    recipe: ClassVar = {
        "sampling": "dynamic",
        "advantage": "group_norm",
        "kl": "none",
        "ratio": "clip_higher",
        "aggregation": "token_mean",
    }
