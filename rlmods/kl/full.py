"""Exact Kullback-Leibler divergence from the reference, over the whole vocabulary."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from rlmods.needs import KLNeeds
from rlmods.ops import kl_divergence
from rlmods.settings.bounds import NonNegative, bounded


@dataclass(frozen=True)
@bounded("kl")
class Full:
    """KL(pi || ref) of the distributions of each next token, given the sampled tokens before it,
    added to the loss:

        sum_v pi(v | x, y_<t) (log pi(v | x, y_<t) - log ref(v | x, y_<t))

    `Penalty` estimates it from the one token that was sampled; k1, k2 and k3 have a variance, and
    k1 and k3 the wrong gradient. The sum has neither, and costs the reference's output layer and a
    second tensor of logits in every optimizer step. Like the estimators, it ignores that the policy
    also determines the tokens before t."""

    coefficient: NonNegative
    """beta."""

    where = "loss"
    needs = KLNeeds(distributions=True)

    def __call__(
        self, logprobs: Float[Tensor, "n V"], ref_logprobs: Float[Tensor, "n V"]
    ) -> Float[Tensor, " n"]:
        return kl_divergence(logprobs, ref_logprobs)
