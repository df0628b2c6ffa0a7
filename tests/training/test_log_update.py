"""Metrics of updates."""

from dataclasses import dataclass, replace
from typing import ClassVar

import lightning as L
import pytest
import torch

from rlmods.advantage import NoAdvantage, ReinforcePP
from rlmods.algo import Batch, Distill
from rlmods.ratio import Clipped
from rlmods.rollout import Local
from rlmods.sampling import Dynamic
from rlmods.teacher import SelfTeacher
from rlmods.training.meter import Meter
from rlmods.training.metrics import log_update
from rlmods.types import Experience, Prompt, Scores
from tests.support.tiny_setup import collected, fit, half_flat, learner


def test_clip_fraction_is_split_by_the_sign_of_the_advantage():
    batch = collected(learner())
    for sign, ratio, side, other in ((1.0, 2.0, "high", "low"), (-1.0, 0.5, "low", "high")):
        log_ratio = torch.where(batch.mask, torch.tensor(ratio).log(), 0.0)
        batch.advantages[:] = sign
        clipped = Clipped()(log_ratio, batch.advantages, batch.mask).clipped
        meter = Meter()
        log_update(
            meter, batch, log_ratio, batch.old_logprobs, torch.zeros_like(log_ratio), clipped, 0
        )
        found = meter.compute()
        assert found[f"train/clip_fraction/{side}"] == 1.0
        assert found[f"train/clip_fraction/{other}"] == 0.0
        assert abs(found["train/ratio_max"] - ratio) < 1e-6


def test_distances_from_the_sampler_do_not_cancel():
    batch = collected(learner())
    signs = torch.where(torch.arange(batch.tokens.shape[1]) % 2 == 0, 0.3, -0.3).expand_as(
        batch.behavior_logprobs
    )
    batch = replace(
        batch, behavior_logprobs=torch.where(batch.mask, batch.old_logprobs + signs, torch.nan)
    )
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
            assert metrics["train/truncated_fraction"] == pytest.approx(
                sum(truncated) / len(samples)
            )
            assert metrics["train/response_tokens"] == pytest.approx(
                sum(len(row["tokens"]) for row in samples) / len(samples)
            )
        assert made.response_tokens == sum(
            len(row["tokens"]) for _, samples in rows for row in samples
        )

    def test_accuracy_and_reward_are_those_of_graded_responses(self):
        def graded(responses):
            correct = [
                None if i % 4 == 0 else r.tokens[0] % 2 == 0 for i, r in enumerate(responses)
            ]
            return Scores([None if x is None else float(x) for x in correct], correct=correct)

        _, rows = self.run(reward=graded)
        for metrics, samples in rows:
            known = [row["correct"] for row in samples if row["correct"] is not None]
            assert len(known) == 18
            assert (
                metrics["train/accuracy"]
                == metrics["train/reward"]
                == pytest.approx(sum(known) / 18)
            )
            assert metrics["train/unscored_fraction"] == 0.25

    def test_the_gap_is_that_of_the_sampler(self):
        """Log-probabilities that are too high and too low by turns."""

        @dataclass
        class Off(Local):
            def generate(self, prompts, *, samples, iteration):
                responses = super().generate(prompts, samples=samples, iteration=iteration)
                return [
                    replace(
                        r,
                        behavior_logprobs=[
                            x + (0.2 if i % 2 else -0.2) for x in r.behavior_logprobs
                        ],
                    )
                    for i, r in enumerate(responses)
                ]

        _, rows = self.run(rollout=Off(max_tokens=8))
        assert all(
            metrics["train/sampler_logprob_gap"] == pytest.approx(0.2, abs=1e-3)
            for metrics, _ in rows
        )


