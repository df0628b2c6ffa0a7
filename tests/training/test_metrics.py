"""Metrics of responses and updates, against values by hand and slow loops."""

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any, ClassVar

import lightning as L
import pytest
import torch

from rlmods.advantage import ReinforcePP, TeacherLogRatio
from rlmods.algo import Batch, Distill
from rlmods.distributed.collectives import Ranks
from rlmods.rollout import Local
from rlmods.sampling import Dynamic
from rlmods.teacher import SelfTeacher
from rlmods.training.meter import Meter
from rlmods.training.metrics import (
    lacks_correctness,
    log_correction,
    log_critic,
    log_responses,
    log_update,
)
from rlmods.types import Experience, ImportanceWeights, Prompt, Response, Scores
from tests.support.tiny_setup import fit, half_flat, learner

PROMPT = Prompt(id="p", text="?")
COLUMNS = [
    # group, text, tokens, finish, reward, correct, term, selected
    (0, "a", 1, "stop", 1.0, True, 0.5, True),
    (0, "a", 3, "length", 0.0, False, None, True),
    (0, "b", 2, "length", None, None, None, False),
    (1, "a", 4, "stop", 2.0, True, 1.5, False),
    (1, "a", 5, "stop", 2.0, True, 0.25, False),
    (1, "c", 6, "length", None, None, None, False),
    (2, "d", 7, "length", 0.5, None, 1.0, True),
    (2, "e", 8, "stop", 0.25, None, None, True),
]
"""Responses to three prompts: of the second only equal scores are known, of the third no
correctness."""


def logged(rows: Sequence[tuple[Any, ...]], **changes: Any) -> dict[str, float]:
    group, text, tokens, finish, reward, correct, term, selected = zip(*rows, strict=True)
    fields = zip(text, tokens, finish, strict=True)
    responses = [Response(PROMPT, tokens=[1] * n, text=said, finish=end) for said, n, end in fields]
    scores = Scores(reward, correct=correct, terms={"format": term}, counts={"format/timeouts": 3})
    meter = Meter()
    log_responses(
        meter, responses, replace(scores, **changes), torch.tensor(group), torch.tensor(selected)
    )
    return meter.compute()


class TestLogResponses:
    def test_by_hand(self) -> None:
        assert logged(COLUMNS) == pytest.approx(
            {
                "train/reward": (1 + 0 + 2 + 2 + 0.5 + 0.25) / 6,
                "train/accuracy": 3 / 4,  # of the answers whose correctness is known
                "train/reward/format": (0.5 + 1.5 + 0.25 + 1.0) / 4,
                "reward/format/timeouts": 3,
                "train/unscored_fraction": 2 / 8,
                "train/responses": 8,
                "train/response_tokens": 36 / 8,
                "train/truncated_fraction": 4 / 8,
                "train/flat_group_fraction": 3 / 8,  # of the responses: those of the second prompt
                "train/kept_fraction": 4 / 8,
                "train/unique_fraction": (2 / 3 + 2 / 3 + 2 / 2) / 3,
                # of the responses
                "train/reward_std": (3 * 0.5**0.5 + 3 * 0 + 2 * 0.125 * 2**0.5) / 8,
                # the second prompt, of the two with known correctness
                "train/all_correct_fraction": 3 / 6,
                "train/all_wrong_fraction": 0.0,
            }
        )

    def test_nothing_is_known(self) -> None:
        rows = [
            (group, text, n, end, None, None, None, False) for group, text, n, end, *_ in COLUMNS
        ]
        metrics = logged(rows)
        assert not {"train/reward", "train/accuracy", "train/reward/format"} & metrics.keys()
        assert metrics["train/unscored_fraction"] == metrics["train/flat_group_fraction"] == 1

    def test_a_monitor_is_the_accuracy_and_does_not_decide_which_groups_are_flat(self) -> None:
        metrics = logged(COLUMNS, monitored=True, values=[0.0, 1.0, None, 1.0, 0.0, 1.0, 1.0, 1.0])
        assert metrics["train/accuracy"] == 3 / 4
        assert metrics["train/flat_group_fraction"] == 2 / 8


