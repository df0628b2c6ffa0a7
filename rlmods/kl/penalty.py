"""Sampled Kullback-Leibler divergence from the reference."""

from dataclasses import dataclass
from typing import Literal

from rlmods.settings.bounds import NonNegative, bounded
from rlmods.types import TokenFloats


@dataclass(frozen=True)
@bounded("kl")
class Penalty:
    """Per-token estimate of KL(pi || ref) from tokens sampled by pi, unscaled, with d = log pi -
    log ref:

        k1 = d        k2 = d^2 / 2        k3 = exp(-d) - 1 + d >= 0

    Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html). PPO subtracts k1
    from the reward (arXiv:2203.02155, equation 2); GRPO adds k3 to the loss (arXiv:2402.03300,
    equation 4). As a loss, k1 has an expected gradient of 0, k3 the forward KL's, and only k2 the
    reverse KL's (arXiv:2512.21852). There is no mask: fill masked slots of both arguments with
    finite values first."""

    estimator: Literal["k1", "k2", "k3"]
    """Estimator of the divergence, see above."""
    coefficient: NonNegative
    """beta."""
    where: Literal["loss", "reward"]
    """loss: + beta * KL in the loss. reward: - beta * KL on each token's reward, without a
    gradient."""
    gradient: Literal["value", "exact"] = "value"
    """Gradient of the loss. value: the estimator's. exact: k2's, on-policy the gradient of KL(pi ||
    ref); the value is unchanged."""

    def __post_init__(self) -> None:
        if self.where == "reward" and self.gradient == "exact":
            raise ValueError(
                "kl.gradient=exact: must be value with kl.where=reward, which has no gradient"
            )

    def __call__(self, logprobs: TokenFloats, ref_logprobs: TokenFloats) -> TokenFloats:
        d = logprobs - ref_logprobs
        k2 = d.square() / 2
        value = {"k1": d, "k2": k2, "k3": (-d).exp() - 1 + d}[self.estimator]
        return value.detach() + (k2 - k2.detach()) if self.gradient == "exact" else value
