"""Architectures of transformers, each with random weights: two iterations of the loop, in which
sampler and trainer agree, or refused."""

from functools import wraps
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from rlmods.algo import Batch
from rlmods.data import Arithmetic
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import Local
from tests.support.models import GPT2, seeded
from tests.support.tiny_setup import fit, flat, learner

WIDTH, LAYERS = 16, 2
SHAPE: dict[str, Any] = {
    "vocab_size": 102,
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
LAYER_TYPES = {"layer_types": ["linear_attention", "full_attention"]}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]} | WINDOW
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "qwen3_next": EXPERTS | LINEAR | LAYER_TYPES | {"shared_expert_intermediate_size": 16},
    "mistral": WINDOW,
    "gemma2": SLIDING,
    "gemma3_text": SLIDING,
    "gpt_oss": SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "granite": {},
    "cohere": {},
    "cohere2": SLIDING,
    "bloom": {"n_layer": LAYERS, "n_head": 2},
    "gpt2": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_positions": 64},
    "gpt_neox": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "phi3": {},
    "stablelm": {},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": WIDTH, "do_layer_norm_before": True},
    "falcon": {},
    "smollm3": {},
    "exaone4": SLIDING,
    "mamba": {"state_size": 4},
    "mamba2": {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "falcon_mamba": {"state_size": 4},
    "jamba": EXPERTS
    | {
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
}
"""Settings of each architecture, by `model_type`, beside those of `SHAPE`."""
UNUSED = {"falcon": ("head_dim",)}
"""Settings of `SHAPE` that an architecture computes itself."""
SPLITS = Arithmetic(level=3, num_train=24, num_val=8)()
"""Prompts of different length, which are padded when they are sampled together."""


def random_policy(model_type: str) -> Policy:
    """Return a policy with random weights, large enough for distributions that depend on the
    text."""
    settings = {
        name: value
        for name, value in (SHAPE | ARCHITECTURES[model_type]).items()
        if name not in UNUSED.get(model_type, ())
    }
    config = AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for x in model.parameters():
            if x.ndim == 2:
                x.data.normal_(std=0.25)
    return Policy(model, character_tokenizer())


# some versions of transformers build the routers of Jamba otherwise
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:policy. routers of type Linear are not supported")
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_trains(model_type: str) -> None:
    policy = random_policy(model_type)
    before = flat(policy)
    assert len({len(policy.encode(prompt)) for prompt in SPLITS.train}) > 1
    rows = fit(
        learner(policy=policy, rollout=Local(max_tokens=6), batch=Batch(prompts=4, samples=4)),
        2,
        splits=SPLITS,
    )
    gaps = [row["train/sampler_logprob_gap"] for row in rows if "train/sampler_logprob_gap" in row]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5
    assert not torch.equal(flat(policy), before)


class Shifted(GPT2LMHeadModel):
    """Counts the absolute positions of padded prompts from the left edge of the batch."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        forward = self.transformer.forward

        @wraps(forward)
        def without_positions(*args: Any, position_ids: Any = None, **inputs: Any) -> Any:
            return forward(*args, **inputs)

        self.transformer.forward = without_positions


class _WithoutCache:
    def __init__(self, model: Any) -> None:
        self.model = model

    def forward(self, past_key_values: Any = None, use_cache: bool = False, **inputs: Any) -> Any:
        return self.model(**inputs, use_cache=False)

    __call__ = forward


class Forgetful(LlamaForCausalLM):
    """Ignores its cache."""

    @property
    def base_model(self) -> Any:
        return _WithoutCache(self.model)


class TestAgreement:
    def llama(self, kind: Any) -> Policy:
        return Policy(seeded(kind, LlamaConfig(**SHAPE)), character_tokenizer())

    def test_a_model_that_padding_changes_is_refused(self) -> None:
        policy = Policy(seeded(Shifted, GPT2Config(**GPT2, eos_token_id=1)), character_tokenizer())
        with pytest.raises(
            UserError,
            match=r"padding changes the log-probabilities of Shifted by \S+ nats .*: type "
            r"rollout.batch_size=1,",
        ):
            learner(policy=policy)
        trained = learner(policy=policy, rollout=Local(max_tokens=6, batch_size=1))
        rows = fit(trained, 1, splits=SPLITS)
        assert rows[-1]["train/sampler_logprob_gap"] < 1e-4

    def test_a_model_without_a_working_cache_is_refused(self) -> None:
        with pytest.raises(
            UserError,
            match=r"^policy: Forgetful gives other log-probabilities with a cache than without "
            r".*another model$",
        ):
            learner(policy=self.llama(Forgetful))

    def test_a_bidirectional_model_is_refused(self) -> None:
        config = BertConfig(**{**SHAPE, "is_decoder": False})
        with pytest.raises(UserError, match="BertLMHeadModel"):
            learner(policy=Policy(seeded(BertLMHeadModel, config), character_tokenizer()))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_rounding_is_accepted(self, dtype: torch.dtype) -> None:
        policy = Policy(
            seeded(LlamaForCausalLM, LlamaConfig(**SHAPE)).to(dtype), character_tokenizer()
        )
        Local().check_policy(policy)
        Local().check_policy(policy.train())
        assert policy.training