def experience(seed: int) -> tuple[Experience, dict[str, torch.Tensor]]:
    """Return random rows, two of them of an earlier iteration, with garbage in masked slots, and
    what a forward returned for them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 5)

    def random() -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    mask = torch.rand(shape, generator=generator) < 0.6
    garbage = torch.tensor([math.nan, math.inf, -math.inf, 1e6]).repeat(8)[:30].view(shape)
    old, behavior, advantages, entropy = (
        torch.where(mask, x, garbage) for x in (random(), random(), random(), random().abs())
    )
    log_ratio = torch.where(mask, random(), 0.0)
    rows = Experience(
        tokens=torch.zeros(shape, dtype=torch.long),
        mask=mask,
        lengths=torch.full((6,), 5),
        rewards=torch.zeros(shape),
        old_logprobs=old,
        on_policy=torch.zeros(6, dtype=torch.bool),
        behavior_logprobs=behavior,
        advantages=advantages,
        policy_version=torch.tensor([7, 6, 7, 7, 5, 7]),
        sampler_version=torch.tensor([7, 6, 7, 7, 5, 7]),
        group=torch.arange(6),
    )
    clipped = (torch.rand(shape, generator=generator) < 0.5) & mask
    return rows, {
        "log_ratio": log_ratio,
        "old_logprobs": old,
        "entropy": entropy,
        "clipped": clipped,
    }


class TestLogUpdate:
    def test_equals_the_loop(self) -> None:
        """Over microbatches of unequal size, as one."""
        meter, kl_stats = Meter(), torch.zeros(2, dtype=torch.float64)
        values: dict[str, list[float]] = {
            name: [] for name in ("entropy", "kl_old", "low", "high", "ratio", "gap")
        }
        for seed, count in ((0, 6), (1, 1), (2, 3)):
            rows, found = experience(seed)
            rows, found = (
                rows.select(torch.arange(count)),
                {name: x[:count] for name, x in found.items()},
            )
            kl_stats += log_update(meter, rows, **found, iteration=7)
            for i, t in rows.mask.nonzero().tolist():
                d, advantage = float(found["log_ratio"][i, t]), float(rows.advantages[i, t])
                clipped = bool(found["clipped"][i, t])
                values["entropy"].append(float(found["entropy"][i, t]))
                if rows.policy_version[i] == 7:
                    values["kl_old"].append(math.exp(d) - 1 - d)
                values["low"].append(float(clipped and advantage < 0))
                values["high"].append(float(clipped and advantage > 0))
                values["ratio"].append(math.exp(d))
                values["gap"].append(
                    abs(float(found["old_logprobs"][i, t]) - float(rows.behavior_logprobs[i, t]))
                )
        means = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
        assert 0 < means["low"] != means["high"] > 0
        assert len(values["kl_old"]) < len(values["entropy"])
        assert meter.compute() == pytest.approx(
            {
                "train/entropy": means["entropy"],
                "train/kl_old": means["kl_old"],
                "train/clip_fraction/low": means["low"],
                "train/clip_fraction/high": means["high"],
                "train/ratio_max": max(values["ratio"]),
                "train/sampler_logprob_gap": means["gap"],
            },
            rel=1e-5,
        )
        assert kl_stats.tolist() == pytest.approx(
            [sum(values["kl_old"]), len(values["kl_old"])], rel=1e-5
        )

    def test_errors_of_the_sampler_do_not_cancel(self) -> None:
        rows, found = experience(0)
        rows.behavior_logprobs.copy_(found["old_logprobs"])
        first, second = rows.mask.nonzero()[:2].tolist()
        rows.behavior_logprobs[tuple(first)] += 0.5
        rows.behavior_logprobs[tuple(second)] -= 0.5
        meter = Meter()
        log_update(meter, rows, **found, iteration=7)
        assert meter.compute()["train/sampler_logprob_gap"] == pytest.approx(
            1.0 / int(rows.mask.sum())
        )


def test_distances_from_the_sampler_have_a_name_of_their_own_for_rows_sampled_ahead() -> None:
    rows, found = experience(0)
    sampler_version = rows.policy_version.clone()
    sampler_version[[0, 2]] -= 1
    meter = Meter()
    log_update(meter, replace(rows, sampler_version=sampler_version), **found, iteration=7)
    metrics = meter.compute()
    gap = (found["old_logprobs"] - rows.behavior_logprobs).abs()
    ahead = torch.tensor([True, False, True, False, False, False])[:, None]
    for name, counts in (("ahead", rows.mask & ahead), ("sampler", rows.mask & ~ahead)):
        assert metrics[f"train/{name}_logprob_gap"] == pytest.approx(float(gap[counts].mean()))


def test_correction_by_hand() -> None:
    weights = torch.tensor([[0.0, 0.5, 2.0], [1.0, 2.0, 9.0]])
    outside = torch.tensor([[True, False, True], [False, True, True]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    meter = Meter()
    log_correction(meter, ImportanceWeights(weights, outside), mask)
    assert meter.compute() == pytest.approx(
        {
            "train/correction_mean": 5.5 / 5,
            "train/correction_truncated": 2 / 5,
            "train/correction_masked": 1 / 5,
            "train/correction_ess": 5.5**2 / (0.25 + 4 + 1 + 4) / 5,
        }
    )


def test_explained_variance_is_over_the_true_slots() -> None:
    generator = torch.Generator().manual_seed(0)
    returns = torch.rand(3, 5, generator=generator) + 2
    values = returns + 0.3 * torch.rand(3, 5, generator=generator)
    mask = torch.rand(3, 5, generator=generator) < 0.6
    kept_returns, kept_values = returns[mask].double(), values[mask].double()
    unexplained = (kept_returns - kept_values).var(unbiased=False) / kept_returns.var(
        unbiased=False
    )
    garbage = torch.where(mask, values, torch.nan)
    meter = Meter()
    log_critic(meter, returns, garbage, mask, Ranks(L.LightningModule()))
    assert meter.compute() == pytest.approx(
        {
            "train/explained_variance": 1 - float(unexplained),
            "train/value": float(kept_values.mean()),
            "train/return": float(kept_returns.mean()),
        },
        rel=1e-5,
    )


def test_equal_returns_have_no_explained_variance() -> None:
    meter = Meter()
    mask = torch.ones(2, 3, dtype=torch.bool)
    log_critic(meter, torch.ones(2, 3), torch.zeros(2, 3), mask, Ranks(L.LightningModule()))
    assert meter.compute() == {"train/value": 0.0, "train/return": 1.0}


def test_explained_variance_is_that_of_the_tokens_of_all_ranks() -> None:
    """Of ranks with batches of different sizes, as threads."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(2, *shape, generator=generator) for shape in ((1, 2), (3, 7))]
    barrier = Barrier(2, timeout=30)
    sums = [torch.zeros(()), torch.zeros(())]

    def explained(rank: int) -> float:
        def reduce(x: torch.Tensor) -> torch.Tensor:
            sums[rank] = x
            barrier.wait()
            total = sums[0] + sums[1]
            barrier.wait()
            return total

        meter = Meter()
        returns, values = batches[rank]
        ranks: Any = SimpleNamespace(reduce=reduce)
        log_critic(meter, returns, values, torch.ones_like(returns, dtype=torch.bool), ranks)
        return meter.compute()["train/explained_variance"]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(explained, range(2)))
    returns, values = torch.cat([x.flatten(1) for x in batches], 1)
    expected = 1 - float((returns - values).var() / returns.var())
    assert found == pytest.approx([expected, expected], rel=1e-5)


