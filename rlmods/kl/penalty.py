"""A sampled Kullback-Leibler divergence from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Penalty:
    """Estimates of KL(pi || ref) from tokens sampled by pi, with d = log pi - log ref, unscaled:

        k1 = d        k2 = d^2 / 2        k3 = exp(-d) - 1 + d >= 0

    Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html). PPO takes k1 off the reward (arXiv:2203.02155,
    equation 2); GRPO adds k3 to the loss (arXiv:2402.03300, equation 4). Differentiated as a loss, k1 has gradient 0 in expectation, k3
    the forward KL's and only k2 the reverse KL's (arXiv:2512.21852). There is no mask here: clear masked slots of both arguments first."""

    estimator: Literal["k1", "k2", "k3"]
    coefficient: float
    """beta; at least 0."""
    where: Literal["loss", "reward"]
    """loss: + beta * KL in the loss. reward: - beta * KL on each token's reward, without a gradient."""
    gradient: Literal["value", "exact"] = "value"
    """value: the estimator's own. exact: k2's, which on policy is the gradient of KL(pi || ref); the value stays the estimator's."""

    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        choices = {"estimator": ("k1", "k2", "k3"), "where": ("loss", "reward"), "gradient": ("value", "exact")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"Penalty: {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not (isfinite(self.coefficient) and self.coefficient >= 0):
            raise ValueError(f"Penalty: coefficient must be at least 0, got {self.coefficient}")
        if self.where == "reward" and self.gradient == "exact":
            raise ValueError("Penalty: gradient=exact means nothing with where=reward, which has no gradient")

    def __call__(self, logprobs: Float[Tensor, "N T"], ref_logprobs: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        d = logprobs - ref_logprobs
        k2 = d.square() / 2
        value = {"k1": d, "k2": k2, "k3": (-d).exp() - 1 + d}[self.estimator]
        return value.detach() + (k2 - k2.detach()) if self.gradient == "exact" else value
