"""Numbers of the RL loop that adapt during training: the weight of the entropy bonus, and the scale
of rewards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from rlmods.distributed.collectives import Ranks


@dataclass
class EntropyBonus:
    """Adapt the weight c of the entropy bonus so that the entropy H stays near a target: c <-
    max(0, c + rate * (target - H)).

    Dual ascent on `maximise J subject to H >= target`, as soft actor-critic tunes its temperature
    (arXiv:1812.05905, section 5)."""

    coefficient: float
    """c."""
    target: float | None
    """Nats per token; None: c is fixed."""
    rate: float
    """Change of c per iteration and nat of distance from the target."""

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.target is not None and "train/entropy" in metrics:
            distance = self.target - metrics["train/entropy"]
            self.coefficient = max(0.0, self.coefficient + self.rate * distance)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]


@dataclass
class RewardScale:
    """R' = clip((R - mean) / std, -clip, clip), with mean and std over all rewards of the run so
    far, on all ranks.

    Running moments are merged in parallel (Chan et al. 1979), without the cancellation of E[R^2] -
    mean^2."""

    normalize: bool
    """Subtract the mean and divide by the standard deviation; if all rewards were equal, only
    subtract."""
    clip: float | None = None
    """Bound on the absolute value; None: no bound."""
    depends_on_grading: ClassVar[str] = "rewards"
    count: float = field(default=0.0, init=False)
    mean: float = field(default=0.0, init=False)
    squares: float = field(default=0.0, init=False)
    """Sum of squared distances from the mean."""

    def __call__(self, value: float | None) -> float | None:
        """Return the scaled reward; None stays None."""
        if value is None:
            return None
        if self.normalize and self.count:
            std = math.sqrt(self.squares / self.count)
            value = (value - self.mean) / (std if std > 1e-6 * max(1.0, abs(self.mean)) else 1.0)
        return value if self.clip is None else max(-self.clip, min(self.clip, value))

    def update(self, values: Sequence[float | None], ranks: Ranks) -> None:
        """Merge the rewards of a batch into the running moments."""
        if not self.normalize:
            return
        scored = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
        count = float(ranks.reduce(torch.tensor(float(len(scored)))))
        if not count:
            return
        mean = float(ranks.reduce(scored.sum())) / count
        squares = float(ranks.reduce((scored - mean).square().sum()))
        total = self.count + count
        delta = mean - self.mean
        self.squares += squares + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
