"""Loads and the load-balancing loss, against transformers' own."""

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from rlmods.router.balance import balance_loss, load

N, T, L, E, K = 5, 7, 3, 8, 2


def drawn() -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Logits of each layer, the choices they make, and where there are tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = [(2 * torch.randn(N * T, E, generator=generator)).requires_grad_() for _ in range(L)]
    routes = torch.stack([x.topk(K).indices for x in logits], 1).view(N, T, L, K).to(torch.int16)
    return logits, routes, torch.arange(T) < torch.tensor([7, 3, 1, 0, 5])[:, None]


def share(routes: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return load(routes, where, E).sum(0) / (where.sum() * L)


class TestLoad:
    def test_counts_choices(self) -> None:
        _, routes, where = drawn()
        routes[0, 0] = -1
        slow = torch.zeros(L, E, dtype=torch.float64)
        for n in range(N):
            for t in range(T):
                for layer in range(L):
                    for expert in routes[n, t, layer].tolist() if where[n, t] else ():
                        if expert >= 0:
                            slow[layer, expert] += 1
        assert torch.equal(load(routes, where, E), slow)
        assert slow.sum() == (where.sum() - 1) * L * K


class TestBalanceLoss:
    def test_equals_that_of_transformers_in_value_and_gradient(self) -> None:
        logits, routes, where = drawn()
        want = load_balancing_loss_func(tuple(logits), E, K, where)
        have = balance_loss(logits, where.flatten(), share(routes, where), where.sum())
        torch.testing.assert_close(have, want)
        for a, b in zip(torch.autograd.grad(have, logits), torch.autograd.grad(want, logits), strict=True):
            torch.testing.assert_close(a, b)
            assert b.norm() > 1e-3
            assert (a[~where.flatten()] == 0).all()

    def test_parts_add_up(self) -> None:
        logits, routes, where = drawn()
        given = share(routes, where), where.sum()
        parts = [balance_loss([x.view(N, T, E)[i] for x in logits], where[i], *given) for i in range(N)]
        torch.testing.assert_close(sum(parts), balance_loss(logits, where.flatten(), *given))

    def test_even_is_k_and_the_least(self) -> None:
        where = torch.ones(4 * E, dtype=torch.bool)
        even = torch.full((E,), K / E)
        flat = [torch.zeros(4 * E, E)]
        torch.testing.assert_close(balance_loss(flat, where, even, 4 * E), torch.tensor(float(K)))
        skewed = torch.zeros(E)
        skewed[:K] = 1.0
        collapsed = [(50.0 * skewed).expand(4 * E, E)]
        torch.testing.assert_close(balance_loss(collapsed, where, skewed, 4 * E), torch.tensor(float(E)))
