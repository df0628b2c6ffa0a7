"""Tests of reward model scores, against a forward pass of each row alone."""

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

from rlmods.errors import UserError
from rlmods.policy import ScalarModel
from rlmods.protocols import Sampling
from rlmods.reward import Accuracy, Neural, WeightedSum
from rlmods.reward.neural import ensemble
from rlmods.sampling import Dynamic, Fixed
from rlmods.types import Prompt, Response
from tests.reward.models import said, save
from tests.reward.test_weighted_sum import composed
from tests.support import tiny_setup
from tests.support.models import CHAT, CHAT_TEMPLATE, tokenizer_with_bos

RESPONSES = [
    said("<answer>3</answer>"),
    said("4", prompt="9-5="),
    said("a long way to say seven", finish="length"),
    said(""),
]
POOLINGS: dict[str, Any] = {
    "last": lambda x: x[-1],
    "mean": torch.mean,
    "sum": torch.sum,
    "max": torch.max,
    "min": torch.min,
}
POOLINGS["weighted_sum"] = lambda x: (
    (x * torch.arange(1, len(x) + 1)).sum() / sum(range(1, len(x) + 1))
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("reward"), kind="reward", pooling="last", offset=0.25)


@pytest.fixture(scope="module")
def runs(run: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        run,
        *(
            save(
                tmp_path_factory.mktemp("more"),
                seed=seed,
                kind="reward",
                pooling="mean",
                offset=0.0,
            )
            for seed in (1, 2)
        ),
    ]


load = cache(ScalarModel.load)


@torch.no_grad()
def expected_score(source: str, response: Response) -> float:
    """Score of the row alone, with its text encoded by the model's tokenizer."""
    model = load(source)
    prompt, ids = (
        model.tokenizer(response.prompt.text)["input_ids"],
        model.tokenizer(response.text)["input_ids"],
    )
    ids = ids + [model.tokenizer.eos_token_id] * (response.finish == "stop")
    outputs = model(torch.tensor([prompt + ids]))[0, len(prompt) :]
    return float(POOLINGS[model.metadata.get("pooling", "last")](outputs)) - float(
        model.metadata.get("offset", 0.0)
    )


@pytest.mark.parametrize("budget", [1, 8192])
def test_scores_do_not_depend_on_the_token_budget(run: str, budget: int) -> None:
    expected = [expected_score(run, response) for response in RESPONSES]
    assert len(set(expected)) == 4
    scores = list(Neural(run, token_budget=budget)(RESPONSES))
    assert scores == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("how", ["mean", "min", "mean_minus_std"])
def test_equal_members_and_a_single_member_give_their_score(how: Any) -> None:
    assert ensemble([0.75, 0.75], how, 9.0) == ensemble([0.75], how, 9.0) == 0.75


class TestNeural:
    @pytest.mark.parametrize("pooling", POOLINGS)
    def test_uses_the_pooling_of_its_training(self, pooling: str, tmp_path: Path) -> None:
        source = save(tmp_path, kind="reward", pooling=pooling, offset=-1.5)
        assert list(Neural(source)(RESPONSES)) == pytest.approx(
            [expected_score(source, r) for r in RESPONSES], abs=2e-5
        )

    def test_scores_the_last_token_without_metadata(self, run: str, tmp_path: Path) -> None:
        plain = save(tmp_path)
        assert list(Neural(plain)(RESPONSES)) == pytest.approx(
            [expected_score(run, r) + 0.25 for r in RESPONSES], abs=2e-5
        )

    def test_empty_responses(self, run: str) -> None:
        scores = Neural(run)([said(""), said("", finish="length"), said("1")])
        assert scores[0] == pytest.approx(expected_score(run, said("")), abs=2e-5)
        assert scores[1] is None
        assert list(Neural(run)([said("", finish="length")])) == [None]

    def test_chat_uses_the_template_of_the_model_with_one_beginning_of_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = save(tmp_path, tokenizer=tokenizer_with_bos(CHAT_TEMPLATE))
        rows: list[Any] = []
        grade = ScalarModel.grade
        monkeypatch.setattr(
            ScalarModel,
            "grade",
            lambda self, inputs, budget: rows.extend(inputs) or grade(self, inputs, budget),
        )
        Neural(source)(
            [
                Response(CHAT, text="ab"),
                Response(Prompt(id="t", text="ab"), text="b", finish="length"),
            ]
        )
        assert rows == [([2, 3, 4, 4], [3, 4, 1]), ([2, 3, 4], [4])]


class TestEnsembleOfModels:
    @pytest.mark.parametrize("aggregate", ["mean", "min", "mean_minus_std"])
    def test_aggregates_the_members(self, aggregate: Any, runs: list[str]) -> None:
        members = [[expected_score(source, response) for source in runs] for response in RESPONSES]
        scores = Neural(runs, aggregate=aggregate, k=2.0)(RESPONSES)
        reduce: dict[str, Any] = {
            "mean": fmean,
            "min": min,
            "mean_minus_std": lambda row: fmean(row) - 2.0 * pstdev(row),
        }
        assert list(scores) == pytest.approx([reduce[aggregate](row) for row in members], abs=5e-5)
        assert set(scores.terms) == {"member_0", "member_1", "member_2"}
        for i, row in enumerate(members):
            assert [scores.terms[f"member_{j}"][i] for j in range(3)] == pytest.approx(
                row, abs=2e-5
            )
            assert scores.columns["std"][i] == pytest.approx(pstdev(row), abs=5e-5)

    def test_abstains_without_tokens(self, runs: list[str]) -> None:
        scores = Neural(runs)([said("", finish="length"), said("1")])
        assert scores[0] is None
        assert scores.terms["member_1"][0] is scores.columns["std"][0] is None


