"""Custom sampling filter: `python train.py sampling=name`."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Name:
    """Train on the responses that score at least `threshold`."""

    threshold: float = 0.5
    """Lowest score that is kept."""

    def __call__(self, scores: Tensor, group: Tensor) -> Tensor:
        """
        Args:
            scores: [N], correctness if the reward reports it, else the reward.
            group: [N], the same number for the responses to one prompt.

        Returns:
            [N], True on the responses to train on.
        """
        return scores >= self.threshold