def answer(text: str = "a", source: str | None = None) -> Response:
    return Response(Prompt(id="a", text="a", source=source), tokens=[1], text=text)


def logged_scores(scores: Scores, responses: list[Response], group: list[int]) -> dict[str, float]:
    meter = Meter()
    selected = torch.ones(len(group), dtype=torch.bool)
    log_responses(meter, responses, scores, torch.tensor(group), selected)
    return meter.compute()


def test_sources_are_logged_apart() -> None:
    responses = [
        answer(text, source=source)
        for text, source in zip("abcde", ["x", "x", "y", "y", "y"], strict=True)
    ]
    scores = Scores([1.0, 0.0, 5.0, None, 7.0], correct=[True, False, True, None, None])
    found = logged_scores(scores, responses, [0, 0, 1, 1, 1])
    assert (found["train/reward"], found["train/reward/x"], found["train/reward/y"]) == (
        3.25,
        0.5,
        6.0,
    )
    assert (found["train/accuracy"], found["train/accuracy/x"], found["train/accuracy/y"]) == (
        pytest.approx(2 / 3),
        0.5,
        1.0,
    )
    assert not [
        name
        for name in logged_scores(scores, [answer("a")] * 5, [0] * 5)
        if name.endswith(("/x", "/y", "/None"))
    ]