class TestRewardModelBase:
    def test_is_frozen_and_loads_at_the_first_call(
        self, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        monkeypatch.setattr(
            ScalarModel, "load", lambda source: calls.append(source) or load(source)
        )
        reward = Neural(run)
        assert calls == []
        first = reward(RESPONSES)
        assert reward(RESPONSES) == first
        assert calls == [run]
        assert not any(p.requires_grad for network in reward.networks for p in network.parameters())
        assert not any(network.training for network in reward.networks)

    def test_networks_are_not_copied(self, run: str) -> None:
        reward = Neural(run)
        num_bytes = len(pickle.dumps(reward))
        expected = reward(RESPONSES)
        assert len(pickle.dumps(reward)) == num_bytes < 1000
        for duplicate in (
            copy.deepcopy(reward),
            copy.copy(reward),
            replace(reward),
            pickle.loads(pickle.dumps(reward)),
        ):
            assert "networks" not in vars(duplicate)
            assert duplicate == reward
            assert duplicate(RESPONSES) == expected


class TestRejects:
    def error_message(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(UserError) as error:
            Neural(*arguments, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    @pytest.mark.parametrize("model", [None, [], "", [None]])
    def test_a_missing_model(self, model: Any) -> None:
        message = self.error_message(model)
        assert "reward=neural needs a reward model: type reward.model=RUN_OR_DIRECTORY" in message
        assert "algo=reward_model" in message

    def test_a_model_that_does_not_exist(self, run: str) -> None:
        assert "no reward model at 'nothing'" in self.error_message([run, "nothing"])

    def test_a_process_reward_model(self, tmp_path: Path) -> None:
        source = save(tmp_path, kind="process")
        assert (
            f"type reward=process reward.terms.process.reward.model={source}"
            in self.error_message(source)
        )


@pytest.mark.parametrize("several", [False, True])
def test_the_option_scores_with_the_model_and_logs_correctness(
    several: bool, runs: list[str], tmp_path: Path
) -> None:
    model = f"[{','.join(runs)}]" if several else runs[0]
    reward = composed(tmp_path, "reward=neural", f"reward.terms.neural.reward.model={model}")
    assert isinstance(reward, WeightedSum)
    assert not reward.needs.answer
    responses = [replace(r, prompt=replace(r.prompt, answer="3")) for r in RESPONSES]
    scores = reward(responses)
    assert list(scores) == list(Neural(runs if several else runs[0])(responses))
    assert scores.terms["gold"] == [1.0, 0.0, 0.0, 0.0]
    assert scores.correct == [True, False, False, False]
    assert scores.monitored


class TestTraining:
    def metrics(
        self, run: str, sampling: Sampling, answers: bool
    ) -> tuple[list[dict[str, Any]], list[float]]:
        """Train one iteration with a reward model and a gold term of weight 0. Return the logged
        rows and the change of each parameter."""
        reward = WeightedSum(
            {"neural": {"reward": Neural(run)}, "gold": {"weight": 0.0, "reward": Accuracy()}}
        )

        def prepare(prompts: Sequence[Prompt]) -> list[Prompt]:
            return [p if answers else replace(p, answer=None) for p in prompts]

        splits = replace(
            tiny_setup.SPLITS,
            train=prepare(tiny_setup.SPLITS.train),
            val=prepare(tiny_setup.SPLITS.val),
        )
        learner = tiny_setup.learner(
            reward=reward, sampling=sampling, validation_prompts=splits.val
        )
        before = [float(p.detach().sum()) for p in learner.policy.parameters()]
        rows = tiny_setup.fit(learner, 1, splits=splits)
        return rows, [
            float(p.detach().sum()) - x
            for p, x in zip(learner.policy.parameters(), before, strict=True)
        ]

    @pytest.mark.parametrize("sampling", [Fixed(), Dynamic()])
    def test_gold_is_logged_and_does_not_change_the_update(
        self, run: str, sampling: Sampling
    ) -> None:
        with_gold, update = self.metrics(run, sampling, answers=True)
        without, update_without = self.metrics(run, sampling, answers=False)
        assert update == update_without != [0.0] * len(update)
        merged = {k: v for row in with_gold for k, v in row.items()}
        plain = {k: v for row in without for k, v in row.items()}
        gold_metrics = {
            "train/accuracy",
            "train/reward/gold",
            "val/accuracy",
            "val/reward/gold",
            "val/gold_reward",
        }
        gold_metrics |= {"train/all_correct_fraction", "train/all_wrong_fraction"}
        assert merged.keys() - plain.keys() == gold_metrics
        assert merged["val/accuracy"] == merged["val/reward/gold"] == merged["val/gold_reward"]
        assert plain["train/kept_fraction"] == 1.0
        assert plain["train/unscored_fraction"] == 0.0
        assert (
            plain["val/reward"] == plain["val/reward/neural"] == pytest.approx(merged["val/reward"])
        )
