"""The output layer: its hooks, and its use outside of the forward of a sharded network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rlmods.distributed import sharding
from rlmods.ops import float32_linear
from rlmods.policy import Policy, Tiny
from rlmods.policy.output_layer import float32_output
from tests.support import ranks


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_hooks_are_called_and_logits_are_not_rounded(precision: str) -> None:
    """A hook in front changes the hidden states, one behind the logits, with a linear layer of its
    own that computes as usual."""
    torch.manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    layer, probe = (
        nn.Linear(16, 50).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        for _ in range(2)
    )
    hidden = torch.randn(2, 5, 16).to(dtype)
    kinds: list[torch.dtype] = []

    def behind(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        probed = probe(args[0])
        kinds.append(probed.dtype)
        return output + probed

    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"),
    ):
        plain, doubled = (float32_linear(x, layer.weight, layer.bias) for x in (hidden, 2 * hidden))
        assert torch.equal(float32_output(layer, hidden), plain)
        hooks = (
            layer.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
            layer.register_forward_hook(behind),
        )
        output = float32_output(layer, hidden)
        for hook in hooks:
            hook.remove()
        assert torch.equal(float32_output(layer, hidden), plain)
        assert torch.equal(output, doubled + probe(2 * hidden))
    assert plain.dtype == output.dtype == torch.float32
    assert kinds == [dtype]


@pytest.mark.parametrize("precision", ["autocast", "bfloat16"])
def test_hooks_of_the_output_layer_see_the_logits_of_a_policy(precision: str) -> None:
    lm = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    lm = Policy(lm.model.bfloat16(), lm.tokenizer) if precision == "bfloat16" else lm
    seen: list[torch.Tensor] = []
    lm.model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output))
    tokens = torch.randint(5, 90, (3, 10), generator=torch.Generator().manual_seed(0))
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"),
    ):
        output = lm(tokens, torch.ones_like(tokens, dtype=torch.bool))
        logits = lm.next_logits(tokens)
    assert [x.dtype for x in seen] == [torch.float32] * 2
    logprobs = seen[0].log_softmax(-1).gather(-1, tokens[:, 1:].reshape(-1, 1)).view(3, 9)
    torch.testing.assert_close(output.logprobs[:, 1:], logprobs)
    assert torch.equal(seen[1], logits)


class Rounded(nn.Linear):
    """An output layer that is not a plain linear layer: its logits are rounded to 16 bits."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden).bfloat16()


def test_probabilities_of_rounded_logits_add_up_to_one() -> None:
    policy = Tiny(pretrained=False)()
    old = policy.model.lm_head
    policy.model.lm_head = Rounded(old.in_features, old.out_features, bias=False)
    torch.nn.init.normal_(policy.model.lm_head.weight, generator=torch.Generator().manual_seed(0))
    hidden = (
        torch.randn(8, old.in_features, generator=torch.Generator().manual_seed(1))
        / old.in_features**0.5
    )
    vocabulary = torch.arange(old.out_features)
    for row in hidden:
        logprobs, _ = policy._score_chunk(
            row.expand(len(vocabulary), -1), vocabulary, 1.0, False, None
        )
        assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def _on_rank(rank: int) -> None:
    torch.manual_seed(0)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    policy.model.get_output_embeddings().weight.data *= 20  # logits that 16 bits round visibly
    sharding.shard(policy, init_device_mesh("cpu", (2,)), dtype=torch.bfloat16)
    tokens = torch.randint(5, 90, (3, 10))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :4] = False
    with torch.no_grad():
        output = policy(tokens, mask, states=True)
        layer = policy.output_layer()
        assert isinstance(policy.model.get_output_embeddings().weight, DTensor)
        logits = layer(output.states)
    assert output.states.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert (logits.bfloat16() - logits).abs().max() > 1e-2
    logprobs = logits.log_softmax(-1).gather(-1, tokens[mask][:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs, output.logprobs[mask], rtol=0, atol=1e-5)
    if rank == 0:  # by one rank alone
        torch.testing.assert_close(layer(output.states[:2]), logits[:2])


@pytest.mark.slow
def test_gathered_weights_give_the_logits_of_a_forward_in_16_bits() -> None:
    """Float32 shards are cast as in the forward, and logits are not rounded."""
    ranks.spawn(_on_rank)
