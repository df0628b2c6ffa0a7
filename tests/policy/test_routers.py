"""Reading and replaying the experts of a mixture-of-experts policy."""

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
from tests.support.mixtures import EIGHT, KINDS, LOCAL, SHAPE, mixture, routes
from tests.support.models import gradient, policy, rows

every_kind = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def used_experts(lm: Policy) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the inputs of the experts of each layer: indices and weights [tokens, k]."""
    used: list[tuple[Tensor, Tensor]] = []
    experts = [module for name, module in lm.model.named_modules() if name.endswith(".experts")]
    hooks = [
        module.register_forward_pre_hook(lambda _, args: used.append((args[1], args[2])))
        for module in experts
    ]
    yield used
    for hook in hooks:
        hook.remove()


class TestReplay:
    @every_kind
    def test_experts_receive_the_replayed_routes_at_every_position(self, kind: str) -> None:
        lm, (tokens, mask) = mixture(kind), rows()
        replayed_routes = routes(lm, tokens)
        with used_experts(lm) as used:
            output = lm(tokens, mask, routed_experts=replayed_routes)
        assert len(used) == len(lm.routers.modules)
        for layer, (experts, weights) in enumerate(used):
            assert torch.equal(experts, replayed_routes[:, :, layer].flatten(0, 1).long())
            assert (weights > 0).all()
        assert (output.logprobs - lm(tokens, mask).logprobs).abs().max() > 0.1

    @every_kind
    def test_replaying_the_own_choice_changes_nothing(self, kind: str) -> None:
        lm, (tokens, mask) = mixture(kind), rows()
        live = lm(tokens, mask)
        replayed = lm(tokens, mask, routed_experts=live.routed_experts)
        assert torch.equal(replayed.logprobs, live.logprobs)
        assert torch.equal(replayed.routed_experts, live.routed_experts)

    def test_at_minus_one_the_router_chooses(self) -> None:
        lm, (tokens, mask) = mixture(), rows()
        replayed_routes = routes(lm, tokens)
        replayed_routes[1:] = -1
        replayed_routes[0, 7:] = -1
        with used_experts(lm) as used:
            output = lm(tokens, mask, routed_experts=replayed_routes)
        torch.testing.assert_close(
            output.logprobs[1:], lm(tokens, mask).logprobs[1:], rtol=0, atol=1e-6
        )
        assert torch.equal(used[0][0].view(4, 13, 2)[0, :7], replayed_routes[0, :7, 0].long())
        assert torch.equal(used[0][0].view(4, 13, 2)[0, 7:], output.routed_experts[0, 7:, 0].long())

    def test_weights_come_from_live_logits_in_value_and_gradient(self) -> None:
        """Against the equation: softmax over all experts, gathered at the replayed ones,
        normalised."""
        lm, (tokens, mask) = mixture(), rows()
        replayed_routes = routes(lm, tokens)
        actual = gradient(lm, lm(tokens, mask, routed_experts=replayed_routes).logprobs)
        reference = mixture()

        def forward(router: Any, experts: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = linear(x.reshape(-1, 32), router.weight)
            weights = logits.softmax(-1).gather(-1, experts)
            return logits, weights / weights.sum(-1, keepdim=True), experts

        for layer, router in enumerate(reference.routers.modules):
            router.forward = partial(
                forward, router, replayed_routes[:, :, layer].flatten(0, 1).long()
            )
        expected = gradient(reference, reference(tokens, mask).logprobs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert all(router.weight.grad.norm() > 1e-3 for router in lm.routers.modules)

    def test_the_live_choice_is_also_returned(self) -> None:
        lm, (tokens, mask) = mixture(), rows()
        replayed_routes = routes(lm, tokens)
        # of the first layer, whose router input does not depend on the routes
        first = lm(tokens, mask).routed_experts[:, :, 0]
        assert torch.equal(
            lm(tokens, mask, routed_experts=replayed_routes).routed_experts[:, :, 0], first
        )

    def test_a_frozen_copy_has_its_own_routers(self) -> None:
        lm, (tokens, mask) = mixture(gradient_checkpointing=True), rows()
        reference = lm.frozen_copy()
        before = reference(tokens, mask).logprobs
        replayed_routes = routes(lm, tokens)
        with torch.no_grad():
            lm.routers.modules[0].weight.zero_()
        assert torch.equal(reference(tokens, mask).logprobs, before)
        with lm.routers.trace(replayed_routes):
            assert torch.equal(reference(tokens, mask).logprobs, before)
        assert not torch.equal(
            reference(tokens, mask, routed_experts=replayed_routes).logprobs, before
        )
        contexts = reference.model.model.layers[0]._gradient_checkpointing_func.keywords[
            "context_fn"
        ]
        assert contexts.__self__ is reference.routers


class TestCheckpointing:
    @pytest.mark.parametrize("between", [False, True])
    def test_recomputed_layers_use_the_routes_of_their_forward(self, between: bool) -> None:
        """Also if another forward, with other routes or none, comes before backward."""
        tokens, mask = rows()
        off, on = mixture(), mixture(gradient_checkpointing=True)
        on.train()
        replayed_routes = routes(off, tokens)

        def loss(lm: Policy) -> Tensor:
            output = lm(tokens, mask, routed_experts=replayed_routes, router_logits=True)
            return output.logprobs + sum(x.square().sum() for x in output.router_logits) * 1e-2

        expected, x = gradient(off, loss(off)), loss(on)
        if between:
            on(tokens, mask, routed_experts=routes(on, tokens, seed=1))
            on(tokens, mask)
        with used_experts(on) as used:
            actual = gradient(on, x)
        assert len(used) == 3
        for i, (experts, _) in enumerate(used):
            assert torch.equal(experts, replayed_routes[:, :, 2 - i].flatten(0, 1).long())
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    def test_recomputation_does_not_change_the_trace(self) -> None:
        lm, (tokens, _) = mixture(gradient_checkpointing=True).train(), rows()
        with lm.routers.trace(logits=True) as trace:
            hidden = lm.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        before = dict(trace.live)
        hidden.sum().backward()
        assert {layer: x is trace.live[layer] for layer, x in before.items()} == {
            0: True,
            1: True,
            2: True,
        }


class TestForward:
    def test_router_logits_are_returned_on_request(self) -> None:
        lm, (tokens, mask) = mixture(), rows()
        assert lm(tokens, mask).router_logits is None
        output = lm(tokens, mask, router_logits=True)
        expected = lm.model(input_ids=tokens, output_router_logits=True).router_logits
        for actual, layer in zip(output.router_logits, expected, strict=True):
            assert torch.equal(actual, layer)
        experts = torch.stack([x.topk(2).indices for x in expected], 1).view(4, 13, 3, 2)
        assert torch.equal(output.routed_experts, experts.to(torch.int16))

    def test_a_dense_model_has_none(self) -> None:
        lm, (tokens, mask) = policy(), rows()
        assert not lm.routers
        assert not lm.is_mixture
        assert lm.routers.unrecorded_experts(tokens) is None
        assert lm(tokens, mask).routed_experts is None

    def test_a_model_with_unsupported_routers_counts_as_dense(self) -> None:
        """Phi's router does not call top-k: it takes one maximum after the other."""
        model = PhimoeForCausalLM(PhimoeConfig(**SHAPE | LOCAL))
        with pytest.warns(UserWarning, match="routers of type PhimoeTopKRouter are not supported"):
            lm = Policy(model, character_tokenizer())
        assert not lm.routers
        assert lm(*rows()).routed_experts is None

    def test_export_is_a_plain_model(self, tmp_path: Path) -> None:
        lm, (tokens, mask) = mixture(), rows()
        lm.export(tmp_path)
        loaded = load(tmp_path)
        assert torch.equal(loaded(tokens, mask).logprobs, lm(tokens, mask).logprobs)
        assert loaded.routers
        assert EIGHT["num_experts"] == loaded.routers.num_experts
