"""Forwards of given responses: who computes values, and for which rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlmods.advantage import GAE
from rlmods.algo import PPO
from rlmods.critic import Separate, Shared
from tests.support.tiny_setup import collected, learner


@pytest.mark.parametrize("critic", [Separate(), Shared()])
def test_values_are_computed_on_request(critic: Any) -> None:
    made = learner(PPO, advantage=GAE(), critic=critic)
    rows = collected(made)
    assert made.scorer.forward(rows, made.policy).values is not None
    assert made.scorer.forward(rows, made.policy, critic=False).values is None


class Waiting:
    """The ranks of a run with another that needs a row of its own."""

    rank, world_size, device = 0, 2, torch.device("cpu")

    def reduce_count(self, count: int, op: str = "sum") -> int:
        return int(self.reduce(torch.tensor(count), op))

    def reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        return x + 1


def test_a_rank_that_needs_no_row_joins_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner()
    rows = collected(made).select(torch.tensor([0]))
    forwards = []
    score = made.scorer.score
    monkeypatch.setattr(made.scorer, "ranks", Waiting())

    def counted(part: Any, *arguments: Any) -> Any:
        forwards.append(len(part))
        return score(part, *arguments)

    monkeypatch.setattr(made.scorer, "score", counted)
    found = made.scorer.add_old_logprobs(rows, torch.zeros(1, dtype=torch.bool))
    assert forwards == [1]
    assert torch.equal(found.old_logprobs, rows.old_logprobs)


def test_old_logprobs_are_computed_for_the_rows_that_need_them() -> None:
    made = learner()
    rows = collected(made)
    computed = made.scorer.score(rows, made.policy).logprobs
    rows = replace(
        rows,
        old_logprobs=torch.full_like(rows.old_logprobs, -9.0),
        on_policy=torch.ones_like(rows.on_policy),
    )
    needed = torch.arange(len(rows)) % 2 == 0
    found = made.scorer.add_old_logprobs(rows, needed)
    added = needed & rows.mask.any(1)
    assert added.any()
    torch.testing.assert_close(found.old_logprobs[added], computed[added])
    assert bool((found.old_logprobs[~added] == -9.0).all())
    assert torch.equal(found.on_policy, ~added)
