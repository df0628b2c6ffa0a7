from typing import Any

import pytest
import torch
from hypothesis import assume, given, strategies as st

from rlmods.advantage import GAE, RLOO, Greedy, GroupNorm, Sum, TurnNorm
from rlmods.errors import UserError
from tests.support.batches import Batch, batch, batches, few
from tests.support.turns import turns_of


@few
@given(batches, st.floats(-2, 2), st.floats(-2, 2))
def test_is_the_weighted_sum(b: Batch, first: float, second: float) -> None:
    assume(first or second)
    terms = {
        "outcome": {"estimator": GroupNorm(), "weight": first},
        "baseline": {"estimator": RLOO(), "weight": second},
    }
    found = Sum(terms)(b.rewards, b.mask, b.group).advantages
    outcome = GroupNorm()(b.rewards, b.mask, b.group).advantages
    baseline = RLOO()(b.rewards, b.mask, b.group).advantages
    torch.testing.assert_close(found, first * outcome + second * baseline)


def test_arguments_by_term() -> None:
    b = batch(9, 6, seed=3)
    turn, state = turns_of(b, seed=1)
    terms = {"outcome": {"estimator": GroupNorm()}, "turns": {"estimator": TurnNorm()}}
    arguments = {"turns": {"turn": turn, "state": state}}
    found = Sum(terms)(b.rewards, b.mask, b.group, None, **arguments).advantages
    own = TurnNorm()(b.rewards, b.mask, b.group, None, turn, state).advantages
    torch.testing.assert_close(found, GroupNorm()(b.rewards, b.mask, b.group).advantages + own)


def test_returns_are_of_the_term_with_a_critic() -> None:
    b = batch(9, 6, seed=3)
    terms = {"outcome": {"estimator": GroupNorm()}, "critic": {"estimator": GAE()}}
    found = Sum(terms)(b.rewards, b.mask, b.group, b.values)
    expected = GAE()(b.rewards, b.mask, b.group, b.values).returns
    assert found.returns is not None
    assert torch.equal(found.returns, expected)


def test_it_needs_what_its_terms_need() -> None:
    terms = {"critic": {"estimator": GAE(whiten=True)}, "outcome": {"estimator": GroupNorm()}}
    needs = Sum(terms).needs
    assert needs.values
    assert needs.group
    assert needs.normalizes_batch
    assert needs.normalizes_rewards
    assert needs.credit == "token"
    assert not needs.terms
    named = {"outcome": {"estimator": RLOO(), "reward": "format"}}
    assert Sum(named).needs.terms
    assert Sum(named).needs.credit == "response"
    assert not Sum(named).needs.values


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, r"advantage=sum needs terms: type \+advantage@advantage.terms.NAME"),
        ({"a": {"weight": 1.0}}, r"terms.a must be .*type \+advantage@advantage.terms.a.estimator"),
        ({"a": {"estimator": RLOO(), "wieght": 2}}, "terms.a must be"),
        ({"a": {"estimator": RLOO(), "weight": "x"}}, "weight=x: must be a finite number"),
        ({"a": {"estimator": RLOO(), "weight": True}}, "weight=True: must be a finite number"),
        ({"a": {"estimator": RLOO(), "weight": float("inf")}}, "weight=inf: must be a finite"),
        (
            {"a": {"estimator": RLOO(), "weight": 0}, "b": {"estimator": GAE(), "weight": 0.0}},
            "every weight is 0: type advantage.terms.a.weight=1",
        ),
        ({"a": {"estimator": Sum({"b": {"estimator": RLOO()}})}}, "a.estimator is a sum itself"),
        (
            {"a": {"estimator": GAE()}, "b": {"estimator": Greedy()}},
            "a and b would each read .* type ~advantage.terms.b",
        ),
    ],
)
def test_terms_of_another_form(terms: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Sum(terms)
