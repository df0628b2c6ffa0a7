"""The suite bites: each check holds for the code as it is, and fails once its bug is planted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from rlmods.advantage import GAE, GroupNorm
from rlmods.aggregation import TokenMean
from rlmods.algo import DPO, Learner, PolicyGradient
from rlmods.ops import masked_sum
from rlmods.policy import Policy, ScalarModel
from rlmods.preference import KTO, Sigmoid
from rlmods.ranking import BradleyTerry, PlackettLuce
from rlmods.ratio import Clipped
from rlmods.rollout import Local
from rlmods.types import Totals
from tests.support.batches import batch
from tests.support.rankings import ranking
from tests.support.tiny_setup import collected, learner

from .advantage import test_gae, test_group_norm
from .aggregation import test_token_mean
from .algo import test_dpo, test_ppo, test_reward_model
from .algo import test_policy_gradient as loop
from .preference import test_kto, test_sigmoid
from .ranking import test_bradley_terry, test_plackett_luce
from .ratio import test_clipped

RAGGED = batch(8, 7, seed=1)
"""One of the batches that hypothesis draws."""
RANKED = ranking(4, 4, seed=1)
"""One of the rankings."""


def the_loop_of_the_paper(module: Any, *given: Any) -> Callable[[], None]:
    """The comparison with the slow reference, on one batch."""
    return lambda: module.test_equals_the_loop.hypothesis.inner_test(*given)


def sampler_and_trainer_agree() -> None:
    rows = collected(learner(rollout=Local(max_tokens=8, temperature=0.6)))
    torch.testing.assert_close(rows.old_logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4)


def halved(loss: Any) -> Any:
    return lambda micro, totals: loss(micro, Totals(2 * totals.tokens, totals.sequences))


def pays_twice(right: Any, self: Any, *x: Any) -> Any:
    kl, self.kl = self.kl, replace(self.kl, where="loss")
    found = right(self, *x)
    self.kl = kl
    return found


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
    "the critic's error has the wrong sign": Bug(
        GAE,
        "__call__",
        lambda right, self, rewards, mask, group, values: right(self, rewards, mask, group, -values),
        lambda: test_gae.test_equals_the_quadratic_sum_whatever_is_in_masked_slots.hypothesis.inner_test(RAGGED, 0.9, 0.8),
    ),
    "the preference is the wrong way round": Bug(
        Sigmoid,
        "__call__",
        lambda right, self, logprobs, ref, num, rank: right(self, logprobs, ref, num, rank.amax(1, keepdim=True) - rank),
        the_loop_of_the_paper(test_sigmoid, RANKED, 0.1, 0.0),
    ),
    "DPO reads means of tokens": Bug(
        DPO,
        "loss",
        lambda right, self, micro, totals: right(self, replace(micro, mask=micro.mask & (micro.mask.cumsum(2) <= 2)), totals),
        test_dpo.TestLoss().test_equals_the_loop_in_value_and_gradient,
    ),
    "KTO takes all for desirable": Bug(
        KTO,
        "__call__",
        lambda right, self, logprobs, ref, num, rank, kl: right(self, logprobs, ref, num, rank * 0, kl),
        the_loop_of_the_paper(test_kto, RANKED, 0.1, 1.0, 1.0),
    ),
    "a ranking counts its neighbours only": Bug(
        BradleyTerry,
        "__call__",
        lambda right, self, scores, rank, present, margin: right(self, scores, rank.clamp(max=1), present, margin),
        the_loop_of_the_paper(test_bradley_terry, False, RANKED),
    ),
    "Plackett and Luce forget who is left": Bug(
        PlackettLuce,
        "__call__",
        lambda right, self, scores, rank, present, margin: right(self, scores, rank.clamp(max=1), present, margin),
        the_loop_of_the_paper(test_plackett_luce, RANKED),
    ),
    "a reward model reads one token early": Bug(
        ScalarModel,
        "forward",
        lambda right, self, tokens, attention=None: right(self, tokens, attention).roll(1, 1),
        test_reward_model.TestLoss().test_equals_the_loop_in_value_and_gradient,
    ),
    "the KL is paid in the loss as well": Bug(
        PolicyGradient,
        "loss",
        pays_twice,
        test_ppo.TestKLInTheReward().test_is_not_in_the_loss_too,
    ),
    "the imitation is divided by the tokens of the reward": Bug(
        Learner,
        "train_step",
        lambda right, self, rows, *more: right(self, rows, *((r, halved(f)) for r, f in more)),
        lambda: test_ppo.TestPTX().test_a_step_follows_both_losses(4096),
    ),
    "old log-probs are those of the latest step": Bug(
        PolicyGradient,
        "train_step",
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
