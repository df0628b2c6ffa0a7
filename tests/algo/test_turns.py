"""Training on responses of several turns: only tokens that the policy sampled have rewards,
advantages, values and a loss."""

from dataclasses import replace
from typing import Any

import lightning as L
import pytest
import torch

from rlmods.advantage import GAE, GroupNorm, NStep, ReinforcePP
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.ratio import Clipped, Unclipped
from rlmods.reward import EnvironmentReward, Length, WeightedSum
from rlmods.rollout import Local, MultiTurn
from rlmods.training.collate import collate
from rlmods.types import Experience, Prompt, Response, Scores, ToolCall, Turn
from tests.support.environments import Echo
from tests.support.reference import gae
from tests.support.tiny_setup import attached, close, collected, fit, gradients, learner

PPO_PARTS: dict[str, Any] = {
    "kind": PPO,
    "advantage": GAE(0.9, 0.8),
    "critic": Separate(),
    "kl": Penalty("k1", 0.1, "reward"),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "token mean": {},
    "sequence mean": {"aggregation": SequenceMean()},
    "fixed length": {"aggregation": FixedLength(30)},
    "sequence ratio": {"ratio": Clipped(level="sequence")},
    "kl and entropy": {"kl": Penalty("k3", 0.1, "loss"), "entropy_coefficient": 0.1},
    "whitened": {"advantage": ReinforcePP()},
    "ppo": PPO_PARTS,
    "ppo by turn": PPO_PARTS
    | {"advantage": GAE(0.9, 0.8, whiten=True), "reward": EnvironmentReward(by_turn=True)},
    "n step": PPO_PARTS | {"advantage": NStep(3, 0.9)},
}
QUICK = ("token mean", "sequence ratio", "kl and entropy", "ppo by turn")
"""Variants of `make test`."""
FLOATS = (
    "rewards",
    "old_logprobs",
    "behavior_logprobs",
    "advantages",
    "ref_logprobs",
    "values",
    "returns",
)


def made(**changes: Any) -> Any:
    rollout = MultiTurn(Local(max_tokens=6), Echo(least=2))
    return learner(
        **{"rollout": rollout, "reward": EnvironmentReward(), "batch": Batch(prompts=4, samples=4)}
        | changes
    )


def observed(rows: Experience) -> torch.Tensor:
    """True on the tokens of observations."""
    column = torch.arange(rows.tokens.shape[1])
    after_first = rows.mask.long().cumsum(1) > 0
    return ~rows.mask & after_first & (column < rows.lengths[:, None])


@pytest.mark.parametrize(
    "variant", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in VARIANTS]
)
class TestObservations:
    def test_change_no_gradient_whatever_is_in_their_slots(self, variant: str) -> None:
        """Rewards, values and log-probabilities of observations are never read."""
        model = made(**VARIANTS[variant])
        rows = collected(model)
        assert observed(rows).sum() > 20
        expected = gradients(model, rows)
        for poison in (torch.nan, torch.inf, 1e6):
            poisoned = {
                name: torch.where(observed(rows), poison, x)
                for name in FLOATS
                if (x := getattr(rows, name)) is not None
            }
            assert torch.equal(gradients(model, replace(rows, **poisoned)), expected)

    def test_have_no_part_in_credit(self, variant: str) -> None:
        """Of the rows before advantages are estimated."""
        model = attached(made(**VARIANTS[variant]))
        prompts = model.splits.train[:4]
        responses = model.responses(prompts)
        scores = model.reward(responses)
        rows = model.build_batch(prompts, responses, scores)
        assert not rows.rewards[observed(rows)].any()
        assert rows.rewards.sum() == pytest.approx(sum(scores.values), abs=1e-5)
        plain = model.estimate_advantages(rows, scores)
        assert not plain.advantages[observed(rows)].any()
        values = (
            {}
            if plain.values is None
            else {"values": torch.where(observed(rows), torch.nan, plain.values)}
        )
        poisoned = replace(
            plain, rewards=torch.where(observed(rows), torch.nan, rows.rewards), **values
        )
        penalty = torch.zeros_like(rows.rewards)
        again = model.credit.estimate(poisoned, scores, penalty)
        clean = model.credit.estimate(replace(plain, rewards=rows.rewards), scores, penalty)
        assert torch.equal(again.advantages, clean.advantages)
        assert clean.advantages.abs().sum() > 0


def test_gradient_is_that_of_the_sampled_tokens_alone() -> None:
    """A plain loop with the logits of one row at a time."""
    model = made(ratio=Unclipped(), advantage=GroupNorm(), aggregation=TokenMean())
    rows = collected(model)
    gradient = gradients(model, rows)
    losses = []
    for ids, mask, length, advantages in zip(
        rows.tokens, rows.mask, rows.lengths.tolist(), rows.advantages, strict=True
    ):
        logprobs = model.policy.model(ids[None, :length]).logits[0].log_softmax(-1)
        losses += [-advantages[t] * logprobs[t - 1, ids[t]] for t in range(1, length) if mask[t]]
    loss = torch.stack(losses).sum() / len(losses)
    parameters = [p for p in model.policy.parameters() if p.requires_grad]
    close(gradient, torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))


def test_gae_carries_values_across_observations() -> None:
    """Against the quadratic sum over the sampled tokens."""
    model = made(
        **PPO_PARTS
        | {"kl": Penalty("k1", 0.0, "reward"), "reward": EnvironmentReward(by_turn=True)}
    )
    rows = collected(model)
    assert rows.values is not None
    assert rows.returns is not None
    advantages, returns = gae(rows.rewards.double(), rows.values.double(), rows.mask, 0.9, 0.8)
    torch.testing.assert_close(rows.advantages.double(), advantages, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows.returns.double(), returns, rtol=1e-4, atol=1e-5)
    assert (rows.rewards != 0).sum(1).max() > 1


