"""Forward of Llama-like networks while responses are sampled: products of the same states are one
product, and adapters are merged.

R rows of S ids; A heads of queries and K of keys, with D features each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput

from rlmods.distributed.sharding import is_sharded, unsharded
from rlmods.policy.adapted import AdaptedPolicy, merged_weight
from rlmods.policy.base import Policy
from rlmods.policy.linear import (
    CPULinear,
    autocast_dtype,
    pack,
    packed_dtypes,
    packed_linear,
    packed_weights,
)
from rlmods.policy.modes import eval_mode
from rlmods.policy.packing import is_packed, packed_attention

TRUNKS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Classes of transformers whose layers are those of `FusedTrunk`."""


@contextmanager
def sampling(policy: Policy, fused: bool = True) -> Iterator[None]:
    """Prepare a policy for `next_logits` in the block: eval mode, sharded weights gathered, and
    copies of the weights for products with few rows (`fused_trunk`, `packed_weights`). Changes of
    the weights within the block are not seen."""
    # autocast caches casts of weights made while sampling, which must not outlive the block
    torch.clear_autocast_cache()
    # no dropout, and gradient checkpointing would disable the cache
    with eval_mode(policy), unsharded(policy):
        output_layer = policy.model.get_output_embeddings()
        trunk = fused_trunk(policy) if fused else None
        # the trunk has copies of its own
        network = policy if trunk is None else output_layer
        with packed_weights(network, output_layer):
            policy.sampling_trunk = trunk
            try:
                yield
            finally:
                policy.sampling_trunk = None
                torch.clear_autocast_cache()


@torch.no_grad()
def fused_trunk(policy: Policy) -> FusedTrunk | None:
    """Return the trunk of a policy for sampling. None on processors without oneDNN or with an
    adapter, whose results would be rounded in another way; for other architectures, and for sharded
    or quantized weights."""
    model = policy.model
    if not is_llama_like(model) or not is_packed(model) or is_sharded(policy):
        return None
    adapter = policy.adapter if isinstance(policy, AdaptedPolicy) else None
    bases: list[Any] = []
    for layer in model.base_model.layers:
        for product in products(layer):
            bases += [x._modules.get("base_layer", x) for x in product]
    if not all(type(x) is CPULinear for x in bases):
        return None
    weight: Tensor = bases[0].weight
    dtype = autocast_dtype(weight) or weight.dtype
    if weight.device.type != "cuda":
        found = packed_dtypes(model.base_model, model.get_output_embeddings(), dtype)
        if adapter is not None or any(found.get(x) != dtype for x in bases):
            return None
    return FusedTrunk(model, adapter, dtype)


def is_llama_like(model: PreTrainedModel) -> bool:
    """Return True for the classes `TRUNKS`, not for subclasses, which may compute otherwise."""
    kind = type(model.base_model)
    return kind.__name__ in TRUNKS and kind.__module__.startswith("transformers.")


def products(layer: Any) -> list[list[nn.Module]]:
    """Return the linear layers of a layer of the network, those of the same states together: of
    queries, keys and values, of the output of attention, of gate and factor, and of the output."""
    attention = layer.self_attn
    return [
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [layer.mlp.gate_proj, layer.mlp.up_proj],
        [layer.mlp.down_proj],
    ]


