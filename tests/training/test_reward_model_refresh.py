"""A reward model that learns from a judge what the policy says now."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.algo import Batch, IterativeGRPO
from rlmods.kl import Penalty
from rlmods.policy import ScalarModel
from rlmods.policy.tiny import character_tokenizer
from rlmods.ranking import BradleyTerry
from rlmods.reward import Ensemble, Neural, WeightedSum
from rlmods.training.extensions import RewardModelRefresh, reward_model_refresh
from rlmods.training.meter import Meter, PhaseTimer
from rlmods.training.settings import IterativeGRPOSettings
from rlmods.types import Finish, Prompt, Response, Scores
from tests.reward.models import reader, said, save
from tests.support.tiny_setup import fit, learner

ENDS = ("1", "2", "3", "4")


def later(prompt: Prompt, first: str, second: str) -> float | None:
    """Prefers the larger last digit; has no opinion on an x."""
    if "x" in first + second:
        return None
    return 0.5 if first[-1] == second[-1] else float(first[-1] > second[-1])


def scalar(seed: int = 0) -> ScalarModel:
    made = ScalarModel.from_policy(reader()).requires_grad_(False)
    made.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    return made


def refresh(*networks: ScalarModel, **change: Any) -> RewardModelRefresh:
    settings = {"lr": 3e-3, "epochs": 8, "rows": 8, "replay": 0.1, "prompts": 1} | change
    every = settings.pop("every", 1)
    named = {f"refresh_{name}": value for name, value in settings.items()}
    chosen = IterativeGRPOSettings(reference_every=every, **named)
    return RewardModelRefresh(lambda: networks, later, BradleyTerry(), chosen)


def groups(*questions: str, ends: tuple[str, ...] = ENDS) -> list[list[Response]]:
    return [[said(f"7{end}", prompt=q) for end in ends] for q in questions]


def run(refresh: RewardModelRefresh, seed: int = 0, token_budget: int = 512) -> dict[str, float]:
    return refresh.end_round(torch.Generator().manual_seed(seed), token_budget)


def row(question: str, text: str, correct: bool) -> dict[str, Any]:
    """Row of the sample log."""
    return {
        "id": question,
        "prompt": question,
        "answer": "7",
        "response": text,
        "finish": "stop",
        "reward": 0.5,
        "correct": correct,
    }


QUESTIONS = [f"{a}+{b}=" for a, b in combinations(range(8), 2)]


class TestObserve:
    def test_keeps_the_judges_ranking(self) -> None:
        kept = refresh()
        kept.collect(groups("1+1="), Meter())
        assert [row.meta["candidates"] for row in kept.fresh] == [("71", "72", "73", "74")]
        assert kept.fresh[0].meta["ranks"] == (3, 2, 1, 0)
        assert kept.fresh[0].text == "1+1="

    def test_equal_responses_count_once_and_unjudged_ones_not_at_all(self) -> None:
        kept = refresh()
        kept.collect(groups("1+1=", ends=("1", "1", "x", "2")), Meter())
        assert kept.fresh[0].meta["candidates"] == ("71", "72")

    @pytest.mark.parametrize("finish", ["stop", "length"])
    def test_knows_who_was_cut_off(self, finish: Finish) -> None:
        kept = refresh()
        kept.collect([[said("71"), said("72", finish=finish)]], Meter())
        assert kept.fresh[0].meta["finished"] == (True, finish == "stop")

    def test_draws_of_an_iteration_share_the_prompts(self) -> None:
        kept = refresh(prompts=3)
        kept.attach(
            SimpleNamespace(
                batch=Batch(samples=4),
                ranks=SimpleNamespace(world_size=1),
                timer=PhaseTimer(print, print),
                meter=Meter(),
                iteration=1,
            )
        )
        kept.every = 3  # the round goes on
        kept.settings = replace(kept.settings, refresh_prompts=9)
        for _ in range(3):
            for _ in range(3):
                kept.on_responses([r for g in groups("1+1=", "1+2=") for r in g], Scores([]))
            kept.before_iteration_end()
        assert len(kept.fresh) == 9


class TestRefresh:
    @pytest.mark.slow
    def test_the_reward_model_learns_what_the_judge_says(self) -> None:
        network = scalar()
        kept = refresh(network)
        kept.collect(groups(*QUESTIONS), Meter())
        first = run(kept)
        kept.collect(groups(*QUESTIONS), Meter())
        second = run(kept)
        assert first["pairs"] == second["pairs"] == len(QUESTIONS) * 6
        assert second["pair_accuracy"] > max(0.9, first["pair_accuracy"])
        assert second["loss"] < first["loss"]

    @pytest.mark.slow
    def test_it_is_frozen_again_and_scores_are_around_zero(self) -> None:
        network = scalar()
        kept = refresh(network)
        kept.collect(groups(*QUESTIONS), Meter())
        run(kept)
        assert not any(p.requires_grad or p.grad is not None for p in network.parameters())
        rows = [
            (network.encode(r.prompt), network.encode_response(r.text))
            for group in groups(*QUESTIONS)
            for r in group
        ]
        numbers = network.grade(rows)
        last = torch.tensor([row[~row.isnan()][-1] for row in numbers])
        assert abs(float(last.mean()) - network.metadata["offset"]) < 1e-5

    @pytest.mark.slow
    def test_a_tenth_is_older(self) -> None:
        kept = refresh(scalar(), epochs=1)
        kept.collect(groups(*QUESTIONS), Meter())
        assert run(kept)["replayed_fraction"] == 0
        kept.collect(groups(*QUESTIONS[:18]), Meter())
        assert run(kept)["replayed_fraction"] == pytest.approx(0.1)
        assert len(kept.history) == len(QUESTIONS) + 18

    @pytest.mark.slow
    def test_only_the_latest_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reward_model_refresh, "MAX_HISTORY", 3)
        kept = refresh(scalar(), epochs=1)
        for questions in (QUESTIONS[:2], QUESTIONS[2:4]):
            kept.collect(groups(*questions), Meter())
            run(kept)
        assert len(kept.history) == 3
        ids = [group[0].prompt.id for group in groups(*QUESTIONS[1:4])]
        assert [row.id for row in kept.history] == ids

    @pytest.mark.parametrize(("replay", "older"), [(0.5, 6), (0.75, 18), (0.25, 2)])
    @pytest.mark.slow
    def test_the_fraction_is_that_of_all_rankings(self, replay: float, older: int) -> None:
        kept = refresh(scalar(), epochs=1, replay=replay)
        kept.collect(groups(*QUESTIONS), Meter())
        run(kept)
        kept.collect(groups(*QUESTIONS[:6]), Meter())
        assert run(kept)["replayed_fraction"] == older / (older + 6) == replay

    @pytest.mark.slow
    def test_microbatches_do_not_matter(self) -> None:
        networks = []
        for budget in (32, 4096):
            networks.append(scalar())
            kept = refresh(networks[-1], epochs=1, lr=1e-3)
            kept.collect(groups(*QUESTIONS), Meter())
            run(kept, token_budget=budget)
        start = scalar()
        for a, b, c in zip(*(n.parameters() for n in (*networks, start)), strict=True):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)
            if c.dim() > 1 and c.shape[0] == 1:
                assert not torch.equal(a, c)

    @pytest.mark.slow
    def test_ranks_that_saw_different_halves_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each takes the same steps on the rows of both."""
        halves = [groups(*QUESTIONS[:10]), groups(*QUESTIONS[10:])]
        kept = [refresh(scalar(), epochs=1) for _ in halves]
        for one, half in zip(kept, halves, strict=True):
            one.collect(half, Meter())
        rows = [list(one.fresh) for one in kept]
        monkeypatch.setattr(reward_model_refresh, "all_gather", lambda _: rows)
        for one in kept:
            run(one)
        first, second = (one.networks()[0].parameters() for one in kept)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    @pytest.mark.slow
    def test_an_ensemble_stays_one(self) -> None:
        members = scalar(0), scalar(1)
        kept = refresh(*members, epochs=1)
        kept.collect(groups(*QUESTIONS), Meter())
        before = [member.model.score.weight.clone() for member in members]
        run(kept)
        assert all(
            not torch.equal(b, member.model.score.weight)
            for b, member in zip(before, members, strict=True)
        )
        assert not torch.equal(*(member.model.score.weight for member in members))

    @pytest.mark.slow
    def test_its_state_is_all_of_it(self) -> None:
        networks = scalar(0), scalar(0)
        kept, other = (refresh(network) for network in networks)
        kept.collect(groups(*QUESTIONS[:6]), Meter())
        run(kept)
        kept.collect(groups(*QUESTIONS[6:9]), Meter())
        other.load_state_dict(kept.state_dict())
        other.load_rank_states([kept.rank_state()], rank=0, world_size=1)
        assert (other.fresh, other.history) == (kept.fresh, kept.history)
        assert networks[0].metadata["offset"] == networks[1].metadata["offset"] != 0
        assert run(kept, seed=3) == run(other, seed=3)
        assert all(
            torch.equal(a, b) for a, b in zip(*(n.parameters() for n in networks), strict=True)
        )


