"""Metrics of responses and updates, against values by hand and slow loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlmods.training.meter import Meter
from rlmods.training.metrics import log_responses, log_update
from rlmods.training.sample_log import SampleLog
from rlmods.types import Experience, Prompt, Response, Scores

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

    def test_fractions_that_are_not_a_half(self) -> None:
        metrics = logged(COLUMNS[:3])
        assert (
            metrics["train/truncated_fraction"]
            == metrics["train/kept_fraction"]
            == pytest.approx(2 / 3)
        )

    def test_nothing_is_known(self) -> None:
        rows = [
            (group, text, n, end, None, None, None, False) for group, text, n, end, *_ in COLUMNS
        ]
        metrics = logged(rows)
        assert not {"train/reward", "train/accuracy", "train/reward/format"} & metrics.keys()
        assert metrics["train/unscored_fraction"] == metrics["train/flat_group_fraction"] == 1

    def test_without_correctness_there_is_no_accuracy(self) -> None:
        assert "train/accuracy" not in logged(COLUMNS, correct=None)

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


def test_sample_rows_hold_what_was_said_and_scored() -> None:
    responses = [
        Response(PROMPT, tokens=[i], text=str(i), finish="length" if i % 2 else "stop")
        for i in range(6)
    ]
    scores = Scores(
        [0.5, None, 1.0, 0.0, 0.0, 2.0],
        correct=[True, None, True, False, None, True],
        terms={"format": [1.0] * 6},
    )
    scores = replace(scores, columns={"extracted": list("abcdef")})
    log = SampleLog()
    log.add_groups(responses, scores, 8, torch.arange(6) // 2, torch.tensor([True, False] * 3))
    for i, row in enumerate(log.rows):
        assert row == {
            "id": "p",
            "prompt": "?",
            "answer": None,
            "response": str(i),
            "tokens": [i],
            "finish": "length" if i % 2 else "stop",
            "reward": scores.values[i],
            "correct": (scores.correct or ())[i],
            "reward/format": 1.0,
            "extracted": "abcdef"[i],
            "iteration": 8,
            "advantage": None,
            "kept": i % 2 == 0,
        }


def test_advantages_are_means_over_the_tokens_with_loss() -> None:
    """Of two groups and a half: the last row is of an earlier iteration, and the log has a group
    that is not trained on."""
    batch = replace(experience(0)[0], group=torch.tensor([3, 3, 7, 7, 7, -1]))
    batch.mask[3] = False
    log = SampleLog()
    responses = [Response(PROMPT, tokens=[1], text="x")] * 6
    group = torch.tensor([3, 3, 7, 7, 7, 8])
    log.add_groups(responses, Scores([1.0] * 6), 8, group, torch.ones(6, dtype=torch.bool))
    log.set_advantages(batch)
    for i, row in enumerate(log.rows[:5]):
        credit = [float(a) for a, m in zip(batch.advantages[i], batch.mask[i], strict=True) if m]
        assert row["advantage"] == (pytest.approx(sum(credit) / len(credit)) if credit else None)
    is_open = [row["advantage"] is None for row in log.rows]
    assert is_open == [False, False, False, True, False, True]
