import torch
from hypothesis import given, strategies as st

import rlmods.ops
import rlmods.tokens.covariance
from rlmods.tokens import ClipCov, KLCov
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import covariances

fractions = st.sampled_from([0.01, 0.1, 0.3, 1.0])


def left_out(found: torch.Tensor, mask: torch.Tensor) -> set[tuple[int, ...]]:
    assert not (found & ~mask).any()
    return {tuple(x) for x in (mask & ~found).nonzero().tolist()}


def count(b: Batch, fraction: float) -> int:
    return max(1, int(fraction * int(b.mask.sum()) + 1e-9))


def draws(b: Batch) -> torch.Tensor:
    return torch.rand(b.mask.shape, generator=torch.Generator().manual_seed(5))


@few
@given(batches, fractions)
def test_kl_cov_equals_the_loop(b: Batch, fraction: float) -> None:
    of_slots = covariances(b.old_logprobs, b.advantages, b.mask)
    c = {slot: float(x) for slot, x in of_slots.items() if x > 1e-5}
    largest = sorted(c.values(), reverse=True)[: count(b, fraction)]
    smallest = min(largest, default=0.0)
    expected = {slot for slot in c if c[slot] >= smallest - 1e-5}  # two tokens have equal ones
    p = b.poisoned()
    found = KLCov(fraction)(p.old_logprobs, p.advantages, p.mask)
    assert left_out(found, b.mask) == expected


@few
@given(batches, fractions, st.floats(-0.5, 0.5))
def test_clip_cov_draws_among_the_bounds(b: Batch, fraction: float, low: float) -> None:
    high = low + 0.5
    of_slots = covariances(b.old_logprobs, b.advantages, b.mask)
    within = [slot for slot, c in of_slots.items() if low <= c <= high]
    u = draws(b)
    drawn = sorted(within, key=lambda slot: -float(u[slot]))[: count(b, fraction)]
    p = b.poisoned()
    found = ClipCov(fraction, low, high)(p.old_logprobs, p.advantages, p.mask, u)
    assert left_out(found, b.mask) == set(drawn)


def test_means_and_counts_are_of_all_ranks(monkeypatch) -> None:
    b = batch(6, 7, seed=4)
    halves = [torch.arange(2), torch.arange(2, 6)]
    u = draws(b)

    def both(rows: torch.Tensor) -> torch.Tensor:
        part = b.select(rows)
        penalised = KLCov(0.2)(part.old_logprobs, part.advantages, part.mask)
        clip = ClipCov(0.2, 0.0, 9.0)
        return torch.stack(
            [penalised, clip(part.old_logprobs, part.advantages, part.mask, u[rows])], 1
        )

    work = [lambda rows=rows: both(rows) for rows in halves]
    modules = (rlmods.ops, rlmods.tokens.covariance)
    found = torch.cat(on_ranks(monkeypatch, modules, *work))
    monkeypatch.undo()
    assert torch.equal(found, both(torch.arange(6)))
    assert not torch.equal(found, torch.cat([both(rows) for rows in halves]))


def test_the_penalty_pulls_the_ratio_to_1() -> None:
    log_ratio = torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    objective = KLCov(coefficient=2.0).others(torch.ones(1, 3, dtype=torch.float64), log_ratio)
    assert objective.tolist() == [[0.0, 0.0, 1.0]]
    objective.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[-2.0, 2.0, 0.0]]


def test_equal_advantages_have_no_penalty() -> None:
    b = batch(6, 7, seed=4)
    equal = torch.full_like(b.advantages, 0.7)
    assert torch.equal(KLCov(0.5)(b.old_logprobs, equal, b.mask), b.mask)
