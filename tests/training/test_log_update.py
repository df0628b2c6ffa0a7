"""Metrics of updates."""

import torch

from rlmods.ratio import Clipped
from rlmods.training.metrics import Meter, log_update
from tests.support.tiny_setup import collected, learner


def test_clip_fraction_is_split_by_the_sign_of_the_advantage():
    batch = collected(learner())
    for sign, ratio, side, other in ((1.0, 2.0, "high", "low"), (-1.0, 0.5, "low", "high")):
        log_ratio = torch.where(batch.mask, torch.tensor(ratio).log(), 0.0)
        batch.advantages[:] = sign
        clipped = Clipped()(log_ratio, batch.advantages, batch.mask).clipped
        meter = Meter()
        log_update(meter, batch, log_ratio, batch.old_logprobs, torch.zeros_like(log_ratio), clipped, 0)
        found = meter.compute()
        assert found[f"train/clip_fraction/{side}"] == 1.0
        assert found[f"train/clip_fraction/{other}"] == 0.0
        assert abs(found["train/ratio_max"] - ratio) < 1e-6
