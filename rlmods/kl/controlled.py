"""KL penalties whose coefficient changes during training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmods.kl.penalty import Penalty
from rlmods.settings.bounds import Count, NonNegative, Positive, bounded, check_bounds
from rlmods.types import TokenFloats


@dataclass
@bounded("kl")
class _Controlled:
    """Base of penalties with a variable `coefficient`."""

    estimator: Literal["k1", "k2", "k3"]
    """Estimator of the divergence, as in `Penalty`."""
    coefficient: NonNegative
    """beta: the initial value in the configuration, the current value while training."""
    where: Literal["loss", "reward"]
    """loss: + beta * KL in the loss. reward: - beta * KL on each token's reward, without a
    gradient."""

    def __call__(self, logprobs: TokenFloats, ref_logprobs: TokenFloats) -> TokenFloats:
        return Penalty(self.estimator, self.coefficient, self.where)(logprobs, ref_logprobs)


@dataclass
@bounded("kl")
class Adaptive(_Controlled):
    """Adaptive controller: beta <- beta * (1 + clip(d / target - 1, -0.2, 0.2) * n / horizon) after
    every iteration, and at least beta / 2, between `minimum` and `maximum`.

    Ziegler et al. 2019, arXiv:1909.08593, section 2.2. d is the iteration's `train/kl_ref` (nats
    per token), n its number of responses (`train/responses`). beta is saved in checkpoints."""

    target: Positive = 0.05
    """Target KL divergence from the reference, nats per token."""
    horizon: Positive = 2560.0
    """Number of responses; above 0. beta changes more slowly with a larger one; ten iterations'
    worth is the paper's K_beta = 0.1."""
    minimum: Positive = 1e-4
    """Lower bound of beta; above 0, so that beta returns after a long time below the target."""
    maximum: float = 100.0
    """Upper bound of beta; at least `minimum`."""

    def __post_init__(self) -> None:
        minimum, maximum = self.minimum, self.maximum
        rules = {
            "maximum": (maximum >= minimum, f"at least kl.minimum={minimum}"),
            "coefficient": (minimum <= self.coefficient <= maximum, f"from {minimum} to {maximum}"),
        }
        check_bounds(self, "kl", rules)

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        error = metrics.get("train/kl_ref", self.target) / self.target - 1
        factor = 1 + min(max(error, -0.2), 0.2) * metrics.get("train/responses", 0) / self.horizon
        # with a horizon far below n, beta would become negative and reward divergence
        factor = max(factor, 0.5)
        self.coefficient = min(max(self.coefficient * factor, self.minimum), self.maximum)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]


@dataclass
@bounded("kl")
class Ramp(_Controlled):
    """Linear schedule of beta from `coefficient` to `final` over `iterations`, constant afterwards.

    Iteration i (from 0) is trained with coefficient + (final - coefficient) * min(1, i /
    iterations)."""

    final: NonNegative = 0.0
    """Final beta."""
    iterations: Count = 100
    """Number of iterations until `final` is reached."""
    _start: float = field(init=False, repr=False, compare=False)
    _done: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._start = self.coefficient

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        self.load_state_dict({"done": self._done + 1})

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._done = state["done"]
        self.coefficient = self._start + (self.final - self._start) * min(
            1.0, self._done / self.iterations
        )
