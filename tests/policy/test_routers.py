"""Which experts are used: read, told, and left alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PhimoeConfig, PhimoeForCausalLM

from rlmods.policy import Policy
from rlmods.policy.hf import load
from rlmods.policy.tiny import character_tokenizer

from .mixtures import EIGHT, KINDS, LOCAL, SHAPE, mixture, routes
from .test_base import gradient, policy, rows

every_kind = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def used(made: Policy) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What the experts of each layer are really given: indices and weights [tokens, k]."""
    given: list[tuple[Tensor, Tensor]] = []
    experts = [module for name, module in made.model.named_modules() if name.endswith(".experts")]
    hooks = [module.register_forward_pre_hook(lambda _, args: given.append((args[1], args[2]))) for module in experts]
    yield given
    for hook in hooks:
        hook.remove()


class TestTold:
    @every_kind
    def test_is_what_the_experts_are_given_at_every_position(self, kind: str) -> None:
        made, (tokens, mask) = mixture(kind), rows()
        told = routes(made, tokens)
        with used(made) as given:
            replayed = made(tokens, mask, routes=told)
        assert len(given) == len(made.routers.modules)
        for layer, (experts, weights) in enumerate(given):
            assert torch.equal(experts, told[:, :, layer].flatten(0, 1).long())
            assert (weights > 0).all()
        assert (replayed.logprobs - made(tokens, mask).logprobs).abs().max() > 0.1

    @every_kind
    def test_own_choice_told_again_changes_no_bit(self, kind: str) -> None:
        made, (tokens, mask) = mixture(kind), rows()
        own = made(tokens, mask)
        again = made(tokens, mask, routes=own.routes)
        assert torch.equal(again.logprobs, own.logprobs)
        assert torch.equal(again.routes, own.routes)

    def test_minus_one_is_a_choice_afresh(self) -> None:
        made, (tokens, mask) = mixture(), rows()
        told = routes(made, tokens)
        told[1:] = -1
        told[0, 7:] = -1
        with used(made) as given:
            found = made(tokens, mask, routes=told)
        torch.testing.assert_close(found.logprobs[1:], made(tokens, mask).logprobs[1:], rtol=0, atol=1e-6)
        assert torch.equal(given[0][0].view(4, 13, 2)[0, :7], told[0, :7, 0].long())
        assert torch.equal(given[0][0].view(4, 13, 2)[0, 7:], found.routes[0, 7:, 0].long())

    def test_weights_come_from_live_logits_in_value_and_gradient(self) -> None:
        """Against the equation written out: softmax over all experts, the told ones picked, normalised."""
        made, (tokens, mask) = mixture(), rows()
        told = routes(made, tokens)
        have = gradient(made, made(tokens, mask, routes=told).logprobs)
        by_hand = mixture()

        def forward(router: Any, experts: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = linear(x.reshape(-1, 32), router.weight)
            weights = logits.softmax(-1).gather(-1, experts)
            return logits, weights / weights.sum(-1, keepdim=True), experts

        for layer, router in enumerate(by_hand.routers.modules):
            router.forward = partial(forward, router, told[:, :, layer].flatten(0, 1).long())
        want = gradient(by_hand, by_hand(tokens, mask).logprobs)
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
        assert all(router.weight.grad.norm() > 1e-3 for router in made.routers.modules)

    def test_the_live_choice_is_read_all_the_same(self) -> None:
        made, (tokens, mask) = mixture(), rows()
        told = routes(made, tokens)
        first = made(tokens, mask).routes[:, :, 0]
        assert torch.equal(made(tokens, mask, routes=told).routes[:, :, 0], first), "the first router reads embeddings, whatever it is told"

    def test_nothing_is_told_outside(self) -> None:
        made, (tokens, mask) = mixture(), rows()
        before = made.model(input_ids=tokens).logits
        made(tokens, mask, routes=routes(made, tokens))
        assert torch.equal(made.model(input_ids=tokens).logits, before)

    def test_a_frozen_copy_has_routers_of_its_own(self) -> None:
        made, (tokens, mask) = mixture(gradient_checkpointing=True), rows()
        twin = made.frozen_copy()
        before = twin(tokens, mask).logprobs
        told = routes(made, tokens)
        with torch.no_grad():
            made.routers.modules[0].weight.zero_()
        assert torch.equal(twin(tokens, mask).logprobs, before)
        with made.routers.taped(told):
            assert torch.equal(twin(tokens, mask).logprobs, before)
        assert not torch.equal(twin(tokens, mask, routes=told).logprobs, before)
        contexts = twin.model.model.layers[0]._gradient_checkpointing_func.keywords["context_fn"]
        assert contexts.__self__ is twin.routers


class TestCheckpointing:
    @pytest.mark.parametrize("between", [False, True])
    def test_recomputed_layers_use_the_routes_of_their_own_forward(self, between: bool) -> None:
        """Also where another forward, with other routes or none, comes before backward."""
        tokens, mask = rows()
        off, on = mixture(), mixture(gradient_checkpointing=True)
        on.train()
        told = routes(off, tokens)

        def loss(made: Policy) -> Tensor:
            found = made(tokens, mask, routes=told, router_logits=True)
            return found.logprobs + sum(x.square().sum() for x in found.router_logits) * 1e-2

        want, x = gradient(off, loss(off)), loss(on)
        if between:
            on(tokens, mask, routes=routes(on, tokens, seed=1))
            on(tokens, mask)
        with used(on) as given:
            have = gradient(on, x)
        assert [torch.equal(experts, told[:, :, 2 - i].flatten(0, 1).long()) for i, (experts, _) in enumerate(given)] == [True] * 3
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)

    def test_a_layer_is_read_once(self) -> None:
        made, (tokens, _) = mixture(gradient_checkpointing=True).train(), rows()
        with made.routers.taped(logits=True) as tape:
            hidden = made.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        before = dict(tape.live)
        hidden.sum().backward()
        assert {layer: x is tape.live[layer] for layer, x in before.items()} == {0: True, 1: True, 2: True}


