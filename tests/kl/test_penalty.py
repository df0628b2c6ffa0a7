import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlmods.kl import Penalty
from tests.kl import bandit
from tests.support.batches import Batch, batches, few, gradient

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.1, -0.4], dtype=torch.float64)
REF = torch.tensor([0.9, 0.2, -0.5, 0.0, 0.4], dtype=torch.float64).log_softmax(0)[None]


def expected(estimator: str, gradient_of: str = "value") -> tuple[float, Tensor]:
    """Return the expectation under pi of the estimator's value and of its gradient with respect to
    the logits, by enumeration."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[None]
    x = Penalty(estimator, 1.0, "loss", gradient_of)(logprobs, REF)
    weighted = (logprobs.exp().detach() * x).sum()
    return weighted.item(), gradient(weighted, logits)


def divergence(forward: bool = False) -> tuple[float, Tensor]:
    """Return KL(pi || ref), or KL(ref || pi), and its gradient."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[None]
    kl = (
        (REF.exp() * (REF - logprobs)).sum()
        if forward
        else (logprobs.exp() * (logprobs - REF)).sum()
    )
    return kl.item(), gradient(kl, logits)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("gradient_of", ["value", "exact"])
def test_k1_and_k3_are_unbiased_in_value(estimator: str, gradient_of: str) -> None:
    assert expected(estimator, gradient_of)[0] == pytest.approx(divergence()[0])


def test_the_expected_gradient_of_each_estimator_as_a_loss() -> None:
    reverse, forward = divergence()[1], divergence(forward=True)[1]
    assert reverse.norm() > 0.1
    assert (reverse - forward).norm() > 0.01
    torch.testing.assert_close(expected("k1")[1], torch.zeros_like(reverse))
    torch.testing.assert_close(expected("k2")[1], reverse)
    torch.testing.assert_close(expected("k3")[1], forward)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_exact_keeps_the_value_and_has_the_gradient_of_the_reverse_kl(estimator: str) -> None:
    value, grad = expected(estimator, "exact")
    assert value == pytest.approx(expected(estimator)[0])
    torch.testing.assert_close(grad, divergence()[1])


def test_k1_in_the_reward_has_the_gradient_of_the_reverse_kl() -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[None]
    reward = -Penalty("k1", 1.0, "reward")(logprobs, REF).detach()
    torch.testing.assert_close(
        gradient((logprobs.exp().detach() * reward * logprobs).sum(), logits), -divergence()[1]
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@few
@given(batches)
def test_formulas_and_signs(estimator: str, b: Batch) -> None:
    logprobs, ref = b.values, b.rewards
    x = Penalty(estimator, 0.3, "loss")(logprobs, ref)
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            d = logprobs[i, t] - ref[i, t]
            torch.testing.assert_close(
                x[i, t], {"k1": d, "k2": d * d / 2, "k3": 1 / d.exp() - 1 + d}[estimator]
            )
    assert estimator == "k1" or (x >= 0).all()
    assert (Penalty(estimator, 0.3, "loss")(ref, ref) == 0).all()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("gradient_of", ["value", "exact"])
def test_cleared_slots_do_not_change_the_result(estimator: str, gradient_of: str) -> None:
    """The protocol has no mask: once the caller has cleared both arguments, values in masked slots
    change no bit."""
    mask = torch.tensor([[True, False, True, False]])
    results = []
    for garbage in (0.5, torch.nan, torch.inf, 1e6):
        logprobs = torch.tensor(
            [[-1.0, garbage, -2.0, garbage]], dtype=torch.float64, requires_grad=True
        )
        ref = torch.tensor([[-1.5, garbage, -1.0, -garbage]], dtype=torch.float64)
        x = Penalty(estimator, 1.0, "loss", gradient_of)(
            torch.where(mask, logprobs, 0), torch.where(mask, ref, 0)
        )
        value = x.sum()
        results.append((value.detach(), gradient(value, logprobs)))
    for value, grad in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(grad, results[0][1])


@pytest.mark.parametrize(
    ("estimator", "gradient_of"), [("k2", "value"), ("k3", "value"), ("k3", "exact")]
)
def test_minimising_the_penalty_reaches_the_reference(estimator: str, gradient_of: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(300):
        optimizer.zero_grad()
        logprobs = logits.log_softmax(0)[None]
        (
            logprobs.exp().detach() * Penalty(estimator, 1.0, "loss", gradient_of)(logprobs, REF)
        ).sum().backward()
        optimizer.step()
    torch.testing.assert_close(logits.detach().softmax(0), REF[0].exp(), atol=1e-3, rtol=0)


EXACT = {
    "k1 in the reward": ("k1", "reward", "value"),
    "k2 in the loss": ("k2", "loss", "value"),
    "k3 in the loss, exact": ("k3", "loss", "exact"),
}
"""Objectives with the exact gradient of KL(pi || ref)."""


@pytest.mark.parametrize("way", EXACT)
@pytest.mark.parametrize("coefficient", [1.0, 3.0])
def test_bandit_converges_to_the_closed_form(way: str, coefficient: float) -> None:
    """Maximising E[R] - beta KL(pi || ref) gives pi = ref exp(R / beta) / Z."""
    estimator, where, gradient_of = EXACT[way]
    logits = bandit.improve(
        bandit.start(), Penalty(estimator, coefficient, where, gradient_of), steps=500
    )
    torch.testing.assert_close(
        logits.softmax(0), (bandit.REF + bandit.ARMS / coefficient).softmax(0), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("way", [*EXACT, "k3 in the loss"])
def test_a_larger_coefficient_gives_a_smaller_kl_on_a_bandit(way: str) -> None:
    estimator, where, gradient_of = EXACT.get(way, ("k3", "loss", "value"))
    parts = [Penalty(estimator, c, where, gradient_of) for c in (0.1, 0.3, 1.0, 3.0)]
    distances = [bandit.distance(bandit.improve(bandit.start(), part, steps=200)) for part in parts]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 10 * distances[-1] > 0


def test_k1_in_the_loss_does_not_limit_the_kl() -> None:
    penalised, unpenalised = (
        bandit.distance(bandit.improve(bandit.start(), Penalty("k1", c, "loss"), steps=200))
        for c in (3.0, 0.0)
    )
    assert penalised == pytest.approx(unpenalised)
