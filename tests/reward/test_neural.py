"""Scores of reward models that a test can compute by hand, one row at a time."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from rlmods.policy import ScalarModel
from rlmods.protocols import Sampling
from rlmods.reward import Accuracy, Neural, WeightedSum
from rlmods.reward.neural import ensemble
from rlmods.sampling import Dynamic, Fixed
from rlmods.types import Prompt, Response, UserError
from tests.algo import worlds
from tests.policy.test_base import TestEncode, tokenizer_with_bos
from tests.reward.models import said, save
from tests.reward.test_weighted_sum import composed

RESPONSES = [said("<answer>3</answer>"), said("4", prompt="9-5="), said("a long way to say seven", finish="length"), said("")]
POOLS: dict[str, Any] = {"last": lambda x: x[-1], "mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("reward"), kind="reward", pooling="last", offset=0.25)


@pytest.fixture(scope="module")
def runs(run: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [run, *(save(tmp_path_factory.mktemp("more"), seed=seed, kind="reward", pooling="mean", offset=0.0) for seed in (1, 2))]


load = cache(ScalarModel.load)


@torch.no_grad()
def by_hand(source: str, response: Response) -> float:
    """The row alone, its text encoded by the model's tokenizer."""
    model = load(source)
    prompt, ids = model.tokenizer(response.prompt.text)["input_ids"], model.tokenizer(response.text)["input_ids"]
    ids = ids + [model.tokenizer.eos_token_id] * (response.finish == "stop")
    numbers = model(torch.tensor([prompt + ids]))[0, len(prompt) :]
    return float(POOLS[model.metadata.get("pooling", "last")](numbers)) - float(model.metadata.get("offset", 0.0))


class TestEnsemble:
    @pytest.mark.parametrize(
        ("how", "k", "want"),
        [("mean", 1, 3.0), ("min", 1, 1.0), ("mean_minus_std", 1, 3 - 8**0.5 / 3**0.5), ("mean_minus_std", 0.5, 3 - 0.5 * 8**0.5 / 3**0.5)],
    )
    def test_by_hand(self, how: Any, k: float, want: float) -> None:
        assert ensemble([1.0, 5.0, 3.0], how, k) == pytest.approx(want, abs=1e-12)

    @pytest.mark.parametrize("how", ["mean", "min", "mean_minus_std"])
    def test_members_that_agree_and_one_alone_say_what_each_says(self, how: Any) -> None:
        assert ensemble([0.75, 0.75], how, 9.0) == ensemble([0.75], how, 9.0) == 0.75


class TestNeural:
    @pytest.mark.parametrize("budget", [1, 40, 8192])
    def test_each_response_gets_what_it_gets_alone(self, run: str, budget: int) -> None:
        want = [by_hand(run, response) for response in RESPONSES]
        assert len(set(want)) == 4
        reward = Neural(run, token_budget=budget)
        assert list(reward(RESPONSES)) == pytest.approx(want, abs=2e-5)
        assert list(reward(RESPONSES[::-1])) == pytest.approx(want[::-1], abs=2e-5)
        assert list(reward(RESPONSES[2:3])) == pytest.approx(want[2:3], abs=2e-5)

    @pytest.mark.parametrize("pooling", POOLS)
    def test_pools_as_it_was_trained(self, pooling: str, tmp_path: Path) -> None:
        source = save(tmp_path, kind="reward", pooling=pooling, offset=-1.5)
        assert list(Neural(source)(RESPONSES)) == pytest.approx([by_hand(source, r) for r in RESPONSES], abs=2e-5)

    def test_reads_the_end_of_text_without_facts(self, run: str, tmp_path: Path) -> None:
        plain = save(tmp_path)
        assert list(Neural(plain)(RESPONSES)) == pytest.approx([by_hand(run, r) + 0.25 for r in RESPONSES], abs=2e-5)

    def test_reads_the_text_whatever_the_policys_tokens_are(self, run: str) -> None:
        foreign = [replace(r, tokens=[100_000, 7], prompt_tokens=[5]) for r in RESPONSES]
        assert list(Neural(run)(foreign)) == list(Neural(run)(RESPONSES))

    def test_only_a_finished_response_ends(self, run: str) -> None:
        ended, cut = Neural(run)([said("5"), said("5", finish="length")])
        assert ended != cut

    def test_an_empty_response_is_its_end_of_text_or_nothing(self, run: str) -> None:
        scores = Neural(run)([said(""), said("", finish="length"), said("1")])
        assert scores[0] == pytest.approx(by_hand(run, said("")), abs=2e-5)
        assert scores[1] is None
        assert list(Neural(run)([said("", finish="length")])) == [None]

    def test_no_responses_name_the_same_terms(self, run: str, runs: list[str]) -> None:
        assert list(Neural(run)([])) == []
        assert Neural(runs)([]).terms.keys() == Neural(runs)(RESPONSES).terms.keys() != set()

    def test_chat_goes_through_its_own_template_with_one_beginning_of_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = save(tmp_path, tokenizer=tokenizer_with_bos(TestEncode.TEMPLATE))
        rows: list[Any] = []
        grade = ScalarModel.grade
        monkeypatch.setattr(ScalarModel, "grade", lambda self, given, budget: rows.extend(given) or grade(self, given, budget))
        Neural(source)([Response(TestEncode.CHAT, text="ab"), Response(Prompt(id="t", text="ab"), text="b", finish="length")])
        assert rows == [([2, 3, 4, 4], [3, 4, 1]), ([2, 3, 4], [4])]


