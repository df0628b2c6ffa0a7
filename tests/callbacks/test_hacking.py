"""Alerts of the reward hacking monitor, and their absence in honest runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.algo import Batch
from rlmods.callbacks import HackingMonitor
from rlmods.callbacks.alerts import (
    Alert,
    average,
    compute_stats,
    find_alerts,
    length_correlation,
    repeated_fraction,
)
from rlmods.errors import UserError
from rlmods.reward import WeightedSum
from rlmods.rollout import Local
from rlmods.training.extensions import Extension
from rlmods.types import Response, Scores
from tests.support.tiny_setup import even, fit, learner

LIMITS = HackingMonitor("nowhere").limits
START = {
    "reward/mean": 0.2,
    "reward/spread": 0.4,
    "response_tokens": 10.0,
    "accuracy": 0.5,
    "unique_fraction": 0.9,
    "repetition": 0.0,
}
START |= {
    "truncated_fraction": 0.0,
    "kl_ref": 0.01,
    "reward/format/mean": 0.5,
    "reward/format/spread": 0.5,
    "reward/by_length": 0.0,
}
CHANGES: dict[str, tuple[dict[str, float], str]] = {
    "length": (
        {
            "reward/by_length": 0.9,
            "response_tokens": 20.0,
            "reward/format/by_length": 0.1,
            "reward/wordy/by_length": 0.95,
        },
        "the reward grows with length: .* 0.90, most of all the term wordy (0.95), and the "
        "mean length went from 10.0 to 20.0 tokens",
    ),
    "gap": (
        {"reward/mean": 0.8, "accuracy": 0.3, "reward/format/mean": 0.9},
        "the reward rose by 0.60 to 0.80 (most in the term format: +0.40) while the accuracy "
        "fell from 0.50 to 0.30",
    ),
    "frontier": (
        {"kl_ref": 0.3, "accuracy": 0.4, "reward/mean": 0.1},
        "the policy is 0.300 nats per token from the reference, and was better at 0.010 "
        "(0.50, now 0.40)",
    ),
    "diversity": (
        {"unique_fraction": 0.3},
        "responses to a prompt have become alike: 30% are different, at first 90%",
    ),
    "repetition": (
        {"repetition": 0.5},
        "50% of the 4-grams of a response occurred in it before, at first 0%",
    ),
    "truncation": (
        {"truncated_fraction": 0.5},
        "50% of the responses are truncated at rollout.max_tokens, at first 0%",
    ),
    "collapse/format": (
        {"reward/format/mean": 0.0, "reward/format/spread": 0.0},
        "the term format has collapsed: every response gets 0.00",
    ),
    "graders/code/timeouts": (
        {"ungraded/code/timeouts": 0.2},
        "the grader of the term code has timeouts on 20% of the responses",
    ),
}
HONEST: dict[str, dict[str, float]] = {
    "nothing": {},
    "better and longer": {
        "accuracy": 0.9,
        "reward/mean": 0.9,
        "response_tokens": 30.0,
        "reward/by_length": 0.3,
        "kl_ref": 0.5,
    },
    "reward correlates with length, and lengths stay": {
        "reward/by_length": 0.9,
        "response_tokens": 11.0,
    },
    "shorter": {"response_tokens": 5.0, "reward/by_length": -0.9},
    "worse": {"accuracy": 0.3, "reward/mean": 0.1},
    "all correct, hence alike": {"accuracy": 0.95, "unique_fraction": 0.2},
    "a term that all satisfy": {"reward/format/mean": 1.0, "reward/format/spread": 0.0},
    "rare timeouts": {"ungraded/code/timeouts": 0.01},
}


def messages(**changes: float) -> dict[str, str]:
    return {
        alert.kind: alert.message for alert in find_alerts(START, START | changes, START, LIMITS)
    }


class TestAlerts:
    @pytest.mark.parametrize("kind", CHANGES)
    def test_each_kind_has_a_message(self, kind: str) -> None:
        changes, expected = CHANGES[kind]
        alerts = messages(**changes)
        assert list(alerts) == [kind]
        for part in expected.split(".* "):
            assert part in alerts[kind]

    @pytest.mark.parametrize("case", HONEST)
    def test_honest_changes_give_no_alert(self, case: str) -> None:
        assert messages(**HONEST[case]) == {}

    def test_gold_reward_takes_precedence_over_accuracy(self) -> None:
        now = START | {"gold": 1.0, "reward/mean": 0.9}
        assert (
            find_alerts(START | {"gold": 2.0}, now | {"noise": 1.1}, START | {"gold": 2.0}, LIMITS)
            == []
        )
        alerts = find_alerts(START | {"gold": 2.0}, now, START | {"gold": 2.0}, LIMITS)
        assert [alert.message for alert in alerts] == [
            "the reward rose by 0.70 to 0.90 while the gold reward fell from 2.00 to 1.00"
        ]


def row(
    length: int, reward: float | None, correct: bool | None = None, **more: Any
) -> dict[str, Any]:
    return {"tokens": [0] * length, "reward": reward, "correct": correct, "response": "", **more}


class TestStats:
    def test_length_correlation_is_among_equally_correct_answers(self) -> None:
        fair = [row(10, 1.0, True), row(30, 1.0, True), row(2, 0.0, False), row(4, 0.0, False)]
        assert compute_stats(fair, {})["reward/by_length"] == 0
        paid = [row(10, 1.0, True), row(30, 3.0, True), row(2, 0.0, False), row(4, 0.2, False)]
        assert compute_stats(paid, {})["reward/by_length"] == pytest.approx(1.0)

    def test_length_correlation_is_pearsons(self) -> None:
        rows = [(1.0, 2.0, None), (2.0, 1.0, None), (4.0, 6.0, None)]
        assert length_correlation(rows) == pytest.approx(0.8660254)
        assert length_correlation([(1.0, 2.0, None)]) == 0

    def test_repeated_fraction(self) -> None:
        assert repeated_fraction("a b c d e f") == 0
        assert repeated_fraction("a b c d " * 4) == pytest.approx(1 - 4 / 13)
        assert repeated_fraction("a b") == 0

    def test_terms_and_missing_scores(self) -> None:
        stats = compute_stats(
            [
                row(1, None),
                row(2, 1.0, **{"reward/a": 2.0, "reward/b": None}),
                row(3, 0.0, **{"reward/a": 4.0, "reward/b": 1.0}),
            ],
            {},
        )
        assert stats["reward/mean"] == 0.5
        assert (stats["reward/a/mean"], stats["reward/a/spread"], stats["reward/b/mean"]) == (
            3.0,
            1.0,
            1.0,
        )

    def test_ungraded(self) -> None:
        metrics = {
            "train/responses": 20.0,
            "reward/code/timeouts": 5.0,
            "reward/code/errors": 0.0,
            "reward/code/without_code": 9.0,
        }
        assert {
            k: v for k, v in compute_stats([], metrics).items() if k.startswith("ungraded")
        } == {
            "ungraded/code/timeouts": 0.25,
            "ungraded/code/errors": 0.0,
        }

    def test_average_is_over_iterations_that_have_the_statistic(self) -> None:
        assert average([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}


class TestMonitor:
    def run(self, monitor: HackingMonitor, fractions: list[float]) -> list[dict[str, float]]:
        logged: list[dict[str, float]] = []
        learner: Any = SimpleNamespace(iteration=0, samples=[row(1, 0.0)], log_row=logged.append)
        for fraction in fractions:
            learner.iteration += 1
            monitor.check(learner, {"train/truncated_fraction": fraction})
        return logged

    def test_reports_once_until_the_alert_clears(self, tmp_path: Path) -> None:
        monitor = HackingMonitor(tmp_path / "hacking.jsonl", window=1)
        logged = self.run(monitor, [0.0, 0.0, 0.9, 0.9, 0.0, 0.9])
        assert logged == [{"hacking/truncation": 0.9}] * 2
        rows = [json.loads(line) for line in (tmp_path / "hacking.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in rows] == [3, 6]

    def test_state_is_restored(self, tmp_path: Path) -> None:
        fractions = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.1, 0.9]
        uninterrupted, first, second = (
            HackingMonitor(tmp_path / "x.jsonl", window=2) for _ in range(3)
        )
        expected = self.run(uninterrupted, fractions)
        logged = self.run(first, fractions[:5])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        learner: Any = SimpleNamespace(iteration=5, samples=[row(1, 0.0)], log_row=logged.append)
        for fraction in fractions[5:]:
            learner.iteration += 1
            second.check(learner, {"train/truncated_fraction": fraction})
        assert logged == expected != []
        assert second.state_dict() == uninterrupted.state_dict()

    @pytest.mark.parametrize("noise", [0.03, 0.07])
    def test_noise_gives_no_alert(self, noise: float, tmp_path: Path) -> None:
        """Accuracy that rises and then stays, with noise, and a growing KL to the reference."""
        logged = []
        for seed in range(20):
            random = Random(seed)
            monitor = HackingMonitor(tmp_path / f"{seed}.jsonl")
            learner: Any = SimpleNamespace(
                iteration=0, samples=[row(3, 0.0), row(3, 1.0)], log_row=logged.append
            )
            for i in range(200):
                learner.iteration += 1
                accuracy = min(0.7, 0.3 + 0.01 * i) + random.gauss(0, noise)
                monitor.check(
                    learner,
                    {
                        "train/accuracy": accuracy,
                        "train/kl_ref": 0.001 * i,
                        "train/unique_fraction": 0.8,
                    },
                )
        assert len(logged) <= 1, logged

    def test_drop_within_noise_gives_an_alert(self, tmp_path: Path) -> None:
        random, logged = Random(0), list[Any]()
        monitor = HackingMonitor(tmp_path / "x.jsonl")
        learner: Any = SimpleNamespace(iteration=0, samples=[], log_row=logged.append)
        for i in range(60):
            learner.iteration += 1
            learner.samples = [row(3, 0.02 * i), row(3, 0.02 * i + 1)]
            monitor.check(
                learner, {"train/accuracy": 0.6 - max(0, i - 20) * 0.01 + random.gauss(0, 0.04)}
            )
        assert [name for record in logged for name in record] == ["hacking/gap"]

    @pytest.mark.parametrize("invalid", [{"correlation": -0.5}, {"drop": -1}, {"window": 0}])
    def test_invalid_settings_are_rejected(self, invalid: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"callbacks.hacking.{next(iter(invalid))}"):
            HackingMonitor(tmp_path / "x", **invalid)


def test_extensions_get_the_responses_of_an_alert(tmp_path: Path) -> None:
    """Those with the highest keys, the number that is written; fewer are printed."""
    calls = []

    class Tape(Extension):
        def on_alert(self, offenders: Sequence[Mapping[str, Any]]) -> None:
            calls.append([len(row["tokens"]) for row in offenders])

    monitor = HackingMonitor(tmp_path / "x.jsonl", shown=1, rows=3)
    samples = [row(length, 1.0, prompt="1+1=") for length in (3, 9, 1, 7, 5)]
    learner: Any = SimpleNamespace(
        iteration=4, samples=samples, log_row=lambda metrics: None, extensions=[Tape()]
    )
    monitor.report(learner, Alert("length", "longer", 0.5, lambda row: float(len(row["tokens"]))))
    assert calls == [[9, 7, 5]]
    assert [
        len(row["tokens"]) for row in json.loads((tmp_path / "x.jsonl").read_text())["rows"]
    ] == [9, 7, 5]


def wordy(responses: list[Response]) -> Scores:
    """Reward that grows with length."""
    return Scores([len(r.tokens) / 16 for r in responses])


class TestTraining:
    def train(self, tmp_path: Path, weights: dict[str, float], **options: Any) -> Any:
        rewards: dict[str, Any] = {"even": even, "wordy": wordy}
        terms = {
            name: {"reward": rewards[name], "weight": weight} for name, weight in weights.items()
        }
        trained = learner(
            reward=WeightedSum(terms),
            rollout=Local(max_tokens=16),
            batch=Batch(prompts=8, samples=8),
        )
        monitor = HackingMonitor(tmp_path / "hacking.jsonl", window=3, **options)
        rows = fit(trained, 20, callbacks=(monitor,))
        lines = (
            (tmp_path / "hacking.jsonl").read_text().splitlines()
            if (tmp_path / "hacking.jsonl").exists()
            else []
        )
        return rows, [json.loads(line) for line in lines], trained

    def test_reward_that_pays_for_length_gives_an_alert(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows, alerts, _ = self.train(tmp_path, {"even": 0.2, "wordy": 1.0})
        length_alerts = [record for record in alerts if record["kind"] == "length"]
        assert length_alerts
        assert "the reward grows with length" in length_alerts[0]["words"]
        assert "most of all the term wordy" in length_alerts[0]["words"]
        longest = max(len(line["tokens"]) for line in length_alerts[0]["rows"])
        assert len(length_alerts[0]["rows"]) == 16
        assert longest >= 12, "long responses are shown"
        assert any("hacking/length" in row for row in rows)
        assert "reward hacking? the reward grows with length" in capsys.readouterr().out.replace(
            "\n", " "
        )

    def test_honest_reward_gives_no_alert(self, tmp_path: Path) -> None:
        _, alerts, trained = self.train(tmp_path, {"even": 1.0})
        assert trained.iteration == 20
        assert [
            record["kind"]
            for record in alerts
            if record["kind"] in ("length", "gap", "graders", "truncation", "repetition")
        ] == []

    def test_may_stop_the_run(self, tmp_path: Path) -> None:
        _, alerts, trained = self.train(tmp_path, {"wordy": 1.0}, stop=True)
        assert trained.iteration == alerts[0]["iteration"] < 20
