"""The suite bites: each check holds for the code as it is, and fails once its bug is planted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from rlmods.advantage import GroupNorm
from rlmods.aggregation import TokenMean
from rlmods.algo import PolicyGradient
from rlmods.ops import masked_sum
from rlmods.policy import Policy
from rlmods.ratio import Clipped
from rlmods.rollout import Local

from .advantage import test_group_norm
from .aggregation import test_token_mean
from .algo import test_policy_gradient as loop
from .algo.worlds import collected, learner
from .batches import batch
from .ratio import test_clipped

RAGGED = batch(8, 7, seed=1)
"""One of the batches that hypothesis draws."""


def the_loop_of_the_paper(module: Any, *given: Any) -> Callable[[], None]:
    """The comparison with the slow reference, on one batch."""
    return lambda: module.test_equals_the_loop.hypothesis.inner_test(*given)


def sampler_and_trainer_agree() -> None:
    rows = collected(learner(rollout=Local(max_tokens=8, temperature=0.6)))
    torch.testing.assert_close(rows.old_logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4)


@dataclass(frozen=True)
class Bug:
    where: Any
    name: str
    """Of the method that has it."""
    wrong: Callable[..., Any]
    """Gets the right method first."""
    check: Callable[[], None]


BUGS = {
    "the objective's sign is flipped": Bug(
        Clipped,
        "__call__",
        lambda right, self, *x: replace(found := right(self, *x), objective=-found.objective),
        loop.TestFirstMinibatch().test_gradient_is_reinforce,
    ),
    "low and high are swapped": Bug(
        Clipped,
        "__call__",
        lambda right, self, *x: right(replace(self, low=self.high, high=self.low), *x),
        the_loop_of_the_paper(test_clipped, "token", RAGGED, 0.1, 0.4, None),
    ),
    "aggregation drops the mask": Bug(
        TokenMean,
        "__call__",
        lambda right, self, x, mask, totals: x.sum() / totals.tokens,
        the_loop_of_the_paper(test_token_mean, RAGGED),
    ),
    "aggregation means where it should sum": Bug(
        TokenMean,
        "__call__",
        lambda right, self, x, mask, totals: masked_sum(x, mask).sum() / mask.sum(),
        lambda: loop.TestInvariances().test_token_budget("dapo"),
    ),
    "the trainer forgets the temperature": Bug(
        Policy,
        "forward",
        lambda right, self, tokens, mask, temperature, **options: right(self, tokens, mask, **options),
        sampler_and_trainer_agree,
    ),
    "labels are shifted by one": Bug(
        Policy,
        "_score",
        lambda right, self, hidden, targets, *options: right(self, hidden, targets.roll(1), *options),
        sampler_and_trainer_agree,
    ),
    "groups are told by position": Bug(
        GroupNorm,
        "__call__",
        lambda right, self, rewards, mask, group, *x: right(self, rewards, mask, torch.arange(len(group)) // 2, *x),
        the_loop_of_the_paper(test_group_norm, RAGGED, 1e-6, True),
    ),
    "the entropy bonus has no gradient": Bug(
        Policy,
        "forward",
        lambda right, self, *x, entropy=False, **options: right(self, *x, entropy=False, **options),
        loop.TestLearning().test_entropy_bonus_raises_entropy,
    ),
    "old log-probs are those of the latest step": Bug(
        PolicyGradient,
        "update",
        lambda right, self, rows: right(self, replace(rows, old_logprobs=torch.full_like(rows.old_logprobs, torch.nan))),
        loop.TestFirstMinibatch().test_later_minibatches_move,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_bites(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.check()
    right = getattr(bug.where, bug.name)
    monkeypatch.setattr(bug.where, bug.name, lambda *args, **options: bug.wrong(right, *args, **options))
    with pytest.raises(AssertionError):
        bug.check()
