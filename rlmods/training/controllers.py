"""What changes while a run goes on and belongs to no part: the entropy bonus and the scale of rewards. Saved and restored with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class EntropyBonus:
    """Weight c of the entropy bonus: fixed, or steered so that the entropy H stays near a target: c <- max(0, c + rate * (target - H)).

    Dual ascent on `maximise J subject to H >= target`, as soft actor-critic tunes its temperature (arXiv:1812.05905, section 5)."""

    coefficient: float
    """c, per nat of a token's entropy."""
    target: float | None = None
    """Nats per token; None: c is fixed."""
    rate: float = 0.01

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.target is not None and "train/entropy" in metrics:
            self.coefficient = max(0.0, self.coefficient + self.rate * (self.target - metrics["train/entropy"]))

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]


@dataclass
class RewardScale:
    """R' = clip((R - mean) / std, -clip, clip), with mean and std over every reward of the run so far, on all ranks.

    Running moments are merged in parallel (Chan et al. 1979), without the cancellation of E[R^2] - mean^2."""

    normalize: bool = False
    """Subtract the mean and divide by the standard deviation; where all rewards were equal, only subtract."""
    clip: float | None = None
    """Bound on the absolute value; None: no bound."""
    count: float = field(default=0.0, init=False)
    mean: float = field(default=0.0, init=False)
    squares: float = field(default=0.0, init=False)
    """Sum of squared distances from the mean."""

    def scaled(self, value: float | None) -> float | None:
        """The reward to train on. None stays None."""
        if value is None:
            return None
        if self.normalize and self.count:
            std = math.sqrt(self.squares / self.count)
            value = (value - self.mean) / (std if std > 1e-6 * max(1.0, abs(self.mean)) else 1.0)
        return value if self.clip is None else max(-self.clip, min(self.clip, value))

    def observe(self, values: Sequence[float | None], across_ranks: Callable[[Tensor], Tensor]) -> None:
        """Merge a batch into the running moments, before it is scaled."""
        if not self.normalize:
            return
        known = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
        count = float(across_ranks(torch.tensor(float(len(known)))))
        if not count:
            return
        mean = float(across_ranks(known.sum())) / count
        squares = float(across_ranks((known - mean).square().sum()))
        total, step = self.count + count, mean - self.mean
        self.squares += squares + step**2 * self.count * count / total
        self.mean += step * count / total
        self.count = total

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """It moves with the rewards, not with metrics."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
