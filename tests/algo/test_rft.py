"""Rejection sampling: which answers are imitated."""

import pytest
import torch

from rlmods.advantage import Accept
from rlmods.algo import RFT, SFT, Batch
from rlmods.algo.rft import first_of_equals
from rlmods.ratio import LogLikelihood
from rlmods.rollout import Local
from rlmods.sampling import BestOf
from rlmods.types import Scores
from tests.support.offline import alone
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    collected,
    flat_gradient,
    gradients,
    learner,
)


def rft(**change):
    given = {
        "sampling": BestOf(k=2),
        "advantage": Accept(0.5),
        "ratio": LogLikelihood(),
        "batch": Batch(prompts=4, samples=6),
    }
    return learner(RFT, **given | change)


def test_keeps_the_best_that_differ():
    made = attached(rft(rollout=Local(max_tokens=1)))
    rows, keep = made.sample(SPLITS.train[:4])
    for group in rows.group.unique().tolist():
        mine = (rows.group == group) & keep
        said = [
            tuple(t[m].tolist())
            for t, m in zip(rows.tokens[mine], rows.mask[mine], strict=True)
            if m.any()
        ]
        assert len(said) == len(set(said)) <= 2
        assert all(token % 2 == 0 for (token,) in said)
    assert keep.any()


def test_equal_means_to_the_last_token():
    rows = collected(rft())
    again = rows.concat([rows, rows])
    assert first_of_equals(again).tolist() == [
        *first_of_equals(rows).tolist(),
        *[False] * len(rows),
    ]
    other = rows.concat([rows, rows])
    other.group[len(rows) :] += 1000
    assert first_of_equals(other)[len(rows) :].tolist() == first_of_equals(rows).tolist()


def test_gradient_is_imitation_of_the_accepted():
    made = rft()
    rows = collected(made)
    assert 0 < int(rows.mask.any(1).sum()) < len(rows)
    have = gradients(made, rows)
    made.zero_grad()
    logprobs = made.policy(rows.tokens, rows.mask).logprobs
    (-logprobs.sum() / rows.mask.sum()).backward()
    torch.testing.assert_close(have, flat_gradient(made.policy))


def test_one_score_selects_and_accepts():
    """A correct response whose shaped total is below the threshold is trained on like any other
    correct one."""

    def shaped(responses):
        correct = [r.tokens[0] % 2 == 0 for r in responses]
        return Scores([float(c) - 0.2 * (i % 4) for i, c in enumerate(correct)], correct=correct)

    made = attached(rft(reward=shaped, sampling=BestOf(k=6)))
    rows, keep = made.sample(SPLITS.train[:4])
    chosen = keep & rows.mask.any(1)
    assert chosen.any()
    totals = torch.tensor(
        shaped(made.rollout.generate(SPLITS.train[:4], samples=6, iteration=0)).values
    )
    assert (totals[chosen] < 0.5).any()
    assert (rows.advantages[chosen][rows.mask[chosen]] == 1).all()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_gradient_is_that_of_sft_at_any_temperature_of_sampling(temperature):
    made = rft(rollout=Local(max_tokens=8, temperature=temperature))
    rows = collected(made)
    accepted = rows.select(rows.mask.any(1))
    assert 0 < len(accepted) < len(rows)
    close(
        gradients(made, rows), gradients(alone(learner(SFT, rollout=None, reward=None)), accepted)
    )
    assert ("train/sampler_logprob_gap" in made.meter.compute()) is (temperature == 1.0)
