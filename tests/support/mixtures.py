"""Mixture-of-experts policies small enough to train in a test."""

from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rlmods.policy import Policy
from rlmods.policy.tiny import character_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 102,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EIGHT, LOCAL = {"num_experts": 8}, {"num_local_experts": 8}
LATENT = {
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
}
LATENT |= {
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3": (Qwen3MoeConfig, Qwen3MoeForCausalLM, EIGHT | {"norm_topk_prob": True}),
    "qwen2": (Qwen2MoeConfig, Qwen2MoeForCausalLM, EIGHT | {"shared_expert_intermediate_size": 16}),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM, EIGHT),
    "mixtral": (MixtralConfig, MixtralForCausalLM, LOCAL | {"router_jitter_noise": 0.3}),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM, LOCAL),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM, LATENT),
}
"""All kinds of routers: softmax before or after top-k, weights normalised or not, shared experts,
groups, a dense first layer."""


def random_model(kind: str = "qwen3", seed: int = 0, **sizes: Any) -> Any:
    """Return a model with random weights, large enough that experts differ."""
    config_class, model_class, own_sizes = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model_class(config_class(**SHAPE | own_sizes | sizes))
        for x in made.parameters():
            if x.ndim > 1:
                x.data.normal_(std=0.25)
        for name, x in made.named_buffers():
            if name.endswith("bias"):  # of a router
                x.normal_(std=0.25)
    return made


def mixture(kind: str = "qwen3", seed: int = 0, **options: Any) -> Policy:
    """Return a policy with random weights."""
    return Policy(random_model(kind, seed), character_tokenizer(), **options)


def routes(policy: Policy, tokens: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return random experts to replay, distinct for every token and layer."""
    blank = policy.routers.unrecorded_experts(tokens)
    assert blank is not None
    noise = torch.rand(
        *blank.shape[:-1], policy.routers.num_experts, generator=torch.Generator().manual_seed(seed)
    )
    return noise.topk(blank.shape[-1]).indices.to(torch.int16)
