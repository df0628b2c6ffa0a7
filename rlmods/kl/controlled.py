"""Penalties whose coefficient changes while training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from rlmods.kl.penalty import Penalty


@dataclass
class _Controlled:
    """A `Penalty` whose `coefficient` moves."""

    estimator: Literal["k1", "k2", "k3"]
    """As in `Penalty`, and so is `where`."""
    coefficient: float
    """beta: at the start of the run where it is given, and from then on the current one."""
    where: Literal["loss", "reward"]
    """loss: + beta * KL in the loss. reward: - beta * KL on each token's reward, without a gradient."""

    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Penalty(self.estimator, self.coefficient, self.where)

    def __call__(self, logprobs: Float[Tensor, "N T"], ref_logprobs: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        return Penalty(self.estimator, self.coefficient, self.where)(logprobs, ref_logprobs)


@dataclass
class Adaptive(_Controlled):
    """beta <- beta * (1 + clip(d / target - 1, -0.2, 0.2) * n / horizon) after every iteration, and at least beta / 2.

    Ziegler et al. 2019, arXiv:1909.08593, section 2.2. d is the iteration's `train/kl_ref` (nats per token), n its number of responses,
    `train/responses`. beta is saved and restored with the run."""

    target: float = 0.05
    """Distance from the reference that beta is steered to, nats per token; above 0."""
    horizon: float = 2560.0
    """Responses; above 0. The longer, the slower beta moves: ten iterations' worth is the paper's K_beta = 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("coefficient", "target", "horizon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Adaptive: {name} must be above 0, got {getattr(self, name)}")

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        error = metrics.get("train/kl_ref", self.target) / self.target - 1
        factor = 1 + min(max(error, -0.2), 0.2) * metrics.get("train/responses", 0) / self.horizon
        self.coefficient *= max(factor, 0.5)  # a horizon far below n would turn the sign and drive the policy away

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]


@dataclass
class Ramp(_Controlled):
    """beta goes in a straight line from `coefficient` to `final` within `iterations`, and stays there.

    Iteration i (from 0) is trained with coefficient + (final - coefficient) * min(1, i / iterations)."""

    final: float = 0.0
    """beta at the end; at least 0."""
    iterations: int = 100
    """Until `final` is reached; at least 1."""
    _start: float = field(init=False, repr=False, compare=False)
    _done: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isfinite(self.final) and self.final >= 0):
            raise ValueError(f"Ramp: final must be at least 0, got {self.final}")
        if not self.iterations >= 1:
            raise ValueError(f"Ramp: iterations must be at least 1, got {self.iterations}")
        self._start = self.coefficient

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        self.load_state_dict({"done": self._done + 1})

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._done = state["done"]
        self.coefficient = self._start + (self.final - self._start) * min(1.0, self._done / self.iterations)
