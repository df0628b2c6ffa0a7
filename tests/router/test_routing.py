"""Router options: checks, freezing and update frequency."""

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from rlmods.errors import UserError
from rlmods.router import Routing
from rlmods.router.routing import balance_loss, count_experts
from tests.support.mixtures import mixture
from tests.support.models import policy


@pytest.mark.parametrize(
    "options",
    [
        {"replay": True},
        {"every": None},
        {"every": 2},
        {"aux_coefficient": 0.1},
    ],
)
def test_a_dense_policy_is_rejected(options):
    Routing()(policy())
    with pytest.raises(
        UserError, match=r"LlamaForCausalLM has no routers .*: type router=free"
    ) as error:
        Routing(**options)(policy())
    assert "\n" not in str(error.value)


def test_every_null_freezes_the_routers_only():
    frozen_policy = mixture()
    Routing(every=None)(frozen_policy)
    frozen = [name for name, p in frozen_policy.named_parameters() if not p.requires_grad]
    assert frozen == [f"model.model.layers.{i}.mlp.gate.weight" for i in range(3)]
    for other in (Routing(), Routing(every=3), Routing(replay=True)):
        other(trained_policy := mixture())
        assert all(p.requires_grad for p in trained_policy.parameters())


def test_routers_are_updated_every_n_iterations():
    assert [not Routing(every=3).is_frozen(i) for i in range(7)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert not any(Routing().is_frozen(i) for i in range(3))
    assert all(Routing(every=None).is_frozen(i) for i in range(3))


N, T, L, E, K = 5, 7, 3, 8, 2


def random_routing() -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return logits of each layer, the experts they choose, and a mask of the tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = [(2 * torch.randn(N * T, E, generator=generator)).requires_grad_() for _ in range(L)]
    routes = torch.stack([x.topk(K).indices for x in logits], 1).view(N, T, L, K).to(torch.int16)
    return logits, routes, torch.arange(T) < torch.tensor([7, 3, 1, 0, 5])[:, None]


def fractions(routes: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return count_experts(routes, mask, E).sum(0) / (mask.sum() * L)


def test_load_counts_choices() -> None:
    _, routes, mask = random_routing()
    routes[0, 0] = -1
    expected = torch.zeros(L, E, dtype=torch.float64)
    for n in range(N):
        for t in range(T):
            for layer in range(L):
                for expert in routes[n, t, layer].tolist() if mask[n, t] else ():
                    if expert >= 0:
                        expected[layer, expert] += 1
    assert torch.equal(count_experts(routes, mask, E), expected)
    assert expected.sum() == (mask.sum() - 1) * L * K


class TestBalanceLoss:
    def test_equals_transformers_in_value_and_gradient(self) -> None:
        logits, routes, mask = random_routing()
        expected = load_balancing_loss_func(tuple(logits), E, K, mask)
        actual = balance_loss(logits, mask.flatten(), fractions(routes, mask), mask.sum())
        torch.testing.assert_close(actual, expected)
        for a, b in zip(
            torch.autograd.grad(actual, logits), torch.autograd.grad(expected, logits), strict=True
        ):
            torch.testing.assert_close(a, b)
            assert b.norm() > 1e-3
            assert (a[~mask.flatten()] == 0).all()

    def test_microbatches_add_up(self) -> None:
        logits, routes, mask = random_routing()
        step = fractions(routes, mask), mask.sum()
        parts = [
            balance_loss([x.view(N, T, E)[i] for x in logits], mask[i], *step) for i in range(N)
        ]
        torch.testing.assert_close(sum(parts), balance_loss(logits, mask.flatten(), *step))

    def test_uniform_load_gives_k_and_collapse_gives_the_number_of_experts(self) -> None:
        mask = torch.ones(4 * E, dtype=torch.bool)
        uniform = torch.full((E,), K / E)
        logits = [torch.zeros(4 * E, E)]
        torch.testing.assert_close(
            balance_loss(logits, mask, uniform, 4 * E), torch.tensor(float(K))
        )
        skewed = torch.zeros(E)
        skewed[:K] = 1.0
        collapsed = [(50.0 * skewed).expand(4 * E, E)]
        torch.testing.assert_close(
            balance_loss(collapsed, mask, skewed, 4 * E), torch.tensor(float(E))
        )
