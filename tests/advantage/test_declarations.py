"""What estimators declare to the rules and to the loop is what they do."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods import advantage
from rlmods.advantage import (
    EMA,
    GAE,
    GDPO,
    RLOO,
    Accept,
    BatchMean,
    BranchNorm,
    Greedy,
    GroupMean,
    GroupNorm,
    LengthWeighted,
    MaxRL,
    NStep,
    Process,
    ReinforcePP,
    Sum,
    TeacherLogRatio,
    Tree,
    TurnNorm,
)
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.ops import differs_by_token
from tests.support.batches import Batch, batch, batches, few

PARTS: dict[str, Any] = {
    "ema": EMA,
    "gae": GAE,
    "gae_whitened": lambda: GAE(whiten=True),
    "rloo": RLOO,
    "accept": Accept,
    "anchor_state": lambda: TurnNorm(compare="state", gamma=0.95),
    "batch_mean": BatchMean,
    "batch_mean_scaled": lambda: BatchMean(scale="batch"),
    "branch_hard": BranchNorm,
    "branch_soft": lambda: BranchNorm(attribution="soft"),
    "gdpo": GDPO,
    "greedy": Greedy,
    "group_mean": GroupMean,
    "group_norm": GroupNorm,
    "group_norm_by_batch": lambda: GroupNorm(scale="batch"),
    "length_weighted": LengthWeighted,
    "max_rl": MaxRL,
    "n_step": NStep,
    "process": Process,
    "reinforce_pp": ReinforcePP,
    "reinforce_pp_discounted": lambda: ReinforcePP(gamma=0.9),
    "reinforce_pp_baseline": lambda: ReinforcePP(baseline="group"),
    "sum": lambda: Sum({"all": {"estimator": GroupMean()}}),
    "teacher": TeacherLogRatio,
    "tree": Tree,
    "turn_norm": TurnNorm,
}


def needs(name: str) -> AdvantageNeeds:
    return needs_of(PARTS[name](), AdvantageNeeds)


def of_response(x: Tensor, mask: Tensor) -> Tensor:
    """Two columns with the largest absolute value of each response."""
    return torch.where(mask, x.abs(), 0).amax(1, keepdim=True).expand(-1, 2)


def estimates(make: Any, b: Batch, rewards: Tensor, scale: float = 1.0) -> Tensor:
    """Advantages before normalisation over the batch."""
    part = make()
    options = (
        {"steps": b.mask & (torch.arange(b.mask.shape[1]) % 2 == 0)}
        if needs_of(part, AdvantageNeeds).steps
        else {}
    )
    if needs_of(part, AdvantageNeeds).turns and not isinstance(part, Sum):
        turn = (torch.arange(b.mask.shape[1]) // 2).expand(b.mask.shape)
        options = {"turn": turn, "state": turn}
    if needs_of(part, AdvantageNeeds).teacher:
        options = {"teacher_log_ratio": b.values}
    if needs_of(part, AdvantageNeeds).terms:
        options = {"terms": scale * of_response(rewards, b.mask), "weights": torch.ones(2)}
    # all responses to a prompt share their first two columns
    if needs_of(part, AdvantageNeeds).branches:
        options = {
            "origin": torch.where(
                torch.arange(b.mask.shape[1]) < 2, 0, torch.arange(len(b.mask))[:, None]
            )
        }
    values = b.values
    if needs_of(part, AdvantageNeeds).greedy:
        values = of_response(b.values, b.mask)[:, :1].expand_as(b.values)
    advantages: Tensor = getattr(part, "estimate", part)(
        scale * rewards, b.mask, b.group, scale * values, **options
    ).advantages
    return advantages


B = batch(9, 6, seed=3)
B = replace(B, rewards=B.rewards.abs())  # max_rl divides by the mean reward


def outcome(b: Batch) -> Tensor:
    """Rewards on the last token of each response."""
    is_last = b.mask & (b.mask.cumsum(1) == b.mask.sum(1, keepdim=True))
    return torch.where(is_last, b.rewards, 0)


OUTCOME = outcome(B)


def test_every_estimator_is_here() -> None:
    assert {type(make()).__name__ for make in PARTS.values()} == set(advantage.__all__)


@pytest.mark.parametrize("name", PARTS)
@few
@given(batches)
def test_values_in_masked_slots_change_no_bit(name: str, b: Batch) -> None:
    b = replace(b, rewards=b.rewards.abs())
    poisoned = b.poisoned()
    found = estimates(PARTS[name], poisoned, poisoned.rewards)
    assert torch.equal(found, estimates(PARTS[name], b, b.rewards))
    assert (found[~b.mask] == 0).all()


@pytest.mark.parametrize("name", PARTS)
@few
@given(batches, st.randoms())
def test_the_order_of_the_rows_changes_nothing(name: str, b: Batch, random: Random) -> None:
    b = replace(b, rewards=b.rewards.abs())
    order = torch.tensor(random.sample(range(len(b.mask)), len(b.mask)))
    shuffled = b.select(order)
    found = estimates(PARTS[name], shuffled, shuffled.rewards)
    torch.testing.assert_close(found, estimates(PARTS[name], b, b.rewards)[order])


@pytest.mark.parametrize("name", PARTS)
@few
@given(batches, st.integers(1, 4))
def test_padding_changes_no_bit(name: str, b: Batch, columns: int) -> None:
    b = replace(b, rewards=b.rewards.abs())
    wide = b.padded(columns)
    found = estimates(PARTS[name], wide, outcome(wide))
    assert torch.equal(found[:, : b.mask.shape[1]], estimates(PARTS[name], b, outcome(b)))


GROUP_BASELINES = [
    "branch_hard",
    "branch_soft",
    "gdpo",
    "group_mean",
    "group_norm",
    "group_norm_by_batch",
    "length_weighted",
    "max_rl",
    "reinforce_pp_baseline",
    "rloo",
    "sum",
    "tree",
]


def equal_rewards(reward: float, dtype: torch.dtype) -> Batch:
    """Groups of 8 and 7 responses: sums of so many equal numbers are rounded."""
    b = batch(15, 6, seed=3)
    mask = torch.arange(6) < torch.arange(15)[:, None] % 6 + 1
    is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    group = (torch.arange(15) >= 8).long()
    rewards = torch.where(is_last, reward, 0.0).to(dtype)
    return replace(b, rewards=rewards, values=b.values.to(dtype), mask=mask, group=group)


@pytest.mark.parametrize("name", GROUP_BASELINES)
@pytest.mark.parametrize("reward", [0.95, 1 / 3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_0(name: str, reward: float, dtype: torch.dtype) -> None:
    b = equal_rewards(reward, dtype)
    assert (estimates(PARTS[name], b, b.rewards) == 0).all()


DECLARED = {
    "values": {"gae", "gae_whitened", "n_step"},
    "greedy": {"greedy"},
    "steps": {"process"},
    "outcomes": set(),
    "branches": {"branch_hard", "branch_soft", "tree"},
    "turns": {"anchor_state", "sum", "turn_norm"},
    "terms": {"gdpo"},
    "nonnegative": {"max_rl"},
    "correctness": {"accept"},
    "teacher": {"teacher"},
}
"""Estimators that declare a need."""


@pytest.mark.parametrize("need", DECLARED)
def test_declared_needs(need: str) -> None:
    declared = {name for name in PARTS if getattr(needs(name), need)}
    assert declared == DECLARED[need]


def test_the_weight_of_outcomes_declares_that_they_are_needed() -> None:
    assert Process(outcome_weight=1.0).needs.outcomes


# the steps of one response are normalised among themselves
@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"process"}))
def test_a_group_is_needed_where_a_single_response_teaches_nothing(name: str) -> None:
    alone = B.select(torch.tensor([0]))
    rewards = OUTCOME[:1]
    is_zero = bool((estimates(PARTS[name], alone, rewards) == 0).all())
    is_of_batch = name in {"batch_mean", "batch_mean_scaled"}
    assert needs(name).group == (is_zero and name != "ema" and not is_of_batch)


@pytest.mark.parametrize("name", PARTS)
def test_a_missing_argument_is_named(name: str) -> None:
    declared = needs(name)
    argument = {
        "values": declared.values or declared.greedy,
        "steps": declared.steps,
        "terms": declared.terms,
        "turn": declared.turns and name != "sum",
    }
    missing = [key for key, is_needed in argument.items() if is_needed]
    if missing:
        with pytest.raises((AssertionError, TypeError), match=missing[0]):
            PARTS[name]()(B.rewards, B.mask, B.group, None)


BY_TOKEN = {"response": (False, False), "reward_to_go": (False, True), "token": (True, True)}
"""Whether the advantages of a response differ by token, with a reward on its last token and with
one on each, by declared `credit`."""


@pytest.mark.parametrize("name", PARTS)
def test_credit(name: str) -> None:
    by_token = tuple(
        bool(differs_by_token(estimates(PARTS[name], B, rewards), B.mask).any())
        for rewards in (OUTCOME, B.rewards)
    )
    assert by_token == BY_TOKEN[needs(name).credit]


# these read correctness and terms
@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"accept", "gdpo"}))
def test_normalizes_rewards(name: str) -> None:
    """Dividing by the spread of the rewards is what makes advantages independent of their scale."""
    one, three = (estimates(PARTS[name], B, B.rewards, scale) for scale in (1.0, 3.0))
    assert one.abs().max() > 0.1
    divides = needs(name).normalizes_rewards
    torch.testing.assert_close(three, one if divides else 3 * one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PARTS)
def test_whoever_normalises_over_the_batch_can_do_it_later(name: str) -> None:
    """With `estimate` and `normalize`; without them, a group's advantages do not depend on other
    groups."""
    part = PARTS[name]()
    assert hasattr(part, "estimate") == hasattr(part, "normalize")
    own = B.group == B.group[0]
    is_of_batch = name in {"batch_mean", "batch_mean_scaled", "group_norm_by_batch"}
    if hasattr(part, "normalize") or name == "ema" or is_of_batch:
        return
    alone = B.select(own.nonzero().squeeze(1))
    torch.testing.assert_close(
        estimates(PARTS[name], B, B.rewards)[own], estimates(PARTS[name], alone, alone.rewards)
    )
