"""Rejection sampling: which answers are imitated."""

import torch

from rlmods.advantage import Accept
from rlmods.algo import RFT, Batch
from rlmods.algo.rft import first_of_equals
from rlmods.ratio import LogLikelihood
from rlmods.rollout import Local
from rlmods.sampling import BestOf
from tests.support.tiny_setup import SPLITS, attached, collected, fit, gradients, learner


def rft(**change):
    given = {"sampling": BestOf(k=2), "advantage": Accept(0.5), "ratio": LogLikelihood(), "batch": Batch(prompts=4, samples=6)}
    return learner(RFT, **given | change)


def test_keeps_the_best_that_differ():
    made = attached(rft(rollout=Local(max_tokens=1)))
    rows, keep = made.sample(SPLITS.train[:4])
    for group in rows.group.unique().tolist():
        mine = (rows.group == group) & keep
        said = [tuple(t[m].tolist()) for t, m in zip(rows.tokens[mine], rows.mask[mine], strict=True) if m.any()]
        assert len(said) == len(set(said)) <= 2
        assert all(token % 2 == 0 for (token,) in said)
    assert keep.any()


def test_equal_means_to_the_last_token():
    rows = collected(rft())
    again = rows.concat([rows, rows])
    assert first_of_equals(again).tolist() == [*first_of_equals(rows).tolist(), *[False] * len(rows)]
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
    torch.testing.assert_close(have, torch.cat([p.grad.flatten() for p in made.policy.parameters()]))


def test_learns():
    rows = fit(rft(batch=Batch(prompts=8, samples=8)), 15)
    assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.15
    assert 0 < rows[0]["train/kept_fraction"] < 1
