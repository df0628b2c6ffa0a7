"""Small models with random weights, and tokenizers, that many tests share."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rlmods.policy import Policy, linear
from rlmods.policy.tiny import character_tokenizer
from rlmods.types import Prompt

SHAPE: dict[str, Any] = {
    "vocab_size": 102,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {
    "vocab_size": 102,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": None,
}
needs_onednn = pytest.mark.skipif(not linear._has_onednn(), reason="needs oneDNN on x86-64")
needs_bfloat16 = pytest.mark.skipif(
    not linear._has_onednn() or not linear._has_bfloat16(), reason="needs oneDNN with bfloat16"
)
PDROP = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


def seeded(kind: Any, config: Any) -> Any:
    """Weights large enough for distributions that are neither uniform nor deterministic, and that
    depend on positions."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
        for name, x in model.named_parameters():
            if x.ndim == 2:
                x.data.normal_(std=0.5 if "wpe" in name else 0.25)
    return model.eval()


def llama(**change: Any) -> Any:
    return seeded(LlamaForCausalLM, LlamaConfig(**SHAPE | change))


def gpt2(**change: Any) -> Any:
    return seeded(GPT2LMHeadModel, GPT2Config(**GPT2 | {"eos_token_id": 1} | change))


MODELS = {"llama": llama, "gpt2": gpt2}


def policy(model: Any = None, **options: Any) -> Policy:
    return Policy(llama() if model is None else model, character_tokenizer(), **options)


def rows() -> tuple[Tensor, Tensor]:
    """Return right-padded rows, and a mask with a gap and a row without loss."""
    tokens = torch.randint(2, 102, (4, 13), generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(4, 13, dtype=torch.bool)
    mask[0, 3:9] = True
    mask[0, 5] = False
    mask[1, 1:13] = True
    mask[2, 12] = True
    return tokens, mask


def gradient(policy: Policy, x: Tensor) -> Tensor:
    """Return the gradient of a weighted sum, with different weights for different tokens."""
    policy.zero_grad()
    (x * torch.linspace(-1, 2, x.numel()).view(x.shape)).sum().backward()
    flat = torch.cat(
        [
            p.grad.flatten() if p.grad is not None else torch.zeros(p.numel())
            for p in policy.parameters()
        ]
    )
    assert flat.norm() > 1e-3
    return flat


def tokenizer_with_bos(template: str | None, added: str = "<s> $A") -> PreTrainedTokenizerFast:
    """Return a tokenizer that adds <s>, as Llama's does, or other special tokens."""
    inner = Tokenizer(
        models.WordLevel({"<pad>": 0, "</s>": 1, "<s>": 2, "a": 3, "b": 4}, unk_token="b")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.add_special_tokens(["<pad>", "</s>", "<s>"])
    inner.post_processor = processors.TemplateProcessing(
        single=added, special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    return tokenizer


CHAT = Prompt(id="c", messages=[{"role": "user", "content": "ab"}])
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}{% if "
    "add_generation_prompt %}b{% endif %}"
)