class TestIterativeGRPO:
    @pytest.fixture
    def made(self, tmp_path: Path) -> Any:
        model = save(tmp_path / "rm", tokenizer=character_tokenizer())
        reward = WeightedSum(
            {"neural": {"reward": Neural(model)}, "gold": {"reward": Neural(model), "weight": 0.0}}
        )
        return learner(
            IterativeGRPO,
            reward=reward,
            kl=Penalty("k3", 0.1, "loss"),
            judge=lambda prompt, a, b: float(len(a) > len(b)) if len(a) != len(b) else 0.5,
            ranking=BradleyTerry(),
            reference_every=2,
            refresh_prompts=4,
            batch=Batch(prompts=4, samples=4),
        )

    def test_a_round_ends_with_a_new_reference_and_a_new_reward_model(self, made: Any) -> None:
        network = made.reward.terms["neural"]["reward"].networks[0]
        before = network.model.score.weight.clone()
        rows = fit(made, iterations=3)
        assert not torch.equal(before, network.model.score.weight)
        assert torch.equal(
            before, made.reward.terms["gold"]["reward"].networks[0].model.score.weight
        ), "a monitor is to be trusted"
        assert all(0 <= row["judge/flat_group_fraction"] <= 1 for row in rows)
        rounds = [row for row in rows if "train/reward_model/pairs" in row]
        assert [row["iteration"] for row in rounds] == [2]
        assert rounds[0]["train/reward_model/pairs"] > 0
        assert len({row.id for row in made.refresh.history}) <= 4, (
            "two prompts in each of two iterations"
        )
        kl = [row["train/kl_ref"] for row in rows if "train/kl_ref" in row]
        assert kl[0] == 0 < kl[1]
        assert kl[2] == 0, "the third iteration starts from its own reference"

    def test_reward_models_inside_other_rewards_are_trained(self, made: Any) -> None:
        inner = made.reward
        made.reward = WeightedSum({"ensemble": {"reward": Ensemble({"sum": inner})}})
        [network] = made.reward_models()
        assert network is inner.terms["neural"]["reward"].networks[0]

    def test_the_reward_model_is_exported_beside_the_policy(
        self, made: Any, tmp_path: Path
    ) -> None:
        fit(made, iterations=2)
        made.export(tmp_path / "export")
        again = ScalarModel.load(tmp_path / "export" / "reward_model")
        now = made.refresh.networks()[0]
        assert all(torch.equal(x, now.state_dict()[name]) for name, x in again.state_dict().items())
        assert again.metadata["offset"] == now.metadata["offset"] != 0
