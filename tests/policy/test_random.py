"""Random weights with another model's architecture and tokenizer."""

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rlmods.errors import UserError
from rlmods.policy import Policy, Random, Tiny
from rlmods.policy.tiny import character_tokenizer

SHAPE = {
    "vocab_size": 110,
    "hidden_size": 96,
    "intermediate_size": 240,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}


def source() -> Policy:
    return Policy(
        LlamaForCausalLM(
            LlamaConfig(**SHAPE, num_key_value_heads=2, eos_token_id=1, pad_token_id=0)
        ),
        character_tokenizer(),
    )


def test_sizes() -> None:
    small = Random(policy=source, hidden_size=48, num_layers=2)()
    config = small.model.config
    assert isinstance(small.model, LlamaForCausalLM)
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim, config.vocab_size) == (
        48,
        2,
        16,
        110,
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (
        3,
        1,
        120,
    )
    assert small.tokenizer.get_vocab() == source().tokenizer.get_vocab()
    assert {x.dtype for x in small.parameters()} == {torch.float32}
    assert all(x.requires_grad for x in small.parameters())
    tokens = torch.arange(10).view(1, 10)
    assert small(tokens, torch.ones_like(tokens, dtype=torch.bool)).logprobs.isfinite().all()


def test_by_name_and_from_the_generator(tmp_path: Path) -> None:
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path)
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        weights.append(next(Random(name=str(tmp_path))().parameters()).detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_on_the_meta_device_for_the_memory_prediction() -> None:
    with torch.device("meta"):
        assert Random(policy=source, num_layers=1)().device.type == "meta"


@pytest.mark.parametrize("options", [{}, {"name": "a", "policy": source}])
def test_needs_one_model(options) -> None:
    with pytest.raises(UserError, match=r"^policy=random needs one model: type policy\.name="):
        Random(**options)()


def test_sizes_that_do_not_fit() -> None:
    model = partial(
        Policy,
        GPT2LMHeadModel(GPT2Config(vocab_size=110, n_embd=32, n_layer=1, n_head=4, eos_token_id=1)),
        character_tokenizer(),
    )
    with pytest.raises(UserError, match=r"policy\.hidden_size=33 .* do not fit GPT2LMHeadModel"):
        Random(policy=model, hidden_size=33)()
