"""A step that is not finite is left out, and nothing of it stays."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.advantage import GAE
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate
from rlmods.errors import UserError
from rlmods.kl import Adaptive
from rlmods.ratio import Clipped
from rlmods.training.train_step import Microbatches
from rlmods.types import Experience
from tests.support.tiny_setup import attached, close, collected, fit, gradients, learner


def off_policy(aggregation: Any = None, **change: Any) -> tuple[Any, Experience]:
    """Return a learner whose policy has moved since it sampled these rows, one of which is without
    loss."""
    made = learner(aggregation=aggregation or TokenMean(), ratio=Clipped(0.1, 0.2), **change)
    rows = collected(made)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in made.policy.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    mask = rows.mask.clone()
    mask[3] = False
    return made, replace(rows, mask=mask)


def slow_gradient(made: Any, rows: Experience) -> torch.Tensor:
    """Return the gradient of the clipped loss from the model's own logits, one response at a time,
    by the equations."""
    responses, weights = [i for i in range(len(rows)) if rows.mask[i].any()], {}
    for i in responses:
        length = int(rows.mask[i].sum())
        weights[i] = {
            "TokenMean": 1 / int(rows.mask.sum()),
            "SequenceMean": 1 / length / len(responses),
        }.get(type(made.aggregation).__name__, 1 / 8 / len(responses))
    total = torch.zeros(())
    for i in responses:
        n = int(rows.lengths[i])
        logprobs = made.policy.model(input_ids=rows.tokens[i : i + 1, :n]).logits[0].log_softmax(-1)
        for t in rows.mask[i].nonzero().squeeze(1).tolist():
            ratio, advantage = (
                (logprobs[t - 1, rows.tokens[i, t]] - rows.old_logprobs[i, t]).exp(),
                rows.advantages[i, t],
            )
            total = total - weights[i] * torch.minimum(
                ratio * advantage, ratio.clamp(0.9, 1.2) * advantage
            )
    made.zero_grad()
    total.backward()
    return torch.cat([p.grad.flatten() for p in made.policy.parameters()])


class OtherRanks:
    """Ranks that all have the rows of this one; the one with the most microbatches has
    `num_microbatches`."""

    rank, device = 0, torch.device("cpu")

    def __init__(self, world_size: int, num_microbatches: int = 1) -> None:
        self.world_size, self.num_microbatches = world_size, num_microbatches

    def reduce_count(self, count: int, op: str = "sum") -> int:
        return int(self.reduce(torch.tensor(count), op))

    def reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        if op == "sum":
            return x.to(torch.float64) * self.world_size
        return x.to(torch.float64) if x.dtype == torch.bool else x.clamp(min=self.num_microbatches)


class TestGradient:
    """The step against a loop over single tokens, which shares no code with it."""

    @pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean(), FixedLength(8)])
    @pytest.mark.parametrize("token_budget", [1, 40, 10**6])
    def test_equals_the_loop(self, aggregation: Any, token_budget: int) -> None:
        made, rows = off_policy(
            aggregation, batch=Batch(prompts=4, samples=4, token_budget=token_budget)
        )
        want = slow_gradient(made, rows)
        close(gradients(made, rows), want)
        close(gradients(made, rows), want)  # nothing of the first is left
        metrics = made.meter.compute()
        assert 0 < metrics["train/clip_fraction/low"] + metrics["train/clip_fraction/high"] < 1

    @pytest.mark.parametrize("max_norm", [0.01, 0.1])
    def test_is_clipped_to_max_norm(self, max_norm: float) -> None:
        made, rows = off_policy()
        want = slow_gradient(made, rows)
        assert want.norm() > 2 * max_norm
        close(gradients(made, rows, max_norm=max_norm), want * max_norm / want.norm())
        assert made.meter.compute()["train/grad_norm"] == pytest.approx(
            float(want.norm()), rel=1e-4
        )

    def test_a_run_clips_to_its_max_norm(self) -> None:
        """Plain gradient descent moves the weights by at most lr * max_norm."""
        made = learner(
            batch=Batch(prompts=4, samples=4, max_norm=0.01),
            optimizer=partial(torch.optim.SGD, lr=1.0),
        )
        before = torch.cat([p.detach().clone().flatten() for p in made.policy.parameters()])
        [row] = fit(made, 1)
        moved = torch.cat([p.detach().flatten() for p in made.policy.parameters()]) - before
        assert row["train/grad_norm"] > 0.02
        assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)

    @pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean(), FixedLength(8)])
    @pytest.mark.parametrize("world_size", [2, 3])
    def test_the_average_over_ranks_is_that_of_one_rank(
        self, aggregation: Any, world_size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All ranks have the same rows here, so that the average is the gradient of each;
        strategies take it after backward."""
        made, rows = off_policy(aggregation)
        want = slow_gradient(made, rows)
        for part in (made.step, made.microbatches):
            monkeypatch.setattr(part, "ranks", OtherRanks(world_size))
        close(gradients(made, rows), want)

    def test_a_rank_with_fewer_microbatches_adds_nothing_for_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, rows = off_policy()
        want, forwards, loss = slow_gradient(made, rows), [], made.loss
        monkeypatch.setattr(made.microbatches, "ranks", OtherRanks(1, num_microbatches=4))
        close(
            gradients(
                made,
                rows,
                lambda micro, totals: (forwards.append(micro.mask.any()), loss(micro, totals))[1],
            ),
            want,
        )
        assert [bool(x) for x in forwards] == [True, False, False, False]


