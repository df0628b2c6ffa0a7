"""Held-out prompts: known answers in, the right shares out, and no trace left in training."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlmods.cli.evaluate import _use_trained_reward_models, kl_from
from rlmods.errors import UserError
from rlmods.rollout import Local, MultiTurn
from rlmods.training.evaluation import Validation, majority_correct, pass_at_k, values_by_prompt
from rlmods.training.metrics import correctness_or_reward
from rlmods.types import Prompt, Response, Scores
from tests.support.environments import Echo
from tests.support.tiny_setup import SPLITS, even, policy

PROMPTS = [Prompt(id=str(i), text="1+1=", answer="2") for i in range(4)]
RANK = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))
RIGHT = {
    "0": [True, True, False],
    "1": [False, False, False],
    "2": [False, True, False],
    "3": [None, None, None],
}
"""Of three samples of each prompt."""


@dataclass
class Scripted:
    """A sampler that says its settings."""

    temperature: float = 0.3
    top_p: float = 0.5
    top_k: int = 7
    max_tokens: int = 16
    seed: int = 99
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def sync(self, policy: Any, *, iteration: int) -> None:
        self.calls.append(("sync", iteration))

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        self.calls.append((self.temperature, self.top_p, self.top_k, self.seed, samples, iteration))
        said = [
            {"tokens": [1] * (j + 2), "finish": "length" if j else "stop", "meta": {"sample": j}}
            for j in range(samples)
        ]
        return [Response(p, **fields) for p in prompts for fields in said]


def judge(responses: Sequence[Response]) -> Scores:
    right = [RIGHT[r.prompt.id][r.meta["sample"]] for r in responses]
    return Scores([None if x is None else 10.0 * x for x in right], correct=right)


@pytest.mark.parametrize("n", [1, 4, 6])
def test_pass_at_k_equals_enumeration(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            draws = list(combinations([i < c for i in range(n)], k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


class TestMajority:
    @pytest.mark.parametrize(
        ("answers", "correct", "expected"),
        [
            (["2", "2", "3"], [True, True, False], 1.0),
            # spaces around an answer do not split its votes
            (["3", "2", "3 "], [False, True, False], 0.0),
            # a tie; no answer has no vote
            (["2", "3", None, None], [True, False, False, False], 0.5),
            # responses that were not graded have none either
            (["2", "3", "3"], [True, None, None], 1.0),
            ([None, None], [False, False], 0.0),
            (["2"], [None], None),
            (["3", "1/2", "0.50"], [False, True, True], 1.0),  # numbers of equal value
            (["9" * 5000, "x", "x"], [False, True, True], 1.0),
        ],
    )
    def test_correctness_of_the_most_frequent_answer(
        self, answers: list[str | None], correct: list[bool | None], expected: float | None
    ) -> None:
        assert majority_correct(answers, correct) == expected

    @pytest.mark.parametrize("answers", ["aabb", "aabc", "abcd", "abbb", "aabbc"])
    def test_equals_enumeration(self, answers: str) -> None:
        """The first of the most frequent answers, averaged over all orders of the responses."""
        correct = [answer == "a" for answer in answers]
        winners = [Counter(order).most_common(1)[0][0] for order in permutations(answers)]
        assert majority_correct(list(answers), correct) == pytest.approx(
            sum(winner == "a" for winner in winners) / len(winners)
        )


class TestCorrectness:
    def test_is_the_unshaped_one_with_nan_where_unscored(self) -> None:
        have = correctness_or_reward(Scores([0.1, 0.9, 0.5], correct=[True, None, False]))
        assert have.dtype == torch.float64
        assert have.tolist() == [1.0, 0.9, 0.0], (
            "where correctness is unknown, the reward speaks for itself"
        )
        assert correctness_or_reward(
            Scores([0.1, None], correct=[None, True])
        ).isnan().tolist() == [
            False,
            True,
        ]

    def test_is_the_total_where_nobody_is_paid_for_it(self) -> None:
        have = correctness_or_reward(
            Scores([0.25, -2.0, None], correct=[True, None, False], monitored=True)
        )
        assert have[:2].tolist() == [0.25, -2.0]
        assert have[2].isnan()


class TestValidation:
    def test_shares_from_known_rewards(self) -> None:
        metrics, rows = Validation(samples=3)(None, Scripted(), judge, PROMPTS, RANK)
        assert metrics == pytest.approx(
            {
                "val/accuracy": 1 / 3,  # of the prompts that were graded
                "val/reward": 10 / 3,
                "val/response_tokens": 2.0,
                "val/truncated_fraction": 0.0,
                "val/mean@3": 3 / 9,
                "val/pass@3": 2 / 3,
            }
        )
        assert len(rows) == 4 + 12
        assert [r["temperature"] for r in rows] == [0.0] * 4 + [1.0] * 12
        assert [r["correct"] for r in rows[4:7]] == RIGHT["0"]

    @pytest.mark.parametrize("column", ["extracted", "accuracy/extracted"])
    def test_majority_where_answers_are_extracted(self, column: str) -> None:
        metrics, rows = Validation(samples=3)(
            None,
            Scripted(),
            lambda responses: replace(
                judge(responses),
                columns={column: ["2" if r.meta["sample"] < 2 else "3" for r in responses]},
            ),
            [replace(p, source="a") for p in PROMPTS],
            RANK,
        )
        # of the prompts that were graded
        assert metrics["val/maj@3"] == metrics["val/maj@3/a"] == pytest.approx((1 + 0 + 0.5) / 3)
        assert values_by_prompt(rows, 3) == {
            "val/accuracy": [1, 0, 0],
            "val/mean@3": [2 / 3, 0, 1 / 3],
            "val/pass@3": [1, 0, 1],
            "val/maj@3": [1, 0, 0.5],
        }

    def test_pass_at_several_k_from_all_samples(self) -> None:
        validation = Validation(samples=3, pass_at=(1, 2))
        metrics, rows = validation(None, Scripted(), judge, PROMPTS, RANK)
        assert metrics["val/pass@1"] == pytest.approx(metrics["val/mean@3"])
        assert metrics["val/pass@2"] == pytest.approx((1 + 0 + 2 / 3) / 3)
        assert values_by_prompt(rows, 3, (1, 2))["val/pass@2"] == pytest.approx([1, 0, 2 / 3])

    def test_pass_at_k_counts_graded_responses(self) -> None:
        """pass@1 is the mean; a k above the number of graded responses asks whether any of them is
        correct."""
        right = {
            "0": [True, None, False],
            "1": [None, True, None],
            "2": [False, None, None],
            "3": [None] * 3,
        }

        def partly(responses: Sequence[Response]) -> Scores:
            found = [right[r.prompt.id][r.meta["sample"]] for r in responses]
            return Scores([None if x is None else float(x) for x in found], correct=found)

        metrics, rows = Validation(samples=3, pass_at=(1, 2))(
            None, Scripted(), partly, PROMPTS, RANK
        )
        expected = {
            "val/pass@1": [0.5, 1.0, 0.0],
            "val/pass@2": [1.0, 1.0, 0.0],
            "val/pass@3": [1.0, 1.0, 0.0],
        }
        assert {name: metrics[name] for name in expected} == pytest.approx(
            {name: sum(x) / 3 for name, x in expected.items()}
        )
        assert metrics["val/mean@3"] == metrics["val/pass@1"]
        by_prompt = values_by_prompt(rows, 3, (1, 2))
        assert {name: by_prompt[name] for name in expected} == expected

    def test_named_sets_are_measured_apart(self) -> None:
        named = {"solved": PROMPTS[:1], "failed": PROMPTS[1:2]}
        alone, _ = Validation(samples=3)(None, Scripted(), judge, PROMPTS, RANK)
        metrics, rows = Validation(samples=3, data=named)(None, Scripted(), judge, PROMPTS, RANK)
        assert metrics.items() >= alone.items()
        assert [metrics[f"val/{name}/{x}"] for name in named for x in ("accuracy", "pass@3")] == [
            1,
            1,
            0,
            0,
        ]
        assert len(metrics) == 3 * len(alone)
        assert [row["id"] for row in rows if row.get("set") == "failed"] == ["1"] * 4
        assert values_by_prompt(rows, 3)["val/solved/mean@3"] == [2 / 3]
        assert values_by_prompt(rows, 3)["val/accuracy"] == [1, 0, 0]

    def test_its_own_reward_takes_the_place_of_that_of_training(self) -> None:
        def fail(responses: Sequence[Response]) -> Scores:
            raise AssertionError("the reward of training")

        metrics, _ = Validation(reward=judge)(None, Scripted(), fail, PROMPTS, RANK)
        assert metrics["val/accuracy"] == pytest.approx(1 / 3)

    def test_means_of_the_terms_and_gold(self) -> None:
        def graded(responses: Sequence[Response]) -> Scores:
            terms: dict[str, list[float | None]] = {
                "proxy": [1.0, None, 3.0, 5.0],
                "gold": [0.0, 1.0, None, None],
                "none": [None] * 4,
            }
            return Scores(
                [1.0, None, 3.0, 5.0],
                terms={name: values[: len(responses)] for name, values in terms.items()},
            )

        metrics, _ = Validation()(None, Scripted(), graded, PROMPTS, RANK)
        told = {name: value for name, value in metrics.items() if "reward" in name}
        assert told == {
            "val/reward": 3.0,
            "val/reward/proxy": 3.0,
            "val/reward/gold": 0.5,
            "val/gold_reward": 0.5,
        }

    def test_has_its_own_settings(self) -> None:
        rollout = Scripted()
        Validation(samples=2, temperature=0.7, seed=5)(
            None, rollout, judge, PROMPTS, RANK, iteration=3
        )
        assert rollout.calls == [
            ("sync", 3),
            (0.0, 1.0, 0, 99, 1, 0),
            ("sync", 3),
            (0.7, 1.0, 0, 5, 2, 0),
        ]
        assert (rollout.temperature, rollout.top_p, rollout.top_k, rollout.seed) == (
            0.3,
            0.5,
            7,
            99,
        )

    def test_only_the_first_prompts(self) -> None:
        metrics, rows = Validation(max_prompts=2, samples=3)(None, Scripted(), judge, PROMPTS, RANK)
        assert {r["id"] for r in rows} == {"0", "1"}
        assert metrics["val/pass@3"] == 0.5

    def test_ranks_share_the_prompts(self) -> None:
        seen: list[str] = []
        for rank in range(3):
            trainer = SimpleNamespace(world_size=3)
            ranks = SimpleNamespace(
                rank=rank, world_size=trainer.world_size, device=torch.device("cpu")
            )
            seen += [r["id"] for r in Validation()(None, Scripted(), judge, PROMPTS, ranks)[1]]
        assert sorted(seen) == ["0", "1", "2", "3"]

    def test_a_rank_without_prompts(self) -> None:
        ranks = SimpleNamespace(rank=8, world_size=9, device=torch.device("cpu"))
        assert Validation(samples=3)(None, Scripted(), judge, PROMPTS, ranks) == ({}, [])

    def test_due(self) -> None:
        assert [i for i in range(11) if Validation(every=5).due(i)] == [0, 5, 10]
        assert not any(Validation(every=None).due(i) for i in range(11))

    @pytest.mark.parametrize("environment", [None, Echo()])
    def test_reports_to_the_hook_of_training(self, environment: Any) -> None:
        """A run can be interrupted there, and it tells the watchdog that the run goes on."""
        made, rollout = policy(), Local(max_tokens=4)
        if environment is not None:
            rollout = MultiTurn(rollout, environment)
        rollout.sync(made, iteration=0)
        reports: list[tuple[int, ...]] = []
        rollout.on_tokens = lambda *progress: reports.append(progress)
        Validation()(made, rollout, even, SPLITS.val[:2], RANK)
        assert reports

    def test_leaves_the_sampling_of_training_as_it_was(self) -> None:
        made, rollout = policy(), Local(max_tokens=8, temperature=0.9, seed=3)
        rollout.sync(made, iteration=0)

        def train(iteration: int) -> list[tuple[int, ...]]:
            return [
                tuple(r.tokens)
                for r in rollout.generate(SPLITS.train[:4], samples=4, iteration=iteration)
            ]

        want = [train(0), train(1)]
        made.train()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        rollout.sync(made, iteration=0)
        have = [train(0)]
        first = Validation(samples=4)(made, rollout, even, SPLITS.val, RANK)
        have.append(train(1))
        assert have == want
        assert torch.equal(torch.get_rng_state(), before)
        assert made.training
        assert rollout == Local(max_tokens=8, temperature=0.9, seed=3)
        assert len({tuple(r["tokens"]) for r in first[1]}) > 8
        assert Validation(samples=4)(made, rollout, even, SPLITS.val, RANK) == first


class TestKLFrom:
    def test_nothing_between_a_policy_and_itself(self) -> None:
        made = policy()
        assert kl_from(made, made, Local(max_tokens=8, temperature=0.7), SPLITS.val, 2, 64) == 0.0

    @pytest.mark.parametrize("budget", [16, 4096])
    def test_is_the_mean_log_ratio_of_its_own_tokens(self, budget: int) -> None:
        made, other = policy(0), policy(1)
        rollout = Local(max_tokens=8)
        rollout.sync(made, iteration=0)
        ratios: list[float] = []
        for r in rollout.generate(SPLITS.val, samples=2, iteration=0):
            tokens = torch.tensor([[*r.prompt_tokens, *r.tokens]])
            mask = torch.arange(tokens.shape[1])[None] >= len(r.prompt_tokens)
            own, ref = (x(tokens, mask, temperature=1.0).logprobs for x in (made, other))
            ratios += (own - ref)[mask].tolist()
        want = sum(ratios) / len(ratios)
        assert want > 0.001
        assert kl_from(other, made, rollout, SPLITS.val, 2, budget) == pytest.approx(want, rel=1e-4)

    @torch.no_grad()
    def test_sampling_settings_do_not_change_the_distribution(self) -> None:
        """It is the exact KL of the first tokens up to the error of sampling."""
        made, other = policy(0), policy(1)
        made.model.get_input_embeddings().weight.mul_(6.0)
        exact = 0.0
        for prompt in SPLITS.val[:2]:
            tokens = torch.tensor([made.encode(prompt)])
            own, ref = (
                x.model(tokens).logits[0, -1].double().log_softmax(-1) for x in (made, other)
            )
            exact += float((own.exp() * (own - ref)).sum()) / 2
        assert exact > 0.1
        rollout = Local(max_tokens=1, temperature=0.5, top_p=0.3, top_k=5)
        found = kl_from(other, made, rollout, SPLITS.val[:2], 4096, 4096)
        assert found == pytest.approx(exact, rel=0.1)

    def test_of_two_vocabularies_there_is_none(self) -> None:
        other = policy(1)
        other.tokenizer.add_tokens(["xyz"])
        with pytest.raises(UserError, match="its vocabulary is not the one of the evaluated model"):
            kl_from(other, policy(0), Local(max_tokens=8), SPLITS.val, 1, 64)


def test_reward_models_that_a_run_has_trained_take_their_place(tmp_path):
    neural = {"_target_": "rlmods.reward.Neural", "model": "old"}
    terms = {"a": {"reward": neural, "weight": 1.0}, "gold": {"reward": neural, "weight": 0.0}}
    terms["b"] = {"reward": {**neural, "model": ["x", "y"]}}
    config, saved = OmegaConf.create({"reward": {"terms": terms}}), tmp_path / "config.yaml"
    OmegaConf.save(config, saved)
    _use_trained_reward_models(config, saved, tmp_path, [])
    assert config.reward.terms.a.reward.model == "old", "a run that has trained none"
    for name in ("reward_model", "reward_model_1", "reward_model_2"):
        (tmp_path / name).mkdir()
    untrained = copy.deepcopy(config)
    _use_trained_reward_models(
        config, saved, tmp_path, ["reward.terms.a.reward.url=http://h", "rewarded=1", "data=gsm8k"]
    )
    now = {name: term.reward.model for name, term in config.reward.terms.items()}
    assert now == {
        "a": str(tmp_path / "reward_model"),
        "gold": "old",
        "b": [str(tmp_path / "reward_model_1"), str(tmp_path / "reward_model_2")],
    }
    for typed, kept in (
        ("reward.terms.a.reward.model=z", ["a"]),
        ("+reward@reward.terms.a.reward=neural", ["a"]),
        ("~reward.terms.b", ["b"]),
        ("reward.terms.a.weight=0", []),
        ("reward=math", ["a", "b"]),
    ):
        config = copy.deepcopy(untrained)
        _use_trained_reward_models(config, saved, tmp_path, [typed])
        assert {key: term.reward.model for key, term in config.reward.terms.items()} == now | {
            key: terms[key]["reward"]["model"] for key in kept
        }
    nested = {"_target_": "rlmods.reward.Ensemble", "rewards": {"c": {"terms": terms}}}
    config = OmegaConf.create({"reward": nested})
    OmegaConf.save(config, saved)
    _use_trained_reward_models(config, saved, tmp_path, [])
    inner = config.reward.rewards.c.terms
    assert {name: term.reward.model for name, term in inner.items()} == now
    OmegaConf.save(untrained, saved)
    (tmp_path / "reward_model_2").rmdir()
    with pytest.raises(
        UserError, match="fewer reward models than in the reward of the run: type reward=OPTION"
    ):
        _use_trained_reward_models(untrained, saved, tmp_path, [])


def test_sources_are_measured_apart() -> None:
    """Prompts 0 and 1 come from one data set, 2 and 3 from another."""
    prompts = [replace(prompt, source="xy"[i // 2]) for i, prompt in enumerate(PROMPTS)]
    metrics, rows = Validation(samples=3)(None, Scripted(), judge, prompts, RANK)
    whole, _ = Validation(samples=3)(None, Scripted(), judge, PROMPTS, RANK)
    assert {
        name: value for name, value in metrics.items() if not name.endswith(("/x", "/y"))
    } == whole
    assert metrics["val/accuracy/x"] == 0.5
    assert metrics["val/accuracy/y"] == 0.0
    assert (metrics["val/mean@3/x"], metrics["val/mean@3/y"]) == (
        pytest.approx(2 / 6),
        pytest.approx(1 / 3),
    )
    assert (metrics["val/pass@3/x"], metrics["val/pass@3/y"]) == (0.5, 1.0)
    assert [row["source"] for row in rows[:4]] == ["x", "x", "y", "y"]
