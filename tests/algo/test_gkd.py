"""GKD: the divergence against a slow float64 reference, the mixture of responses, invariances, and
that it learns."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.algo import GKD, Batch
from rlmods.algo.gkd import DistillBatch, divergence, jensen_shannon
from rlmods.policy import base
from rlmods.rollout import Local as LocalRollout
from rlmods.teacher import Local, SelfTeacher
from rlmods.types import Totals
from tests.support.batches import gradient
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    fit,
    flat_gradient,
    learner,
    policy,
    sharp,
)

TEACHER = Local(policy=partial(policy, seed=3))
SEES = {"demonstration": "answer", "template": "{demonstration} {prompt}"}


def slow(student: list[float], teacher: list[float], beta: float) -> float:
    """Generalised JSD of two distributions given as probabilities, term by term."""

    def kl(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)

    if beta == 0:
        return kl(teacher, student)
    if beta == 1:
        return kl(student, teacher)
    mixture = [beta * t + (1 - beta) * s for s, t in zip(student, teacher, strict=True)]
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


class TestDivergence:
    def test_limits(self) -> None:
        """JSD(beta) / beta approaches the forward KL, JSD(beta) / (1 - beta) the reverse KL."""
        g = torch.Generator().manual_seed(0)
        p, q = (
            torch.randn(4, 6, generator=g, dtype=torch.float64).log_softmax(-1) for _ in range(2)
        )
        torch.testing.assert_close(
            jensen_shannon(p, q, 1e-6) / 1e-6, jensen_shannon(p, q, 0.0), rtol=1e-4, atol=0
        )
        torch.testing.assert_close(
            jensen_shannon(p, q, 1 - 1e-6) / 1e-6, jensen_shannon(p, q, 1.0), rtol=1e-4, atol=0
        )
        assert not torch.allclose(jensen_shannon(p, q, 0.0), jensen_shannon(p, q, 1.0), rtol=1e-2)

    def test_symmetric_at_one_half_and_bounded(self) -> None:
        g = torch.Generator().manual_seed(0)
        p, q = (
            (torch.randn(4, 6, generator=g, dtype=torch.float64) * 9).log_softmax(-1)
            for _ in range(2)
        )
        torch.testing.assert_close(jensen_shannon(p, q, 0.5), jensen_shannon(q, p, 0.5))
        assert (jensen_shannon(p, q, 0.5) <= math.log(2)).all()
        assert jensen_shannon(p, p, 0.3).abs().max() < 1e-12


def slow_top_k(student: list[float], teacher: list[float], beta: float, k: int) -> float:
    """`slow` of the k likeliest tokens of the student, and one event for all others."""
    kept = sorted(range(len(student)), key=lambda v: -student[v])[:k]
    others = [v for v in range(len(student)) if v not in kept]

    def merged(p: list[float]) -> list[float]:
        return [*(p[v] for v in kept), sum(p[v] for v in others)]

    return slow(merged(student), merged(teacher), beta)


class TestTopK:
    @pytest.mark.parametrize("k", [1, 2, 4, None])
    @pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_value_and_gradient(self, beta: float, k: int | None) -> None:
        g = torch.Generator().manual_seed(0)
        logits, other = (torch.randn(3, 6, generator=g, dtype=torch.float64) * 2 for _ in range(2))
        logits.requires_grad_()
        value = divergence(logits.log_softmax(-1), other.log_softmax(-1), beta, k)
        grad = gradient(value.sum(), logits)
        h = 1e-6
        for i in range(3):
            teacher = other[i].softmax(-1).tolist()

            def at(change: Tensor, row: int = i, teacher: list[float] = teacher) -> float:
                student = (logits[row].detach() + change).softmax(-1).tolist()
                return slow_top_k(student, teacher, beta, k or 6)

            assert value[i].item() == pytest.approx(at(torch.zeros(6)), rel=1e-10)
            for v in range(6):
                step = torch.zeros(6, dtype=torch.float64)
                step[v] = h
                slope = (at(step) - at(-step)) / (2 * h)
                assert grad[i, v].item() == pytest.approx(slope, abs=1e-8)

    @pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
    def test_grows_with_k_to_the_divergence_over_all_tokens(self, beta: float) -> None:
        g = torch.Generator().manual_seed(0)
        p, q = ((torch.randn(20, 9, generator=g) * 3).log_softmax(-1) for _ in range(2))
        by_k = torch.stack([divergence(p, q, beta, k) for k in range(1, 9)])
        whole = divergence(p, q, beta)
        assert (by_k.diff(dim=0) >= -1e-6).all()
        assert (by_k.diff(dim=0) > 1e-4).any()
        torch.testing.assert_close(by_k[-1], whole)
        for k in (9, 100):
            assert torch.equal(divergence(p, q, beta, k), whole)

    def test_a_tail_without_mass_is_finite(self) -> None:
        logits = torch.tensor([[90.0, 0.0, -90.0, -200.0]], requires_grad=True)
        teacher = torch.tensor([[0.0, 90.0, -300.0, -300.0]]).log_softmax(-1)
        for beta in (0.0, 0.5, 1.0):
            value = divergence(logits.log_softmax(-1), teacher, beta, 2)
            assert gradient(value.sum(), logits).isfinite().all()
            assert value.isfinite().all()


def gkd(teacher: Any = TEACHER, **change: Any) -> Any:
    return attached(
        learner(GKD, **{"teacher": teacher, "batch": Batch(prompts=6, samples=1)} | change)
    )


def flat(made: Any, rows: DistillBatch) -> Tensor:
    """Flattened gradient of the loss of one optimizer step."""
    made.zero_grad()
    totals = Totals(*rows.loss_counts.clamp(min=1))
    for micro, _ in made.microbatches(rows):
        made.loss(micro, totals).backward()
    return flat_gradient(made.policy)


def distributions(model: Any, ids: list[int], start: int, temperature: float) -> Tensor:
    """Log-probabilities [m, V] of the tokens from `start` on, one row without padding."""
    logits = model.model(torch.tensor([ids])).logits[0].float() / temperature
    return logits.log_softmax(-1)[start - 1 : -1]


class TestLoss:
    @pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("sees", [{}, SEES], ids=["same prompt", "demonstration"])
    def test_is_the_mean_divergence_of_all_response_tokens(
        self, sees: dict[str, str], beta: float
    ) -> None:
        part = Local(policy=partial(policy, seed=3), **sees)
        made = gkd(part, beta=beta, rollout=LocalRollout(max_tokens=8, temperature=0.7))
        prompts = SPLITS.train[:6]
        responses, scores = made.responses(prompts)
        rows = made.collate(responses, scores, torch.arange(6))
        found = flat(made, rows)
        made.zero_grad()
        teacher, values = policy(3), []
        for r in responses:
            own, seen = made.policy.encode(r.prompt), made.policy.encode(part.prompt(r.prompt))
            student = distributions(made.policy, [*own, *r.tokens], len(own), 0.7)
            values.append(
                jensen_shannon(
                    student,
                    distributions(teacher, [*seen, *r.tokens], len(seen), 0.7).detach(),
                    beta,
                )
            )
        torch.cat(values).mean().backward()
        expected = flat_gradient(made.policy)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
        assert expected.norm() > 1e-3
        assert made.meter.compute()["train/loss"] == pytest.approx(
            torch.cat(values).mean().item(), rel=1e-4
        )

    def test_does_not_depend_on_microbatches_order_padding_or_chunks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = gkd(Local(policy=partial(policy, seed=3), **SEES))
        rows = made.rows(SPLITS.train[:6])
        whole = flat(made, rows)
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        close(flat(made, rows.select(order)), whole)
        for budget in (1, 40):
            made.microbatches.token_budget = budget
            close(flat(made, rows), whole)
        monkeypatch.setattr(base, "LOGITS_PER_CHUNK", 2 * 3 * 102)
        close(flat(made, rows), whole)

    def test_empty_masks_give_zero_and_finite(self) -> None:
        made = gkd()
        found = flat(made, made.rows(SPLITS.train[:3]).without_loss())
        assert found.abs().sum() == 0
        assert found.isfinite().all()

    def test_the_teacher_has_no_gradient(self) -> None:
        made = gkd(SelfTeacher(weights="current", **SEES), on_policy_fraction=1.0, beta=1.0)
        rows = made.rows(SPLITS.train[:4])
        found = flat(made, rows)
        copied = gkd(SelfTeacher(weights="start", **SEES), on_policy_fraction=1.0, beta=1.0)
        close(found, flat(copied, rows))


class TestResponses:
    @pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
    def test_mixture(self, fraction: float) -> None:
        made = gkd(on_policy_fraction=fraction)
        prompts = SPLITS.train[:24]
        responses, _ = made.responses(prompts)
        assert [r.prompt.id for r in responses] == [p.id for p in prompts]
        sampled = [made.is_sampled(p) for p in prompts]
        assert sum(sampled) == {0.0: 0, 1.0: 24}.get(fraction, sum(sampled))
        assert fraction != 0.5 or 4 < sum(sampled) < 20
        for r, own in zip(responses, sampled, strict=True):
            target = made.policy.encode_response(r.prompt.meta["response"])
            assert own == ("sample" in r.meta)
            assert own or list(r.tokens) == target
        assert made.meter.compute()["train/on_policy_fraction"] == sum(sampled) / 24
        num_tokens = sum(len(r.tokens) for r in responses if "sample" in r.meta)
        assert made.meter.compute()["perf/sampled_tokens"] == num_tokens
        assert len(made.samples) == sum(sampled)

    def test_the_choice_changes_with_the_iteration_but_not_with_the_other_prompts(self) -> None:
        made = gkd()
        before = [made.is_sampled(p) for p in SPLITS.train]
        assert [made.is_sampled(p) for p in SPLITS.train[::-1]] == before[::-1]
        made.iteration = 1
        assert [made.is_sampled(p) for p in SPLITS.train] != before


def test_it_learns() -> None:
    rows = fit(learner(GKD, teacher=Local(policy=sharp), batch=Batch(prompts=8, samples=1)), 20)
    assert rows[-1]["train/loss"] < 0.4 * rows[0]["train/loss"]
