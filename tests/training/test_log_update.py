"""Metrics of updates."""

from dataclasses import dataclass, replace

import lightning as L
import pytest
import torch

from rlmods.algo import Batch
from rlmods.ratio import Clipped
from rlmods.rollout import Local
from rlmods.training.metrics import Meter, log_update
from rlmods.types import Scores
from tests.support.tiny_setup import collected, fit, learner


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


def test_distances_from_the_sampler_do_not_cancel():
    batch = collected(learner())
    signs = torch.where(torch.arange(batch.tokens.shape[1]) % 2 == 0, 0.3, -0.3).expand_as(batch.behavior_logprobs)
    batch = replace(batch, behavior_logprobs=torch.where(batch.mask, batch.old_logprobs + signs, torch.nan))
    zero = torch.zeros_like(batch.advantages)
    meter = Meter()
    log_update(meter, batch, zero, batch.old_logprobs, zero, torch.zeros_like(batch.mask), 0)
    assert meter.compute()["train/sampler_logprob_gap"] == pytest.approx(0.3)


class TestRun:
    """In the loop, against the responses themselves."""

    def run(self, **changes):
        rows = []

        class Tape(L.Callback):
            def on_iteration_end(self, trainer, learner, metrics):
                rows.append((metrics, list(learner.samples)))

        made = learner(batch=Batch(prompts=6, samples=4), **changes)
        fit(made, 2, callbacks=(Tape(),))
        return made, rows

    def test_truncation_and_length(self):
        made, rows = self.run(rollout=Local(max_tokens=5))
        for metrics, samples in rows:
            truncated = [row["finish"] == "length" for row in samples]
            assert 0 < sum(truncated) < len(samples)
            assert 2 * sum(truncated) != len(samples), "else its complement is the same"
            assert metrics["train/truncated_fraction"] == pytest.approx(sum(truncated) / len(samples))
            assert metrics["train/response_tokens"] == pytest.approx(sum(len(row["tokens"]) for row in samples) / len(samples))
        assert made.response_tokens == sum(len(row["tokens"]) for _, samples in rows for row in samples)

    def test_accuracy_and_reward_are_those_of_graded_responses(self):
        def graded(responses):
            correct = [None if i % 4 == 0 else r.tokens[0] % 2 == 0 for i, r in enumerate(responses)]
            return Scores([None if x is None else float(x) for x in correct], correct=correct)

        _, rows = self.run(reward=graded)
        for metrics, samples in rows:
            known = [row["correct"] for row in samples if row["correct"] is not None]
            assert len(known) == 18
            assert metrics["train/accuracy"] == metrics["train/reward"] == pytest.approx(sum(known) / 18)
            assert metrics["train/unscored_fraction"] == 0.25

    def test_the_gap_is_that_of_the_sampler(self):
        """Log-probabilities that are too high and too low by turns."""

        @dataclass
        class Off(Local):
            def generate(self, prompts, *, samples, iteration):
                responses = super().generate(prompts, samples=samples, iteration=iteration)
                return [
                    replace(r, behavior_logprobs=[x + (0.2 if i % 2 else -0.2) for x in r.behavior_logprobs])
                    for i, r in enumerate(responses)
                ]

        _, rows = self.run(rollout=Off(max_tokens=8))
        assert all(metrics["train/sampler_logprob_gap"] == pytest.approx(0.2, abs=1e-3) for metrics, _ in rows)