class TestEnsembleOfModels:
    @pytest.mark.parametrize("aggregate", ["mean", "min", "mean_minus_std"])
    def test_joins_the_members(self, aggregate: Any, runs: list[str]) -> None:
        members = [[by_hand(source, response) for source in runs] for response in RESPONSES]
        scores = Neural(runs, aggregate=aggregate, k=2.0)(RESPONSES)
        join: dict[str, Any] = {"mean": fmean, "min": min, "mean_minus_std": lambda row: fmean(row) - 2.0 * pstdev(row)}
        assert list(scores) == pytest.approx([join[aggregate](row) for row in members], abs=5e-5)
        assert set(scores.terms) == {"member_0", "member_1", "member_2"}
        for i, row in enumerate(members):
            assert [scores.terms[f"member_{j}"][i] for j in range(3)] == pytest.approx(row, abs=2e-5)
            assert scores.columns["std"][i] == pytest.approx(pstdev(row), abs=5e-5)

    def test_of_one_is_that_one(self, run: str) -> None:
        for aggregate in ("mean", "min", "mean_minus_std"):
            scores = Neural([run], aggregate=aggregate, k=5.0)(RESPONSES)  # type: ignore[arg-type]
            assert scores == Neural(run)(RESPONSES)
            assert not scores.terms

    def test_abstains_where_there_is_nothing_to_read(self, runs: list[str]) -> None:
        scores = Neural(runs)([said("", finish="length"), said("1")])
        assert scores[0] is None
        assert scores.terms["member_1"][0] is scores.columns["std"][0] is None


