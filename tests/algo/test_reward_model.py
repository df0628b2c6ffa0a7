"""A model that scores responses: what it learns, what it says it learned, and what it leaves on
disk."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.algo import Batch, RewardModel
from rlmods.policy import ScalarModel
from rlmods.policy.scalar import POOLINGS
from rlmods.ranking import BradleyTerry, PlackettLuce
from rlmods.reward import Neural
from rlmods.training.preferences import PreferenceBatch
from rlmods.types import Prompt, Response
from tests.support.models import MODELS, policy as small_policy
from tests.support.offline import (
    RAGGED,
    alone,
    assert_invariant,
    close,
    gradients,
    padded,
    pairs,
    widened,
)
from tests.support.tiny_setup import SPLITS, fit, flat_gradient, learner, policy

DIGITS = [
    Prompt(
        id=f"{d}",
        text="1+1=",
        meta={"candidates": (f"{d}", f"{d + 1}"), "ranks": (d % 2, 1 - d % 2)},
    )
    for d in range(8)
]
"""Even digits are better."""


def model(ranking: Any = None, **change: Any) -> Any:
    return learner(
        RewardModel,
        **{"ranking": ranking or BradleyTerry(), "rollout": None, "reward": None} | change,
    )


def opinionated(ranking: Any = None, **change: Any) -> tuple[Any, PreferenceBatch]:
    """A learner whose head says something, and rows."""
    made = alone(model(ranking, **change))
    made.scalar.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return made, made.rows(RAGGED)


def plain(made: Any, prompt: Prompt, k: int, how: str) -> Tensor:
    """Score of one candidate from the hidden states of the model alone."""
    finished = prompt.meta.get("finished", (True,) * 9)[k]
    asked, said = (
        made.scalar.encode(prompt),
        made.scalar.encode_response(prompt.meta["candidates"][k], finished=finished),
    )
    inner = made.scalar.model
    numbers = inner.score(
        inner.base_model(input_ids=torch.tensor([asked + said])).last_hidden_state
    )[0, len(asked) :, 0]
    weights = torch.arange(1, len(numbers) + 1) / sum(range(1, len(numbers) + 1))
    reductions = {
        "mean": numbers.mean(),
        "sum": numbers.sum(),
        "max": numbers.max(),
        "min": numbers.min(),
    }
    return {"last": numbers[-1], "weighted_sum": (weights * numbers).sum(), **reductions}[how]


class TestScores:
    @pytest.mark.parametrize("how", POOLINGS)
    def test_pool_the_tokens_of_the_response_up_to_its_end(self, how: str) -> None:
        made, rows = opinionated(pooling=how)
        found = made.scores(rows)
        for p, prompt in enumerate(RAGGED):
            for k in range(len(prompt.meta["ranks"])):
                torch.testing.assert_close(
                    found[p, k], plain(made, prompt, k, how), rtol=0, atol=1e-5
                )
        assert (found[~rows.present] == 0).all()

    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("pad_is_eos", [False, True])
    def test_do_not_depend_on_width_batch_and_padding_id(self, kind: str, pad_is_eos: bool) -> None:
        """G9: with pad == eos the score is that of the true end of text."""
        made, rows = opinionated(policy=small_policy(MODELS[kind]()))
        want = made.scores(rows)
        assert len(want[rows.present].unique()) > 5
        if pad_is_eos:
            made.scalar.tokenizer.pad_token = made.scalar.tokenizer.eos_token
            rows = made.rows(RAGGED)
            assert (rows.tokens[~rows.present] == made.scalar.eos_id).all()
        torch.testing.assert_close(made.scores(padded(rows)), want, rtol=0, atol=1e-5)
        for p in range(4):
            one = rows.select(torch.tensor([p])).trim()
            torch.testing.assert_close(made.scores(one)[0], want[p], rtol=0, atol=1e-5)


class TestLoss:
    @pytest.mark.parametrize(
        "ranking", [BradleyTerry(), PlackettLuce()], ids=["bradley_terry", "plackett_luce"]
    )
    def test_starts_where_every_ranking_is_equally_likely(self, ranking: Any) -> None:
        made = alone(model(ranking))
        rows = made.rows([RAGGED[0]])
        assert gradients(made, rows).norm() > 1e-2
        want = math.log(2) if isinstance(ranking, BradleyTerry) else math.log(6)
        assert made.meter.compute()["train/loss"] == pytest.approx(want, abs=1e-6)

    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        made, rows = opinionated(BradleyTerry(margin=True), centre=0.3)
        have, loss = gradients(made, rows), torch.zeros(())
        for prompt in RAGGED:
            ranks, margin = prompt.meta["ranks"], prompt.meta.get("margin", 0.0)
            s = [plain(made, prompt, k, "last") for k in range(len(ranks))]
            losses = [torch.log(1 + torch.exp(s[j] - s[i] + margin)) for i, j in pairs(prompt)]
            preference = sum(losses) / max(1, len(losses))
            loss = loss + (preference + 0.3 * sum(s) ** 2) / len(RAGGED)
        made.zero_grad()
        loss.backward()
        close(have, flat_gradient(made.scalar))
        assert made.meter.compute()["train/loss"] == pytest.approx(loss.item(), abs=1e-5)

    @pytest.mark.parametrize(
        "ranking", [BradleyTerry(), PlackettLuce()], ids=["bradley_terry", "plackett_luce"]
    )
    @pytest.mark.parametrize("how", POOLINGS)
    def test_does_not_depend_on_how_rows_are_cut_padded_and_ordered(
        self, ranking: Any, how: str
    ) -> None:
        made, rows = opinionated(ranking, pooling=how, centre=0.1)
        assert_invariant(made, rows, widened)


class TestHeldOut:
    @torch.no_grad()
    def test_metrics_are_those_of_the_scores(self) -> None:
        """Of a forward pass for each prompt."""
        made, rows = opinionated(batch=Batch(prompts=4, token_budget=1))
        found, scores = made.measure(rows), made.scores(rows)
        pairs = [(0, 0, 1), (0, 0, 2), (0, 1, 2), (1, 1, 0), (3, 0, 2), (3, 1, 2)]
        gaps = [(scores[p, i] - scores[p, j]).item() for p, i, j in pairs]
        assert found["val/pair_accuracy"] == pytest.approx(sum(g > 0 for g in gaps) / 6)
        best, rest = [(0, 0), (1, 1), (3, 0), (3, 1)], [(0, 1), (0, 2), (1, 0), (3, 2)]
        wins = [float(scores[b] > scores[r]) for b in best for r in rest]
        assert found["val/auc"] == pytest.approx(sum(wins) / len(wins))
        points = torch.stack([scores[rows.present], rows.mask.sum(2)[rows.present].float()])
        assert found["val/length_correlation"] == pytest.approx(
            torch.corrcoef(points)[0, 1].item(), abs=1e-5
        )
        assert found["val/loss"] == pytest.approx(made.losses(scores, rows).mean().item(), abs=1e-5)

    def test_a_pair_is_as_sure_as_its_gap_says(self) -> None:
        """Gaps of ln 3 promise 3 in 4: right where 3 of 4 pairs win, off by a quarter where all
        do."""
        for won, error in ((3, 0.0), (4, 0.25)):
            made = alone(model())
            high = torch.tensor([[1.0, 0.0]] * won + [[0.0, 1.0]] * (4 - won)) * math.log(3)
            made.scores = lambda rows, high=high: high
            rows = made.rows(
                [replace(RAGGED[0], meta={"candidates": ("2", "3"), "ranks": (0, 1)})] * 4
            )
            assert made.measure(rows)["val/calibration"] == pytest.approx(error, abs=1e-6)


class TestTraining:
    @pytest.mark.parametrize(
        "ranking", [BradleyTerry(), PlackettLuce()], ids=["bradley_terry", "plackett_luce"]
    )
    def test_learns_to_tell_better_from_worse(self, ranking: Any) -> None:
        rows = fit(
            model(ranking, batch=Batch(prompts=8), validation_prompts=DIGITS),
            15,
            splits=replace(SPLITS, train=DIGITS),
        )
        assert rows[0]["val/pair_accuracy"] == 0.5
        assert rows[-1]["val/pair_accuracy"] == rows[-1]["val/auc"] == 1.0
        assert rows[-1]["val/loss"] < 0.3

    def test_trains_every_weight_and_nothing_of_the_policy(self) -> None:
        start = policy()
        made = model(policy=start)
        before = {name: x.clone() for name, x in start.state_dict().items()}
        fit(made, 3)
        assert not any(name.startswith("policy") for name in made.state_dict())
        assert all(torch.equal(x, before[name]) for name, x in start.state_dict().items())
        trained = made.scalar.model.base_model.state_dict()
        assert not any(
            torch.equal(x, start.model.base_model.state_dict()[name]) for name, x in trained.items()
        )
        assert made.scalar.model.score.weight.abs().sum() > 0


class TestExport:
    def export(self, folder: Path, **change: Any) -> Any:
        made = model(batch=Batch(prompts=8), validation_prompts=DIGITS, **change)
        fit(made, 4, splits=replace(SPLITS, train=DIGITS))
        made.export(folder / "export")
        return made

    def test_reloads_with_its_facts(self, tmp_path: Path) -> None:
        made = self.export(tmp_path, pooling="mean")
        again = ScalarModel.load(tmp_path)
        assert again.metadata == made.scalar.metadata
        assert again.metadata.keys() == {"kind", "pooling", "offset"}
        assert (again.metadata["kind"], again.metadata["pooling"]) == ("reward", "mean")

    def test_the_offset_is_part_of_the_state(self) -> None:
        """A resumed run may end before it validates again."""
        made, resumed = model(), model()
        made.scalar.metadata["offset"] = 1.5
        resumed.checkpoint.load_state(made.checkpoint.state())
        assert resumed.scalar.metadata["offset"] == 1.5

    @pytest.mark.parametrize("zero_mean", [True, False])
    def test_the_offset_is_the_mean_score_of_the_held_out_responses(
        self, tmp_path: Path, zero_mean: bool
    ) -> None:
        made = self.export(tmp_path, zero_mean=zero_mean)
        scores = made.scores(made.rows(DIGITS)).mean().item()
        assert abs(scores) > 1e-3
        assert made.scalar.metadata["offset"] == pytest.approx(
            scores if zero_mean else 0.0, abs=1e-5
        )

    def test_a_reward_reads_the_same_scores(self, tmp_path: Path) -> None:
        made = self.export(tmp_path)
        rows = made.rows(DIGITS)
        responses = [Response(prompt=p, text=p.meta["candidates"][0]) for p in DIGITS]
        want = made.scores(rows)[:, 0] - made.scalar.metadata["offset"]
        torch.testing.assert_close(
            torch.tensor(Neural(str(tmp_path))(responses).values), want, rtol=0, atol=1e-5
        )