class TestGroups:
    def test_standard_deviation_is_within_groups(self) -> None:
        values = [1.0, 3.0, 5.0, 10.0, 10.0, 10.0, 0.0, None, None]
        responses, group = [answer("a")] * 9, [7, 7, 7, 3, 3, 3, 5, 5, 5]
        found = logged_scores(Scores(values), responses, group)
        assert found["train/reward_std"] == pytest.approx((2.0 + 0.0) / 2), (
            "a group with one scored response has none"
        )
        shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
        again = logged_scores(
            Scores([values[i] for i in shuffled]), responses, [group[i] for i in shuffled]
        )
        assert again["train/reward_std"] == pytest.approx(found["train/reward_std"])

    def test_all_correct_and_all_wrong(self) -> None:
        correct = [True, None, False, None, True, False, None, None]
        found = logged_scores(
            Scores([0.0] * 8, correct=correct), [answer("a")] * 8, [0, 0, 1, 1, 2, 2, 3, 3]
        )
        assert (
            found["train/all_correct_fraction"]
            == found["train/all_wrong_fraction"]
            == pytest.approx(1 / 3)
        )
        assert "train/all_wrong_fraction" not in logged_scores(
            Scores([0.0] * 2), [answer("a")] * 2, [0, 0]
        )


class TestSmallerGroups:
    """Fractions of flat groups with a part of the samples."""

    def test_equals_the_mean_over_all_subsets(self) -> None:
        groups = [[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 1], [0] * 8]
        correct = [bool(x) for own in groups for x in own]
        index = [i for i in range(3) for _ in range(8)]
        scores = Scores([float(x) for x in correct], correct=correct)
        found = logged_scores(scores, [answer("a")] * 24, index)
        for name, m in (("half", 4), ("quarter", 2)):
            flat = [len(set(s)) == 1 for own in groups for s in itertools.combinations(own, m)]
            expected = sum(flat) / len(flat)
            assert found[f"train/flat_group_fraction/{name}"] == pytest.approx(expected)

    def test_needs_the_correctness_of_all(self) -> None:
        scores = Scores([0.0] * 4, correct=[True, None, False, True])
        found = logged_scores(scores, [answer("a")] * 4, [0] * 4)
        assert not {"train/flat_group_fraction/half", "train/flat_group_fraction/quarter"} & set(
            found
        )


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
        made, logged, trained = self.run(kind=Distill, teacher=teacher, advantage=TeacherLogRatio())
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


@pytest.mark.parametrize(
    ("value", "correct", "expected"),
    [(1.0, True, False), (1.0, None, True), (None, None, False), (0.0, False, False)],
)
def test_a_scored_response_may_lack_a_correctness(
    value: float | None, correct: bool | None, expected: bool
) -> None:
    assert lacks_correctness(Scores([value, 1.0], correct=[correct, True])) is expected


def test_counts_are_added_over_the_draws_of_an_iteration() -> None:
    meter = Meter()
    group = torch.tensor([0, 0])
    scores = Scores([1.0, 0.0], counts={"accuracy/sympy_decided": 2})
    for _ in range(2):
        log_responses(meter, [answer("a")] * 2, scores, group, torch.ones(2, dtype=torch.bool))
    assert meter.compute()["reward/accuracy/sympy_decided"] == 4
    assert meter.compute()["train/responses"] == 4