class TestTrained:
    def test_is_frozen_and_loads_at_the_first_call(self, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[str] = []
        monkeypatch.setattr(ScalarModel, "load", lambda source: calls.append(source) or load(source))
        reward = Neural(run)
        assert calls == []
        first = reward(RESPONSES)
        assert reward(RESPONSES) == first
        assert calls == [run]
        assert not any(p.requires_grad for network in reward.networks for p in network.parameters())
        assert not any(network.training for network in reward.networks)

    def test_stays_out_of_copies(self, run: str) -> None:
        reward = Neural(run)
        before = len(pickle.dumps(reward))
        want = reward(RESPONSES)
        assert len(pickle.dumps(reward)) == before < 1000
        for twin in (copy.deepcopy(reward), copy.copy(reward), replace(reward), pickle.loads(pickle.dumps(reward))):
            assert "networks" not in vars(twin)
            assert twin == reward
            assert twin(RESPONSES) == want


class TestRefused:
    def refused(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(UserError) as error:
            Neural(*arguments, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    @pytest.mark.parametrize("nothing", [None, [], "", [None]])
    def test_no_model(self, nothing: Any) -> None:
        message = self.refused(nothing)
        assert "reward=neural needs a reward model: type reward.terms.neural.reward.model=RUN_OR_DIRECTORY" in message
        assert "algo=reward_model" in message

    def test_a_model_that_is_not_there(self, run: str) -> None:
        assert "no reward model at 'runs/mistyped/x'" in self.refused("runs/mistyped/x")
        assert "no reward model at 'nothing'" in self.refused([run, "nothing"])
        assert Neural("owner/name").sources == ["owner/name"]

    def test_a_model_of_steps(self, tmp_path: Path) -> None:
        source = save(tmp_path, kind="process")
        assert f"type reward=process reward.terms.process.reward.model={source}" in self.refused(source)

    def test_settings_out_of_range(self, run: str) -> None:
        assert "aggregate='max' is none of mean, min, mean_minus_std" in self.refused(run, aggregate="max")
        assert "k=-1" in self.refused(run, k=-1)
        assert "token_budget=0" in self.refused(run, token_budget=0)

    def test_a_text_that_does_not_fit(self, run: str) -> None:
        with pytest.raises(UserError, match="its context is 64"):
            Neural(run)([said("9" * 80)])


class TestOption:
    @pytest.mark.parametrize("several", [False, True])
    def test_scores_with_the_model_and_watches_the_answers(self, several: bool, runs: list[str], tmp_path: Path) -> None:
        model = f"[{','.join(runs)}]" if several else runs[0]
        reward = composed(tmp_path, "reward=neural", f"reward.terms.neural.reward.model={model}")
        assert isinstance(reward, WeightedSum)
        assert not reward.needs_answer
        responses = [replace(r, prompt=replace(r.prompt, answer="3")) for r in RESPONSES]
        scores = reward(responses)
        assert list(scores) == list(Neural(runs if several else runs[0])(responses))
        assert scores.terms["gold"] == [1.0, 0.0, 0.0, 0.0]
        assert scores.correct == [True, False, False, False]
        assert scores.monitored

    def test_needs_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="reward=neural needs a reward model"):
            composed(tmp_path, "reward=neural")


class TestTraining:
    def metrics(self, run: str, sampling: Sampling, answers: bool) -> tuple[list[dict[str, Any]], list[float]]:
        """One iteration with a reward model and gold answers beside it, and what gold alone would decide."""
        reward = WeightedSum({"neural": {"reward": Neural(run)}, "gold": {"weight": 0.0, "reward": Accuracy()}})

        def asked(prompts: Sequence[Prompt]) -> list[Prompt]:
            return [p if answers else replace(p, answer=None) for p in prompts]

        splits = replace(worlds.SPLITS, train=asked(worlds.SPLITS.train), val=asked(worlds.SPLITS.val))
        learner = worlds.learner(reward=reward, sampling=sampling, validation_prompts=splits.val)
        before = [float(p.detach().sum()) for p in learner.policy.parameters()]
        rows = worlds.fit(learner, 1, splits=splits)
        return rows, [float(p.detach().sum()) - x for p, x in zip(learner.policy.parameters(), before, strict=True)]

    @pytest.mark.parametrize("sampling", [Fixed(), Dynamic()])
    def test_gold_is_logged_and_changes_nothing(self, run: str, sampling: Sampling) -> None:
        with_gold, moved = self.metrics(run, sampling, answers=True)
        without, moved_too = self.metrics(run, sampling, answers=False)
        assert moved == moved_too != [0.0] * len(moved)
        merged = {k: v for row in with_gold for k, v in row.items()}
        plain = {k: v for row in without for k, v in row.items()}
        told = {"train/accuracy", "train/reward/gold", "val/accuracy", "val/reward/gold", "val/gold_reward"}
        assert merged.keys() - plain.keys() == told
        assert merged["val/accuracy"] == merged["val/reward/gold"] == merged["val/gold_reward"]
        assert plain["train/kept_fraction"] == 1.0
        assert plain["train/unscored_fraction"] == 0.0
        assert plain["val/reward"] == plain["val/reward/neural"] == pytest.approx(merged["val/reward"])
