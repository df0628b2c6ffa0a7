"""The trunk that samples: on processors bit for bit the network, with an adapter the merged one."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from rlmods.policy import Policy, fused
from rlmods.policy.fused import FusedTrunk, fused_trunk, sampling
from rlmods.policy.linear import _has_bfloat16
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import Local
from rlmods.types import Prompt
from tests.adapter.policies import lora, perturbed
from tests.support.models import SHAPE, gpt2, llama, needs_onednn, seeded

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "autocast": None}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": None, "num_key_value_heads": 4}),
}
PROMPTS = ("3+4=", "12-30+5=", "3+41=", "7")
"""Of different lengths, so that rows are padded."""


def policy(name: str, precision: str) -> Policy:
    kind, change = ARCHITECTURES[name]
    config = AutoConfig.for_model(kind, **(SHAPE | change))
    model = seeded(AutoModelForCausalLM.from_config, config)
    model.to(PRECISIONS[precision] or torch.float32)
    return Policy(model, character_tokenizer())


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast")


def samples(network: Policy, *, fused: bool) -> list[Any]:
    rollout = Local(max_tokens=20, fused=fused, temperature=1.3)
    rollout.sync(network, iteration=0)
    prompts = [Prompt(id=text, text=text) for text in PROMPTS]
    responses = rollout.generate(prompts, samples=6, iteration=0)
    return [(response.tokens, list(response.behavior_logprobs)) for response in responses]


@needs_onednn
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_samples_are_bit_for_bit_those_of_the_network(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = policy(name, precision)
    made: list[Any] = []
    monkeypatch.setattr(
        fused, "FusedTrunk", lambda *args: made.append(FusedTrunk(*args)) or made[-1]
    )
    with autocast(precision):
        expected = samples(network, fused=False)
        assert not made
        assert samples(network, fused=True) == expected
    is_bfloat16 = precision != "float32"
    assert len(made) == (0 if is_bfloat16 and not _has_bfloat16() else 1)
    assert network.sampling_trunk is None


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_adapters_are_merged(targets: Any) -> None:
    network = perturbed(lora(targets=targets))
    before = {name: x.clone() for name, x in network.state_dict().items()}
    tokens = torch.randint(5, 90, (3, 10))
    trunk = FusedTrunk(network.model, network.adapter, torch.float32)
    positions = torch.arange(10)[None].expand(3, -1)
    with torch.no_grad():
        hidden = network.model.base_model(input_ids=tokens).last_hidden_state
        merged = trunk(tokens, None, positions, cache=DynamicCache()).last_hidden_state
        trunk = FusedTrunk(network.model, None, torch.float32)
        base = trunk(tokens, None, positions, cache=DynamicCache()).last_hidden_state
    torch.testing.assert_close(merged, hidden, rtol=0, atol=1e-4)
    assert (base - hidden).abs().max() > 1e-2
    for name, x in network.state_dict().items():
        assert torch.equal(x, before[name])


def test_others_are_sampled_from_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(network: Policy) -> bool:
        return fused_trunk(network) is None

    assert refused(Policy(gpt2(), character_tokenizer()))
    assert refused(lora())  # on a processor, where it would round in another way
    network = Policy(llama(), character_tokenizer())
    monkeypatch.setattr(fused, "is_sharded", lambda _: True)
    assert refused(network)
    monkeypatch.undo()
    network.model.model.layers[0].mlp.up_proj.__class__ = type("Linear4bit", (torch.nn.Linear,), {})
    assert refused(network)


@needs_onednn
def test_weights_are_those_of_now() -> None:
    network = Policy(llama(), character_tokenizer())
    tokens = torch.randint(5, 90, (1, 3))
    found = []
    for _ in range(2):
        with torch.no_grad(), sampling(network):
            positions = torch.arange(3)[None]
            context = {"attention_mask": None, "position_ids": positions}
            found.append(network.next_logits(tokens, **context, past_key_values=DynamicCache()))
        with torch.no_grad():
            network.model.model.layers[1].mlp.up_proj.weight.mul_(2)
    assert not torch.equal(*found)
