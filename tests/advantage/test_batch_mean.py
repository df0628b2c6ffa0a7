import pytest
import torch
from hypothesis import given

from rlmods.advantage import BatchMean
from rlmods.advantage.batch_mean import batch_moments
from tests.support.batches import Batch, batches, few


def by_hand(b: Batch, scale: str, eps: float) -> torch.Tensor:
    """Each scored response against all scored responses."""
    scores = {}
    for i in range(len(b.mask)):
        if b.mask[i].any():
            scores[i] = sum(float(b.rewards[i, t]) for t in range(b.mask.shape[1]) if b.mask[i, t])
    mean = sum(scores.values()) / max(1, len(scores))
    squares = sum((x - mean) ** 2 for x in scores.values())
    std = (squares / max(1, len(scores) - 1)) ** 0.5
    out = torch.zeros(b.mask.shape, dtype=torch.float64)
    for i, score in scores.items():
        out[i, b.mask[i]] = (score - mean) / (std + eps if scale == "batch" else 1.0)
    return out


@few
@given(batches)
def test_equals_the_loop(b: Batch) -> None:
    p = b.poisoned()
    for scale in ("none", "batch"):
        estimator = BatchMean(scale, 1e-4)
        found = estimator(p.rewards, p.mask, p.group).advantages
        torch.testing.assert_close(found, by_hand(b, scale, 1e-4))
        assert estimator.needs.normalizes_rewards == (scale == "batch")


def test_moments_are_of_the_scored_rows() -> None:
    score = torch.tensor([1.0, 5.0, torch.nan])
    mean, std = batch_moments(score, torch.tensor([True, True, False]))
    assert float(mean) == 3.0
    assert float(std) == pytest.approx(8**0.5)
