"""The divergence over the whole vocabulary against a slow float64 reference, and against the
sampled estimates of it."""

import math

import pytest
import torch
from torch import Tensor

from rlmods.kl import Full, Penalty
from rlmods.policy import base
from rlmods.types import Totals
from tests.support.batches import gradient
from tests.support.tiny_setup import (
    attached,
    close,
    collected,
    flat_gradient,
    gradients,
    learner,
    perturb,
    policy,
)

LOGITS = torch.tensor([[0.3, -1.0, 0.8, 0.1], [2.0, 0.0, -3.0, 0.5]], dtype=torch.float64)
REF = torch.tensor([[0.9, 0.2, -0.5, 0.0], [0.0, 0.1, 0.2, 0.3]], dtype=torch.float64).log_softmax(
    -1
)


def slow(logits: list[float], ref: list[float]) -> tuple[float, list[float]]:
    """Return KL(pi || ref) and its gradient p_v (log p_v - log ref_v - KL), term by term."""
    z = sum(math.exp(x) for x in logits)
    p = [math.exp(x) / z for x in logits]
    kl = sum(p[v] * (math.log(p[v]) - ref[v]) for v in range(len(p)))
    return kl, [p[v] * (math.log(p[v]) - ref[v] - kl) for v in range(len(p))]


def test_value_and_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    kl = Full(1.0)(logits.log_softmax(-1), REF)
    grad = gradient(kl.sum(), logits)
    for i in range(len(LOGITS)):
        value, expected = slow(LOGITS[i].tolist(), REF[i].tolist())
        assert kl[i].item() == pytest.approx(value, rel=1e-12)
        assert grad[i].tolist() == pytest.approx(expected, rel=1e-10)
        assert value > 0.01


def test_the_mean_of_sampled_k1_is_the_full_divergence() -> None:
    """Exactly, by enumeration; and by sampling within four standard errors of the mean."""
    logprobs = LOGITS.log_softmax(-1)
    exact = Full(1.0)(logprobs, REF)
    k1 = Penalty("k1", 1.0, "loss")
    enumerated = sum(
        (
            logprobs[:, v].exp() * k1(logprobs[:, v : v + 1], REF[:, v : v + 1])[:, 0]
            for v in range(4)
        ),
        torch.zeros(2),
    )
    torch.testing.assert_close(enumerated.double(), exact)
    drawn = torch.multinomial(
        logprobs.exp(), 20_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    samples = k1(logprobs.gather(1, drawn), REF.gather(1, drawn))
    error = samples.std(1) / math.sqrt(20_000)
    assert ((samples.mean(1) - exact).abs() < 4 * error).all()


def test_tokens_without_probability_contribute_nothing() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    ref = torch.tensor([[0.5, 0.0, -torch.inf]]).log_softmax(-1)
    kl = Full(1.0)(logits.log_softmax(-1), ref)
    value, expected = slow([0.0, 1.0], ref[0, :2].tolist())
    assert kl.item() == pytest.approx(value, rel=1e-5)
    assert gradient(kl.sum(), logits)[0].tolist() == pytest.approx([*expected, 0.0], abs=1e-6)


def moved():
    made = attached(learner(kl=Full(0.7)))
    perturb(made.policy, 0.05)
    return made


def full_logprobs(model, rows) -> Tensor:
    """[N, T, V]: column t is the distribution of token t."""
    logits = model.model(input_ids=rows.tokens, use_cache=False).logits.float()
    return torch.nn.functional.pad(logits.log_softmax(-1)[:, :-1], (0, 0, 1, 0))


class TestInTheLoss:
    def test_gradient(self) -> None:
        """The gradient with the penalty minus that without it is that of the mean divergence over
        the response tokens."""
        made = moved()
        batch = collected(made)
        with_kl = gradients(made, batch)
        reference, made.reference = made.reference, None
        without = gradients(made, batch)
        made.zero_grad()
        p, q = full_logprobs(made.policy, batch), full_logprobs(reference.policy, batch).detach()
        mean = (p.exp() * (p - q)).sum(-1)[batch.mask].mean()
        (0.7 * mean).backward()
        expected = flat_gradient(made.policy)
        torch.testing.assert_close(with_kl - without, expected, rtol=1e-3, atol=1e-6)
        assert expected.norm() > 1e-3

    def test_metric(self) -> None:
        made = moved()
        batch = collected(made)
        assert batch.ref_logprobs is None
        made.meter.reset()
        for micro, _ in made.microbatches(batch):
            made.loss(micro, Totals(1, 1))
        p, q = full_logprobs(made.policy, batch), full_logprobs(made.reference.policy, batch)
        expected = (p.exp() * (p - q)).sum(-1)[batch.mask].mean().item()
        assert made.meter.compute()["train/kl_ref"] == pytest.approx(expected, rel=1e-4)

    def test_it_is_0_before_the_first_step(self) -> None:
        made = attached(learner(kl=Full(1.0)))
        batch = collected(made)
        output = made.scorer.forward(
            batch, made.policy, other=made.scorer.other(batch, made.reference.policy, made.kl)
        )
        assert output.divergence.abs().max() < 1e-6

    def test_chunks_do_not_change_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = moved()
        batch = collected(made)
        whole = gradients(made, batch)
        monkeypatch.setattr(base, "LOGITS_PER_CHUNK", 2 * 5 * 102)
        sizes: list[int] = []
        original = made.policy._score_chunk
        made.policy._score_chunk = lambda hidden, *rest: (
            sizes.append(len(hidden)),
            original(hidden, *rest),
        )[1]
        close(gradients(made, batch), whole)
        assert max(sizes) == 5
        assert len(sizes) > 4

    def test_a_model_whose_vocabulary_is_padded(self) -> None:
        """Rows of the output layer beyond the shorter one are no tokens, and are left out of both
        distributions."""
        first, second = policy(0), policy(1)
        padded = policy(1)
        padded.model.resize_token_embeddings(110, mean_resizing=False)
        tokens = torch.arange(20).view(2, 10)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        found = []
        for other in (second, padded):
            states = other(tokens, mask, states=True).states.detach()
            found.append(
                first(
                    tokens, mask, other=base.DivergenceFrom(states, other.output_layer(), Full(1.0))
                ).divergence
            )
        torch.testing.assert_close(found[1], found[0])
        assert found[0].max() > 1e-4