class TestAdvantages:
    """Those of the sample log are those of the loss."""

    def run(self, iterations=3, **changes):
        """Return, by iteration, the rows of the sample log and the rows of the update by prompt and
        tokens of the response."""
        logged, trained = [], []

        class Tape(L.Callback):
            def on_iteration_end(self, trainer, learner, metrics):
                logged.append(list(learner.samples))

        made = learner(**{"batch": Batch(prompts=4, samples=4)} | changes)
        optimize = made.optimize

        def record(batch, plan):
            trained.append(batch)
            return optimize(batch, plan)

        made.optimize = record
        fit(made, iterations, callbacks=(Tape(),))
        return made, logged, trained

    def means(self, batch):
        """Mean advantages of the rows with loss, by the ids of prompt and response."""
        rows = {}
        for i in range(len(batch)):
            if batch.mask[i].any():
                key = tuple(batch.tokens[i, : batch.lengths[i]].tolist())
                rows.setdefault(key, []).append(
                    batch.advantages[i, batch.mask[i]].double().mean().item()
                )
        return rows

    def check(self, made, logged, batch):
        """Each row of the update is in the log with its advantage, and the other rows have none."""
        found = {}
        for row in logged:
            if row["advantage"] is not None:
                prompt = made.policy.encode(Prompt(id="", text=row["prompt"]))
                found.setdefault((*prompt, *row["tokens"]), []).append(row["advantage"])
        expected = self.means(batch)
        assert found.keys() == expected.keys()
        for key, advantages in found.items():
            assert sorted(advantages) == pytest.approx(sorted(expected[key]), abs=1e-6)
        return sum(map(len, found.values()))

    def test_after_normalisation_over_the_batch(self):
        made, logged, trained = self.run(advantage=ReinforcePP(baseline="group"))
        for rows, batch in zip(logged, trained, strict=True):
            assert self.check(made, rows, batch) == len(rows) == 16
            before = [
                row["reward"] - sum(r["reward"] for r in rows if r["id"] == row["id"]) / 4
                for row in rows
            ]
            assert [row["advantage"] for row in rows] != pytest.approx(before, abs=0.1), (
                "the values before normalisation"
            )

    def test_with_those_of_the_teacher(self):
        teacher = SelfTeacher(demonstration="answer", template="{demonstration} {prompt}")
        made, logged, trained = self.run(kind=Distill, teacher=teacher, advantage=NoAdvantage())
        for rows, batch in zip(logged, trained, strict=True):
            assert self.check(made, rows, batch) == 16
            assert sum(abs(row["advantage"]) > 1e-3 for row in rows) > 8, (
                "those of the reward are 0"
            )

    DYNAMIC: ClassVar = {
        "reward": half_flat,
        "sampling": Dynamic(),
        "batch": Batch(prompts=6, samples=4),
    }
    """Four of six groups are kept: after two draws two are left for the second iteration."""

    def test_rejected_rows_have_none_and_those_that_wait_have_theirs(self):
        made, logged, trained = self.run(4, **self.DYNAMIC)
        sizes = []
        for iteration, rows in enumerate(logged[:3]):
            now, later = (
                batch.select(batch.policy_version == iteration)
                for batch in trained[iteration : iteration + 2]
            )
            sizes.append(
                (
                    self.check(made, rows, Experience.concat([now, later])),
                    sum(row["kept"] for row in rows),
                    len(rows),
                    len(later),
                )
            )
            assert all((row["advantage"] is not None) == row["kept"] for row in rows)
        assert sizes == [(32, 32, 48, 8), (16, 16, 24, 0), (32, 32, 48, 8)]

    def test_those_that_wait_have_none_if_they_are_normalised_with_others(self):
        made, logged, trained = self.run(**self.DYNAMIC, advantage=ReinforcePP(baseline="group"))
        for iteration, (rows, batch) in enumerate(zip(logged, trained, strict=True)):
            own = batch.select(batch.policy_version == iteration)
            assert self.check(made, rows, own) == len(own)

    def test_truncated_and_unscored_rows_have_none(self):
        def some(responses):
            return [None if i % 4 == 0 else float(i) for i, _ in enumerate(responses)]

        made, logged, trained = self.run(
            reward=some, overlong_filter=True, rollout=Local(max_tokens=4)
        )
        for rows, batch in zip(logged, trained, strict=True):
            assert (
                0
                < self.check(made, rows, batch)
                == sum(row["reward"] is not None and row["finish"] == "stop" for row in rows)
                < 12
            )

    def test_an_iteration_without_an_update_has_none(self):
        def flat(responses):
            return Scores([1.0] * len(responses), correct=[True] * len(responses))

        _, logged, trained = self.run(
            iterations=2, reward=flat, sampling=Dynamic(), max_draws=2, fallback="skip"
        )
        assert not trained
        assert [len(rows) for rows in logged] == [32, 32]
        assert all(row["advantage"] is None for rows in logged for row in rows)