@pytest.mark.parametrize("variant", ["token mean", "ppo by turn"])
def test_shared_prompts_and_padded_rows_give_the_same_gradient(variant: str) -> None:
    """Rows alone, without a common forward of the prompt."""
    model = made(**VARIANTS[variant])
    rows = collected(model)
    whole = gradients(model, rows)
    model.microbatches.token_budget = 1
    close(gradients(model, rows), whole)


PROMPT = Prompt(id="a", text="1+1=")


def response(
    mask: list[bool] | None, turns: list[tuple[int, int, float | None]] = (), **fields: Any
) -> Response:  # type: ignore[assignment]
    tokens = list(range(10, 10 + len(mask or [0, 0, 0])))
    return Response(
        PROMPT,
        [1, 2],
        tokens,
        [-1.0] * len(tokens),
        mask=mask,
        turns=[Turn(a, b, reward=r) for a, b, r in turns],
        **fields,
    )


TWO = response([True, True, False, False, False, True], [(0, 2, 0.25), (5, 6, None)])


def rows_of(responses: list[Response], scores: Scores) -> Experience:
    return collate(
        responses, scores, torch.zeros(len(responses), dtype=torch.long), policy_version=0, pad_id=0
    )


class TestCollate:
    def test_masks_observations(self) -> None:
        rows = rows_of([TWO, response(None), response([True, False])], Scores([2.0, 3.0, 4.0]))
        assert rows.mask.int().tolist() == [
            [0, 0, 1, 1, 0, 0, 0, 1],
            [0, 0, 1, 1, 1, 0, 0, 0],
            [0, 0, 1, 0, 0, 0, 0, 0],
        ]
        assert rows.lengths.tolist() == [8, 5, 4]
        assert rows.rewards.tolist() == [
            [0] * 7 + [2.0],
            [0, 0, 0, 0, 3.0, 0, 0, 0],
            [0, 0, 4.0, 0, 0, 0, 0, 0],
        ]

    def test_rewards_by_turn_are_on_the_last_token_of_each(self) -> None:
        rewarded = replace(TWO, turns=[replace(TWO.turns[0]), replace(TWO.turns[1], reward=1.0)])
        scores = EnvironmentReward(by_turn=True)([rewarded])
        assert scores.values == [1.25]
        rows = rows_of([rewarded], scores)
        assert rows.rewards.tolist() == [[0, 0, 0, 0.25, 0, 0, 0, 1.0]]
        assert rows.steps is not None
        assert rows.steps.nonzero().tolist() == [[0, 3], [0, 7]]

    def test_rewards_of_observations_are_an_error(self) -> None:
        with pytest.raises(UserError, match="on a token of an observation"):
            rows_of([TWO], Scores([1.0], tokens=[[0.0] * 6]))

    def test_a_mask_of_another_length_is_an_error(self) -> None:
        with pytest.raises(UserError, match="6 tokens and 2 mask"):
            rows_of([replace(TWO, mask=[True, False])], Scores([1.0]))


class TestRewards:
    def test_of_the_environment(self) -> None:
        silent = response([True], [(0, 1, None)])
        scores = EnvironmentReward(success=0.25)([TWO, silent])
        assert scores.values == [0.25, None]
        assert scores.correct == [True, None]
        assert EnvironmentReward(success=None)([TWO]).correct is None
        late = response([True, False, True], [(0, 1, -0.1), (2, 3, 1.0)])
        assert EnvironmentReward()([late]).values == [0.9]
        assert EnvironmentReward()([late]).correct == [True]
        assert EnvironmentReward(success=0.3)([TWO]).correct == [False]

    def test_a_response_that_a_crash_of_the_environment_ended_has_none(self) -> None:
        turns = (Turn(0, 2, reward=-0.5), Turn(5, 6, calls=(ToolCall("game", error="crash"),)))
        crashed = replace(TWO, turns=turns)
        scores = EnvironmentReward(by_turn=True)([crashed, TWO])
        assert scores.values == [None, 0.25]
        assert scores.correct == [False, False]
        rows = rows_of([crashed, TWO], scores)
        assert rows.mask.any(1).tolist() == [False, True]

    def test_of_the_environment_needs_one(self) -> None:
        with pytest.raises(
            UserError, match="environment of several turns: type environment=OPTION"
        ):
            EnvironmentReward()([response(None)])

    def test_the_last_sampled_token_gets_what_a_sum_has_per_response(self) -> None:
        cut = response([True, True, False], [(0, 2, 0.5)])
        terms = {
            "turns": {"reward": EnvironmentReward(by_turn=True)},
            "length": {"reward": Length(1.0)},
        }
        assert WeightedSum(terms)([cut]).tokens == [[None, -1.5, None]]


def test_metrics_and_sample_log() -> None:
    seen = []

    class Samples(L.Callback):
        def on_iteration_end(self, trainer: Any, learner: Any, metrics: Any) -> None:
            seen.extend(learner.samples)

    [row] = [row for row in fit(made(), 1, callbacks=(Samples(),)) if "train/reward" in row]
    turns = [sample["turns"] for sample in seen]
    assert row["train/turns"] == pytest.approx(sum(map(len, turns)) / len(turns))
    assert row["train/observation_tokens"] > 1
    assert row["train/tool_calls"] == row["train/malformed_calls"] == 0
    assert {"text", "start", "stop", "reward", "calls"} <= set(turns[0][0])
    assert row["train/response_tokens"] == pytest.approx(
        sum(t["stop"] - t["start"] for own in turns for t in own) / len(turns)
    )
    assert not any("train/turns" in row for row in fit(learner(), 1))