class FusedTrunk:
    """`model.base_model` with one product for queries, keys and values, and on GPUs one for the
    gate and its factor. On processors its results are those of the layers one by one, bit for bit.

    It holds copies of the weights of all blocks, in the data type of autocast: on GPUs only of
    those that are joined, merged or cast."""

    def __init__(self, model: PreTrainedModel, adapter: str | None, dtype: torch.dtype) -> None:
        self.trunk: Any = model.base_model
        self.config = model.config
        device = self.trunk.norm.weight.device
        self.products = []
        for layer in self.trunk.layers:
            query_key_value, output, gate_up, down = products(layer)
            # a processor takes longer for one product of twice the width than for two
            joined = [gate_up] if device.type == "cuda" else [[x] for x in gate_up]
            self.products.append(
                (
                    _product(query_key_value, adapter, dtype),
                    _product(output, adapter, dtype),
                    [_product(x, adapter, dtype) for x in joined],
                    _product(down, adapter, dtype),
                )
            )
        size = self.trunk.layers[0].self_attn.head_dim
        self.sign = torch.ones(size, device=device)
        self.sign[: size // 2] = -1

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor,
        use_cache: bool = True,
        **caches: Cache,
    ) -> BaseModelOutput:
        """Return the last hidden states, and append keys and values to the cache, which is called
        `past_key_values` up to transformers 5.23 and `cache` afterwards."""
        [cache] = caches.values()
        trunk = self.trunk
        hidden = trunk.embed_tokens(input_ids)
        cos, sin = (x[:, None] for x in trunk.rotary_emb(hidden, position_ids))
        sin = sin * self.sign.to(sin.dtype)
        if input_ids.shape[1] == 1:
            mask = None if attention_mask is None else one_query_mask(attention_mask, hidden)
        else:
            mask = create_causal_mask(self.config, hidden, attention_mask, cache, position_ids)
        for i, (layer, own) in enumerate(zip(trunk.layers, self.products, strict=True)):
            query_key_value, output, gate_up, down = own
            attention = layer.self_attn
            projected = query_key_value(normalize(layer.input_layernorm, hidden))
            query, key, value = split_heads(attention, projected, cos, sin)
            key, value = cache.update(key, value, i)
            attended, _ = packed_attention(
                attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling
            )
            hidden = hidden + output(attended.flatten(2))
            states = normalize(layer.post_attention_layernorm, hidden)
            outputs = [product(states) for product in gate_up]
            gate, up = outputs if len(outputs) == 2 else outputs[0].chunk(2, -1)
            hidden = hidden + down(layer.mlp.act_fn(gate) * up)
        return BaseModelOutput(last_hidden_state=normalize(trunk.norm, hidden))


def one_query_mask(attention_mask: Tensor, hidden: Tensor) -> Tensor:
    """Return a mask [R, 1, 1, S] for attention of one query, True or 0 where the attention mask
    [R, S] is not 0. On a GPU it is what attention adds to its scores, which PyTorch would else
    compute in every layer, and rows begin at multiples of 8 elements, which its kernel needs."""
    visible = attention_mask.bool()
    if hidden.device.type != "cuda":
        return visible[:, None, None]
    num_rows, num_slots = visible.shape
    dtype = autocast_dtype(hidden) or hidden.dtype
    bias = hidden.new_zeros(num_rows, 1, 1, -(-num_slots // 8) * 8, dtype=dtype)
    return bias[..., :num_slots].masked_fill_(~visible[:, None, None], -torch.inf)


def split_heads(
    attention: Any, projected: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, [R, A, S, D] and [R, K, S, D], of projected states
    [R, S, (A + 2 K) D], given the rotations [R, 1, S, D]."""
    heads = projected.view(*projected.shape[:-1], -1, attention.head_dim)
    num_queries = attention.config.num_attention_heads
    end = num_queries + attention.config.num_key_value_heads
    rotated = heads[:, :, :end]
    if hasattr(attention, "q_norm"):
        query = normalize(attention.q_norm, rotated[:, :, :num_queries])
        key = normalize(attention.k_norm, rotated[:, :, num_queries:])
        rotated = torch.cat((query, key), 2)
    rotated = rotate(rotated.transpose(1, 2), cos, sin)
    value = heads[:, :, end:].transpose(1, 2)
    return rotated[:, :num_queries], rotated[:, num_queries:], value


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `[x1, x2] cos + [x2, x1] sin`: x with rotary positions, where the first half of `sin`
    is negated. On a GPU rounded to the data type of autocast, in which attention reads it."""
    turned = x.roll(x.shape[-1] // 2, -1)
    if x.device.type == "cuda":
        dtype = autocast_dtype(x) or cos.dtype
        return torch.addcmul(x * cos, turned, sin, out=torch.empty_like(x, dtype=dtype))
    return x * cos + turned * sin


def normalize(norm: Any, x: Tensor) -> Tensor:
    """Return `norm(x)` of an RMS norm, on a GPU by one kernel."""
    if x.device.type == "cuda" and x.dtype == norm.weight.dtype:
        return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    normalized: Tensor = norm(x)
    return normalized


def _product(
    layers: Sequence[Any], adapter: str | None, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """Return the function that computes these linear layers of the same states, side by side."""
    weights = []
    biases = []
    for layer in layers:
        base = layer._modules.get("base_layer", layer)
        weight = base.weight.detach()
        if base is not layer and adapter is not None:
            a, b = (x[adapter].weight for x in (layer.lora_A, layer.lora_B))
            weight = merged_weight(layer, adapter, weight, a, b)
        weights.append(weight.to(dtype))
        if base.bias is not None:
            biases.append(base.bias.detach().to(dtype))
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias = torch.cat(biases) if biases else None
    if weight.device.type == "cuda":
        return partial(functional.linear, weight=weight, bias=bias)
    return partial(packed_linear, packed=pack(weight), bias=bias)