class TestForward:
    @pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
    def test_a_row_does_not_depend_on_its_neighbours(self, implementation: str) -> None:
        made, (tokens, mask) = mixture(), rows()
        made.model.set_experts_implementation(implementation)
        whole = made(tokens, mask)
        for i in range(4):
            alone = made(tokens[i : i + 1], mask[i : i + 1])
            torch.testing.assert_close(alone.logprobs, whole.logprobs[i : i + 1], rtol=0, atol=1e-5)
            assert torch.equal(alone.routes, whole.routes[i : i + 1])

    @every_kind
    def test_is_the_same_in_train_and_eval_mode(self, kind: str) -> None:
        """Jitter of what a router reads is dropout by another name."""
        made, (tokens, mask) = mixture(kind), rows()
        want = made(tokens, mask).logprobs
        assert torch.equal(made.train()(tokens, mask).logprobs, want)

    def test_router_logits_are_there_if_asked(self) -> None:
        made, (tokens, mask) = mixture(), rows()
        assert made(tokens, mask).router_logits is None
        found = made(tokens, mask, router_logits=True)
        want = made.model(input_ids=tokens, output_router_logits=True).router_logits
        for have, expected in zip(found.router_logits, want, strict=True):
            assert torch.equal(have, expected)
        chosen = torch.stack([x.topk(2).indices for x in want], 1).view(4, 13, 3, 2)
        assert torch.equal(found.routes, chosen.to(torch.int16))

    def test_a_dense_model_has_none(self) -> None:
        made, (tokens, mask) = policy(), rows()
        assert not made.routers
        assert made.routers.blank(tokens) is None
        assert made(tokens, mask).routes is None

    def test_a_model_whose_routers_cannot_be_told_counts_as_dense(self) -> None:
        """Phi's takes no top-k: it takes maxima one after the other."""
        model = PhimoeForCausalLM(PhimoeConfig(**SHAPE | LOCAL))
        with pytest.warns(UserWarning, match="nobody can read or tell what PhimoeTopKRouter chooses"):
            made = Policy(model, character_tokenizer())
        assert not made.routers
        assert made(*rows()).routes is None

    def test_export_is_a_plain_model(self, tmp_path: Path) -> None:
        made, (tokens, mask) = mixture(), rows()
        made.export(tmp_path)
        again = load(tmp_path)
        assert torch.equal(again(tokens, mask).logprobs, made(tokens, mask).logprobs)
        assert again.routers
        assert EIGHT["num_experts"] == again.routers.num_experts