def test_only_the_last_microbatch_reduces_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rows = off_policy(batch=Batch(prompts=4, samples=4, token_budget=40))
    synced: list[bool] = []

    def gradient_sync(is_last: bool) -> Any:
        synced.append(is_last)
        return nullcontext()

    monkeypatch.setattr(made.step, "gradient_sync", gradient_sync)
    gradients(made, rows)
    assert len(synced) > 1
    assert synced == [False] * (len(synced) - 1) + [True]


def test_rows_without_loss_divide_by_one() -> None:
    made, rows = off_policy()
    [source] = made.step.sources((rows.without_loss(), made.loss))
    assert (float(source.totals.tokens), float(source.totals.sequences)) == (1, 1)
    assert not source.has_loss


def test_gradients_are_freed_after_a_step() -> None:
    made, _ = off_policy()
    before = [p.detach().clone() for p in made.policy.parameters()]
    fit(made, 1)
    assert any(not torch.equal(a, b) for a, b in zip(before, made.policy.parameters(), strict=True))
    assert all(p.grad is None for p in made.policy.parameters())


def test_microbatches_hold_every_row_once_within_the_budget() -> None:
    made = attached(learner())
    rows = collected(made)
    parts = list(Microbatches(made.ranks, made.timer, 40)(rows))
    assert sorted(i for _, indices in parts for i in indices.tolist()) == list(range(len(rows)))
    for micro, indices in parts:
        assert micro.tokens.numel() <= 40
        assert torch.equal(micro.tokens, rows.tokens[indices, : micro.tokens.shape[1]])
        assert torch.equal(micro.mask, rows.mask[indices, : micro.tokens.shape[1]])
        assert not rows.mask[indices, micro.tokens.shape[1] :].any()


@pytest.mark.parametrize("num_added", [0, 2])
def test_only_the_last_microbatch_ends_the_rows(num_added: int) -> None:
    """Another rank has `num_added` more, and every rank reduces once."""
    made = attached(learner())
    rows = collected(made)
    ranks: Any = SimpleNamespace(reduce_count=lambda count, how: count + num_added)
    parts = list(Microbatches(ranks, made.timer, 40).with_end(rows))
    assert [is_last for *_, is_last in parts] == [False] * (len(parts) - 1) + [True]
    assert [len(indices) for _, indices, _ in parts[len(parts) - num_added :]] == [0] * num_added


def poisoned(made: Any, *steps: int, what: float = math.nan, gradient_only: bool = False) -> Any:
    """Losses of the optimizer steps at these positions are `what`, or their gradients NaN."""
    loss, train_step, position = made.loss, made.train_step, [-1]

    def counted(*args: Any) -> None:
        position[0] += 1
        train_step(*args)

    def wrong(micro: Any, totals: Any) -> torch.Tensor:
        found = loss(micro, totals)
        if position[0] not in steps:
            return found
        if not gradient_only:
            return found * what
        found.register_hook(lambda gradient: gradient * math.nan)
        return found + 0.0

    made.loss, made.train_step = wrong, counted
    return made


