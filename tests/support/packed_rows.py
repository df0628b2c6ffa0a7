"""Rows that share prompts, and small models that pack them or cannot."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlmods.policy import Policy
from rlmods.policy.tiny import character_tokenizer
from tests.support.models import SHAPE, gpt2, llama, seeded

MODELS = {
    "llama": llama,
    "gpt2": gpt2,
    "qwen2": lambda: seeded(Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen3": lambda: seeded(Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=8)),
    "mistral without a window": lambda: seeded(
        MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None)
    ),
}


PADDED = {
    "a sliding window": lambda: seeded(
        MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=4)
    ),
    "layers with a window": lambda: seeded(
        Gemma3ForCausalLM, Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=4)
    ),
    "attention without an interface": lambda: seeded(
        BloomForCausalLM,
        BloomConfig(
            vocab_size=102, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=1
        ),
    ),
}


def policy(model: Any = None, **options: Any) -> Policy:
    made = Policy(llama() if model is None else model, character_tokenizer(), **options)
    made.requires_grad_(True)
    return made


def groups(lengths: list[tuple[int, list[int]]], gaps: bool = False) -> tuple[Tensor, Tensor]:
    """Return padded rows and their masks: for each (length of the prompt, lengths of its
    responses), rows that share the prompt."""
    generator = torch.Generator().manual_seed(len(lengths))
    width = max(prompt + response for prompt, responses in lengths for response in responses) + 2
    tokens, masks = [], []
    for prompt, responses in lengths:
        shared = torch.randint(2, 102, (prompt,), generator=generator)
        for response in responses:
            row = torch.randint(2, 102, (width,), generator=generator)
            row[:prompt] = shared
            mask = torch.zeros(width, dtype=torch.bool)
            mask[prompt : prompt + response] = True
            if gaps and response > 2:
                mask[prompt + 1] = False
            tokens.append(row)
            masks.append(mask)
    order = torch.randperm(len(tokens), generator=generator)
    return torch.stack(tokens)[order], torch.stack(masks)[order]


RAGGED = groups([(5, [3, 9, 1]), (2, [4]), (8, [2, 2, 12, 6]), (1, [7])])
