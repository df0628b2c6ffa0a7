"""The monitor names what is being gamed, and keeps quiet where nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.algo import Batch
from rlmods.callbacks import HackingMonitor
from rlmods.callbacks.suspicion import average, by_length, read, repetition, suspicions
from rlmods.reward import WeightedSum
from rlmods.rollout import Local
from rlmods.types import Response, Scores, UserError
from tests.support.tiny_setup import even, fit, learner

LIMITS = HackingMonitor("nowhere").limits
START = {"reward/mean": 0.2, "reward/spread": 0.4, "response_tokens": 10.0, "accuracy": 0.5, "unique_fraction": 0.9, "repetition": 0.0}
START |= {"truncated_fraction": 0.0, "kl_ref": 0.01, "reward/format/mean": 0.5, "reward/format/spread": 0.5, "reward/by_length": 0.0}
CHANGES: dict[str, tuple[dict[str, float], str]] = {
    "length": (
        {"reward/by_length": 0.9, "response_tokens": 20.0, "reward/format/by_length": 0.1, "reward/wordy/by_length": 0.95},
        "pays for length: .* 0.90, most of all the term wordy (0.95), and the mean length went from 10.0 to 20.0 tokens",
    ),
    "gap": (
        {"reward/mean": 0.8, "accuracy": 0.3, "reward/format/mean": 0.9},
        "the reward rose by 0.60 to 0.80 (most in the term format: +0.40) while the accuracy fell from 0.50 to 0.30",
    ),
    "frontier": (
        {"kl_ref": 0.3, "accuracy": 0.4, "reward/mean": 0.1},
        "the policy is 0.300 nats per token from the reference, and was better at 0.010 (0.50, now 0.40)",
    ),
    "diversity": ({"unique_fraction": 0.3}, "responses to a prompt have become alike: 30% are different, 90% were"),
    "repetition": ({"repetition": 0.5}, "50% of the 4-grams of a response occurred in it before, at first 0%"),
    "truncation": ({"truncated_fraction": 0.5}, "50% of the responses are cut off at rollout.max_tokens, at first 0%"),
    "collapse/format": (
        {"reward/format/mean": 0.0, "reward/format/spread": 0.0},
        "the term format has collapsed: every response gets 0.00",
    ),
    "graders/code/timeouts": ({"ungraded/code/timeouts": 0.2}, "the grader of the term code has timeouts on 20% of the responses"),
}
HONEST: dict[str, dict[str, float]] = {
    "nothing": {},
    "better and longer": {"accuracy": 0.9, "reward/mean": 0.9, "response_tokens": 30.0, "reward/by_length": 0.3, "kl_ref": 0.5},
    "longer answers are paid, and stay as long": {"reward/by_length": 0.9, "response_tokens": 11.0},
    "shorter": {"response_tokens": 5.0, "reward/by_length": -0.9},
    "worse": {"accuracy": 0.3, "reward/mean": 0.1},
    "all right, hence alike": {"accuracy": 0.95, "unique_fraction": 0.2},
    "a term that all fulfil": {"reward/format/mean": 1.0, "reward/format/spread": 0.0},
    "a timeout now and then": {"ungraded/code/timeouts": 0.01},
}


def signs(**change: float) -> dict[str, str]:
    return {sign.kind: sign.words for sign in suspicions(START, START | change, START, LIMITS)}


class TestSigns:
    @pytest.mark.parametrize("kind", CHANGES)
    def test_each_is_named_in_words(self, kind: str) -> None:
        change, words = CHANGES[kind]
        found = signs(**change)
        assert list(found) == [kind]
        for part in words.split(".* "):
            assert part in found[kind]

    @pytest.mark.parametrize("what", HONEST)
    def test_honest_changes_are_none(self, what: str) -> None:
        assert signs(**HONEST[what]) == {}

    def test_gold_goes_before_accuracy(self) -> None:
        now = START | {"gold": 1.0, "reward/mean": 0.9}
        assert suspicions(START | {"gold": 2.0}, now | {"noise": 1.1}, START | {"gold": 2.0}, LIMITS) == []
        found = suspicions(START | {"gold": 2.0}, now, START | {"gold": 2.0}, LIMITS)
        assert [sign.words for sign in found] == ["the reward rose by 0.70 to 0.90 while the gold reward fell from 2.00 to 1.00"]


def row(length: int, reward: float | None, correct: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"tokens": [0] * length, "reward": reward, "correct": correct, "response": "", **more}


class TestFigures:
    def test_length_counts_among_equally_correct_answers(self) -> None:
        fair = [row(10, 1.0, True), row(30, 1.0, True), row(2, 0.0, False), row(4, 0.0, False)]
        assert read(fair, {})["reward/by_length"] == 0
        paid = [row(10, 1.0, True), row(30, 3.0, True), row(2, 0.0, False), row(4, 0.2, False)]
        assert read(paid, {})["reward/by_length"] == pytest.approx(1.0)

    def test_by_length_is_pearsons(self) -> None:
        rows = [(1.0, 2.0, None), (2.0, 1.0, None), (4.0, 6.0, None)]
        assert by_length(rows) == pytest.approx(0.8660254)
        assert by_length([(1.0, 2.0, None)]) == 0

    def test_repetition(self) -> None:
        assert repetition("a b c d e f") == 0
        assert repetition("a b c d " * 4) == pytest.approx(1 - 4 / 13)
        assert repetition("a b") == 0

    def test_terms_and_what_abstains(self) -> None:
        found = read(
            [row(1, None), row(2, 1.0, **{"reward/a": 2.0, "reward/b": None}), row(3, 0.0, **{"reward/a": 4.0, "reward/b": 1.0})], {}
        )
        assert found["reward/mean"] == 0.5
        assert (found["reward/a/mean"], found["reward/a/spread"], found["reward/b/mean"]) == (3.0, 1.0, 1.0)

    def test_ungraded(self) -> None:
        metrics = {"train/responses": 20.0, "reward/code/timeouts": 5.0, "reward/code/errors": 0.0, "reward/code/without_code": 9.0}
        assert {k: v for k, v in read([], metrics).items() if k.startswith("ungraded")} == {
            "ungraded/code/timeouts": 0.25,
            "ungraded/code/errors": 0.0,
        }

    def test_average_is_over_those_that_have_it(self) -> None:
        assert average([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}


class TestMonitor:
    def watched(self, monitor: HackingMonitor, shares: list[float]) -> list[dict[str, float]]:
        logged: list[dict[str, float]] = []
        made: Any = SimpleNamespace(iteration=0, samples=[row(1, 0.0)], log_row=logged.append)
        for share in shares:
            made.iteration += 1
            monitor.look(made, {"train/truncated_fraction": share})
        return logged

    def test_tells_once_until_it_is_gone(self, tmp_path: Path) -> None:
        monitor = HackingMonitor(tmp_path / "hacking.jsonl", window=1)
        logged = self.watched(monitor, [0.0, 0.0, 0.9, 0.9, 0.0, 0.9])
        assert logged == [{"hacking/truncation": 0.9}] * 2
        written = [json.loads(line) for line in (tmp_path / "hacking.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in written] == [3, 6]

    def test_goes_on_where_it_stood(self, tmp_path: Path) -> None:
        shares = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.1, 0.9]
        whole, first, second = (HackingMonitor(tmp_path / "x.jsonl", window=2) for _ in range(3))
        want = self.watched(whole, shares)
        found = self.watched(first, shares[:5])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        made: Any = SimpleNamespace(iteration=5, samples=[row(1, 0.0)], log_row=found.append)
        for share in shares[5:]:
            made.iteration += 1
            second.look(made, {"train/truncated_fraction": share})
        assert found == want != []
        assert second.state_dict() == whole.state_dict()

    @pytest.mark.parametrize("noise", [0.03, 0.07])
    def test_chance_is_no_sign(self, noise: float, tmp_path: Path) -> None:
        """Accuracy that rises and stays, a reference that is left behind, and batches that differ."""
        told = []
        for seed in range(20):
            random = Random(seed)
            monitor = HackingMonitor(tmp_path / f"{seed}.jsonl")
            made: Any = SimpleNamespace(iteration=0, samples=[row(3, 0.0), row(3, 1.0)], log_row=told.append)
            for i in range(200):
                made.iteration += 1
                accuracy = min(0.7, 0.3 + 0.01 * i) + random.gauss(0, noise)
                monitor.look(made, {"train/accuracy": accuracy, "train/kl_ref": 0.001 * i, "train/unique_fraction": 0.8})
        assert len(told) <= 1, told

    def test_a_real_fall_is_one_also_in_noise(self, tmp_path: Path) -> None:
        random, told = Random(0), list[Any]()
        monitor = HackingMonitor(tmp_path / "x.jsonl")
        made: Any = SimpleNamespace(iteration=0, samples=[], log_row=told.append)
        for i in range(60):
            made.iteration += 1
            made.samples = [row(3, 0.02 * i), row(3, 0.02 * i + 1)]
            monitor.look(made, {"train/accuracy": 0.6 - max(0, i - 20) * 0.01 + random.gauss(0, 0.04)})
        assert [name for record in told for name in record] == ["hacking/gap"]

    @pytest.mark.parametrize("bad", [{"correlation": -0.5}, {"drop": -1}, {"window": 0}])
    def test_settings_out_of_range(self, bad: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"callbacks.hacking.{next(iter(bad))}"):
            HackingMonitor(tmp_path / "x", **bad)


def wordy(responses: list[Response]) -> Scores:
    """The planted one: pays for length."""
    return Scores([len(r.tokens) / 16 for r in responses])


class TestTraining:
    def trained(self, tmp_path: Path, weights: dict[str, float], **options: Any) -> Any:
        rewards: dict[str, Any] = {"even": even, "wordy": wordy}
        terms = {name: {"reward": rewards[name], "weight": weight} for name, weight in weights.items()}
        made = learner(reward=WeightedSum(terms), rollout=Local(max_tokens=16), batch=Batch(prompts=8, samples=8))
        monitor = HackingMonitor(tmp_path / "hacking.jsonl", window=3, **options)
        rows = fit(made, 20, callbacks=(monitor,))
        found = (tmp_path / "hacking.jsonl").read_text().splitlines() if (tmp_path / "hacking.jsonl").exists() else []
        return rows, [json.loads(line) for line in found], made

    def test_a_reward_that_pays_for_length_is_called_out_by_name(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rows, found, _ = self.trained(tmp_path, {"even": 0.2, "wordy": 1.0})
        said = [record for record in found if record["kind"] == "length"]
        assert said
        assert "pays for length" in said[0]["words"]
        assert "most of all the term wordy" in said[0]["words"]
        longest = max(len(line["tokens"]) for line in said[0]["rows"])
        assert len(said[0]["rows"]) == 2
        assert longest >= 12, "the offenders are shown"
        assert any("hacking/length" in row for row in rows)
        assert "reward hacking? pays for length" in capsys.readouterr().out.replace("\n", " ")

    def test_an_honest_one_is_left_alone(self, tmp_path: Path) -> None:
        _, found, made = self.trained(tmp_path, {"even": 1.0})
        assert made.iteration == 20
        assert [record["kind"] for record in found if record["kind"] in ("length", "gap", "graders", "truncation", "repetition")] == []

    def test_it_can_stop_the_run(self, tmp_path: Path) -> None:
        _, found, made = self.trained(tmp_path, {"wordy": 1.0}, stop=True)
        assert made.iteration == found[0]["iteration"] < 20