BATCH = Batch(prompts=4, samples=4, epochs=2, minibatches=2)
"""Four optimizer steps an iteration."""


@pytest.mark.parametrize(
    "how", [{}, {"what": math.inf}, {"gradient_only": True}], ids=["NaN", "infinite", "gradient"]
)
class TestOneStep:
    def test_leaves_weights_and_optimizer_as_they_were(self, how: dict[str, Any]) -> None:
        """All steps of the iteration are poisoned: it is as if there had been none."""
        made = poisoned(learner(batch=BATCH), 0, 1, **how)
        made.batch = Batch(prompts=4, samples=4, epochs=1, minibatches=2)
        before = copy.deepcopy(made.policy.state_dict())
        [row] = fit(made, 1)
        assert row["train/nonfinite_steps"] == 2
        assert "train/grad_norm" not in row
        assert made.optimizer_steps == 0
        assert all(
            torch.equal(before[name], weight) for name, weight in made.policy.state_dict().items()
        )
        assert not made.optimizers().state
        assert all(p.grad is None or not p.grad.any() for p in made.policy.parameters())

    def test_the_others_count(self, how: dict[str, Any]) -> None:
        made = poisoned(learner(batch=BATCH), 1, **how)
        rows = fit(made, 2)
        assert [row["train/nonfinite_steps"] for row in rows] == [1, 0]
        assert [row["optimizer_step"] for row in rows] == [3, 7]
        assert math.isfinite(rows[0]["train/grad_norm"])
        assert all(weight.isfinite().all() for weight in made.policy.state_dict().values())


def test_in_a_row_is_what_counts() -> None:
    made = poisoned(learner(batch=BATCH), 0, 1, 3, 4, 6, 7)
    assert [row["train/nonfinite_steps"] for row in fit(made, 2)] == [3, 3]


def test_too_many_end_the_run() -> None:
    made = poisoned(
        learner(batch=Batch(prompts=4, samples=4, epochs=2, minibatches=2, max_nonfinite=2)),
        2,
        4,
        5,
    )
    with pytest.raises(
        UserError,
        match=r"^2 optimizer steps in a row were not finite: iteration 2 ends the run, try a "
        r"smaller optimizer.lr",
    ):
        fit(made, 9)
    assert (made.iteration, made.optimizer_steps) == (1, 3)


def test_a_critic_counts_too() -> None:
    batch = replace(BATCH, max_nonfinite=4)  # all steps of an iteration
    made = learner(PPO, advantage=GAE(), critic=Separate(), batch=batch)
    for p in made.critic.parameters():
        p.register_hook(lambda gradient: gradient * math.nan)
        break
    with pytest.raises(UserError, match="4 optimizer steps in a row"):
        fit(made, 9)
    assert made.iteration == 0


def test_a_coefficient_is_not_steered_by_nan() -> None:
    """It would be NaN from then on, and every loss with it."""
    made = learner(
        PPO,
        advantage=GAE(),
        critic=Separate(),
        kl=Adaptive("k1", 0.05, "reward", target=0.01, horizon=20.0),
    )
    score, calls = made.scorer.add_ref_logprobs, []

    def once(experience: Any, reference: Any) -> Any:
        found = score(experience, reference)
        calls.append(1)
        if len(calls) == 2:
            found.ref_logprobs.mul_(math.nan)
        return found

    made.scorer.add_ref_logprobs = once
    rows = fit(made, 4)
    assert math.isnan(rows[1]["train/kl_ref"])
    assert [row["train/nonfinite_steps"] for row in rows] == [0, 1, 0, 0]
    assert math.isfinite(made.kl.coefficient)


def test_microbatches_are_made_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress counts those begun, and copies of all rows at once would take memory."""
    made, rows = off_policy(batch=Batch(prompts=4, samples=4, token_budget=1))
    begun = []
    own_loss = made.loss

    def loss(micro: Experience, totals: Any) -> torch.Tensor:
        begun.append(made.timer.progress)
        return own_loss(micro, totals)

    monkeypatch.setattr(made, "loss", loss)
    with made.timer("update"):
        gradients(made, rows)
    assert len(begun) == len(rows) > 2
    assert begun == list(range(1, len(rows) + 1))
