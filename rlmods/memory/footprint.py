"""Predicted peak memory of one rank, in bytes.

Symbols: T tokens of a microbatch, R of them in responses; s tokens of a row, L layers, h hidden
size, a attention heads, q = a x head size, k = key-value heads x head size, i width of the
feed-forward layer, V vocabulary, b bytes of an element in matrix products.

Activations follow Korthikanti et al. (arXiv:2205.05198, section 4.1), who count the tensors that
autograd saves in one layer: a layer with LayerNorm, GELU, dropout and 2 bytes an element takes h
(34 + 5 a s / h) bytes a token. `Transformer.layer` is the same count for RMSNorm, a gated
feed-forward layer, rotary positions and no dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hydra.utils import instantiate
from torch import nn
from transformers import PreTrainedModel

from rlmods.config.plan import Plan, max_prompt_tokens, short_prompts
from rlmods.distributed import sharding
from rlmods.memory.inputs import (
    Devices,
    Networks,
    Rows,
    divergence_tensors,
    engine_bytes,
    generation,
    microbatches,
    num_bytes,
    num_caches,
    optimizer_copies,
    packed_bytes,
    tensors,
)
from rlmods.policy import Policy
from rlmods.policy.base import LOGITS_PER_CHUNK, is_plain_linear
from rlmods.policy.linear_logprobs import logits_per_chunk

PROCESS_BYTES = 450 * 2**20
"""Memory of interpreter and libraries, added if the device is the CPU."""
SHARDED = ("weights", "gradients", "optimizer state", "reference", "teacher")


@dataclass(frozen=True)
class Footprint:
    """Predicted memory of rank 0, the rank that needs most, in bytes."""

    device: Mapping[str, Mapping[str, int]]
    """Memory on the device, by stage and part."""
    host: Mapping[str, int]
    """CPU memory of a rank on a GPU, by stage."""
    microbatch: Rows

    def total(self, stage: str) -> int:
        return sum(self.device[stage].values())

    @property
    def peak_stage(self) -> str:
        return max(self.device, key=self.total)

    @property
    def peak(self) -> int:
        return self.total(self.peak_stage)


@dataclass(frozen=True)
class Transformer:
    """Sizes of a network, with equations for the memory of its forward and backward."""

    layers: int
    hidden: int
    heads: int
    query: int
    key_value: int
    inner: int
    """i, summed over the experts that process a token."""
    vocabulary: int
    """0 without logits."""
    experts: int = 0
    """Number of experts that process a token, e; 0 in a dense model."""
    qk_norm: bool = False
    eager: bool = False
    """True if attention saves its s x s matrices."""
    itemsize: int = 4
    autocast: bool = False
    """True if float32 weights are cast to 16 bits at each use."""
    checkpointing: bool = False
    chunk: int = 0
    """Logits that a plain linear output layer computes at once (`linear_logprobs`); 0 for another
    layer."""
    capped: bool = False
    """True if logits are capped by a tanh."""

    @classmethod
    def from_network(
        cls, network: nn.Module, devices: Devices, settings: Mapping[str, Any]
    ) -> Transformer | None:
        """Read the sizes from the network's Hugging Face configuration and the group `policy`; None
        for a value head."""
        if (
            model := next((m for m in network.modules() if isinstance(m, PreTrainedModel)), None)
        ) is None:
            return None
        config: Any = model.config.get_text_config()
        value = {
            name: getattr(config, name, None) or 0
            for name in (
                "head_dim",
                "num_key_value_heads",
                "intermediate_size",
                "num_experts_per_tok",
                "moe_intermediate_size",
                "shared_expert_intermediate_size",
                "n_shared_experts",
            )
        }
        hidden, heads, experts = (
            config.hidden_size,
            config.num_attention_heads,
            value["num_experts_per_tok"],
        )
        size, inner = value["head_dim"] or hidden // heads, value["intermediate_size"] or 4 * hidden
        if experts:
            expert = value["moe_intermediate_size"] or inner
            inner = experts * expert + (
                value["shared_expert_intermediate_size"] or value["n_shared_experts"] * expert
            )
        weight = devices.gathered_itemsize or next(network.parameters()).itemsize
        return cls(
            config.num_hidden_layers,
            hidden,
            heads,
            heads * size,
            (value["num_key_value_heads"] or heads) * size,
            inner,
            config.vocab_size if isinstance(network, Policy) else 0,
            experts,
            qk_norm=any(name.endswith("q_norm") for name, _ in model.named_modules()),
            eager=model.config._attn_implementation == "eager",
            itemsize=2 if devices.autocast else weight,
            autocast=devices.autocast and weight == 4,
            checkpointing=bool(settings.get("gradient_checkpointing", False)),
            chunk=_chunk(network, devices),
            capped=isinstance(network, Policy) and network.logit_transform.cap > 0,
        )

    def layer(self, length: int) -> int:
        """Return the bytes that one layer saves for backward, per token:

            n h + b (4 q + 4 i + 2 e h) + [8 (q + k)] + [c a s]

        n h: two RMSNorms, each with input, normalised input and output; n = 24 in float32, 16 in 16
        bits, 26 under autocast, where each of five projections casts its own input. 4 q: queries,
        keys and values repeated to all heads, output. 4 i: gate, its activation, up, their product.
        2 e h: inputs and outputs of e experts. 8 (q + k): norms of queries and keys, if any. c a s:
        softmax of eager attention, c = 4 in float32, else 6; fused attention (sdpa, flash)
        recomputes it."""
        n = 26 if self.autocast else 24 if self.itemsize == 4 else 16
        matrices = self.itemsize * (
            4 * self.query + 4 * self.inner + 2 * self.experts * self.hidden
        )
        softmax = (4 if self.itemsize == 4 else 6) * self.heads * length * self.eager
        return (
            n * self.hidden + matrices + 8 * (self.query + self.key_value) * self.qk_norm + softmax
        )

    def training(self, rows: Rows, divergence: int = 0, *, entropy: bool = False) -> int:
        """Return the bytes of forward and backward: T L layer + max(output layer, b V h + T layer /
        2).

        The second term is the larger of backward through the output layer, and through a layer:
        gradient of the output matrix (kept until that of the tied embedding is known) and of about
        half the layer's activations. With gradient checkpointing: T L h x (bytes of the residual
        stream) + max(output layer, b V h + 3/2 T layer).

        Args:
            divergence: d, the further tensors of logits of a divergence from another model
            (`divergence_tensors`), whose hidden states add
                b R h.
            entropy: True if the entropy carries a gradient.
        """
        layer, stream = (
            rows.tokens * self.layer(rows.length),
            rows.tokens * self.hidden * (4 if self.autocast else self.itemsize),
        )
        backward = (
            self.itemsize * self.vocabulary * self.hidden + layer // 2 + layer * self.checkpointing
        )
        states = self.itemsize * rows.num * rows.response * self.hidden * (divergence > 0)
        output = self.output_layer(rows, divergence, entropy=entropy)
        return (
            self.layers * (stream if self.checkpointing else layer) + states + max(output, backward)
        )

    def output_layer(self, rows: Rows, divergence: int = 0, *, entropy: bool = False) -> int:
        """Return the bytes of forward and backward of the output layer.

        A plain linear layer (`linear_logprobs`) computes chunks of logits: n 4 min(R V, chunk) + w.
        n = 2 tensors (logits and exponentials) of at most `chunk` logits in forward; in backward
        one of half as many, or 4 if the entropy carries a gradient or logits are capped. w = 4 V h,
        the float32 gradient of the matrix, and as much again for a float32 copy of 16-bit weights.

        Otherwise, and with a divergence: (5 + d) 4 min(R V, `LOGITS_PER_CHUNK` / models), logits,
        exponentials and gradients in backward."""
        if not self.chunk or divergence:
            return (5 + divergence) * self._logits(
                rows, LOGITS_PER_CHUNK // (2 if divergence else 1)
            )
        gradient = 4 * self.vocabulary * self.hidden
        backward = (4 if entropy or self.capped else 1) * self._logits(rows, self.chunk // 2)
        return max(2 * self._logits(rows, self.chunk), backward) + gradient + self._float32_copy

    def scoring(self, rows: Rows) -> int:
        """Return the bytes of a forward without gradients: T b (4 h + 3 i), and 2 tensors of logits
        and the float32 copy of 16-bit weights of a plain output layer, or 3 tensors of another."""
        output = (
            2 * self._logits(rows, self.chunk) + self._float32_copy
            if self.chunk
            else 3 * self._logits(rows, LOGITS_PER_CHUNK)
        )
        return rows.tokens * self.itemsize * (4 * self.hidden + 3 * self.inner) + output

    @property
    def _float32_copy(self) -> int:
        return 4 * self.vocabulary * self.hidden * (self.itemsize == 2 and not self.autocast)

    def _logits(self, rows: Rows, chunk: int) -> int:
        return 4 * min(rows.num * rows.response * self.vocabulary, chunk)

    def decoding(self, prompts: int, rows: Rows) -> int:
        """Return max(prefill, sampling): P (s - response) b (4 h + 3 i), and 20 V a row (three
        float32 tensors, one float64)."""
        prefill = (
            prompts
            * (rows.length - rows.response)
            * self.itemsize
            * (4 * self.hidden + 3 * self.inner)
        )
        return max(prefill, 20 * rows.num * self.vocabulary)

    def cache(self, rows: Rows) -> int:
        """Return the bytes of the key-value cache in generation: 2 b L k s a row."""
        return 2 * self.itemsize * self.layers * self.key_value * rows.tokens


def persistent(networks: Networks, devices: Devices, copies: float) -> dict[str, int]:
    """Return the bytes that a rank holds in every stage: weights W, gradients G of the trained
    ones, optimizer state `copies` G, reference and teacher W (of a copy under an adapter: its
    trained weights), each divided by the shards; buckets of DDP, G; reward models, not sharded."""
    trained, itemsize = networks.trained.values(), devices.stored_itemsize
    gradients = num_bytes(*trained, itemsize=itemsize, trained=True)
    frozen = {
        name: num_bytes(model, trained=model.base_fingerprint is not None)
        for name, model in networks.frozen.items()
    }
    shared = (
        num_bytes(*trained, itemsize=itemsize),
        gradients,
        int(copies * gradients),
        frozen.get("reference", 0),
        frozen.get("teacher", 0),
    )
    held = {part: size // devices.shards for part, size in zip(SHARDED, shared, strict=True)}
    return held | {
        "gradient buckets": gradients * devices.ddp,
        "reward models": num_bytes(*networks.reward_models),
    }


def loading(networks: Networks, devices: Devices, held: Mapping[str, int]) -> int:
    """Return the CPU memory of a rank while it loads the networks: all of their weights; or, if
    FSDP reads shards from files (`rlmods.distributed.deferred`), that of the largest shard of a
    weight, and with offload those of all."""
    size = held["weights"] + held["reference"] + held["teacher"]
    models: list[Any] = [*networks.trained.values(), *networks.frozen.values()]
    if not devices.fsdp or not all(
        getattr(module, "in_files", True) for model in models for module in model.modules()
    ):
        return size * devices.shards
    largest = max(x.numel() * x.itemsize for model in models for x in tensors(model))
    return size if devices.offload else largest // devices.shards


def footprint(plan: Plan, networks: Networks, devices: Devices) -> Footprint:
    """Predict the memory of each stage of an iteration: `persistent` parts and those of the stage.

    Weights outside of blocks: O; of the largest block: B. FSDP gathers O + 2 B (one block is
    prefetched), all weights in generation, and in backward holds unreduced gradients of O + B and a
    float32 copy of the larger while it is sent. Autocast saves 16-bit casts of all weights for
    backward, 2 (O + B) with gradient checkpointing. A divergence over the whole vocabulary gathers
    the output layer of the other model. An optimizer step that is not fused takes another copy of
    the gradients (AdamW's square roots of second moments). Rank 0 gathers weights and optimizer
    state for a checkpoint. Activations are those of padded rows, more than forwards that share
    prompts need."""
    splits, trained = instantiate(plan.config.data, _convert_="all")(), networks.trained.values()
    encoder: Any = next(iter(trained))
    copies = optimizer_copies(plan.config.optimizer)
    limit = max_prompt_tokens(plan.config, "data")
    splits = replace(
        splits,
        train=short_prompts(encoder, splits.train, limit),
        val=short_prompts(encoder, splits.val, limit),
    )
    micro, teacher_micro = microbatches(plan, encoder, splits.train, devices.ranks)
    held = persistent(networks, devices, copies)
    if engine := engine_bytes(plan, encoder):
        held["sampling engine"] = engine
    full = {part: held[part] * devices.shards for part in SHARDED}
    checkpoint = (full["gradients"] + full["optimizer state"]) * devices.full_checkpoint
    host = {"loading": loading(networks, devices, held), "checkpoint": checkpoint}
    if devices.offload:
        host["checkpoint"] += sum(held[part] for part in SHARDED)
        held |= dict.fromkeys(SHARDED, 0)
    gathered, unreduced, casts, transformers = [0], [0], 0, list[Transformer]()
    for network in trained:
        itemsize = devices.gathered_itemsize or next(network.parameters()).itemsize
        (outside, block), gradients = (
            _outside_and_block(network),
            _outside_and_block(network, trained=True),
        )
        gathered.append(itemsize * (outside + 2 * block) * devices.fsdp)
        unreduced.append((itemsize * sum(gradients) + 4 * max(gradients)) * devices.fsdp)
        if (sizes := Transformer.from_network(network, devices, plan.config.policy)) is not None:
            transformers.append(sizes)
            casts += sizes.autocast * (
                2 * (outside + block) if sizes.checkpointing else num_bytes(network, itemsize=2)
            )
    stages: dict[str, dict[str, int]] = {}
    for stage, (prompts, rows) in generation(plan, encoder, splits, devices.ranks).items():
        policy = transformers[0]
        gathered_policy = (
            num_bytes(networks.trained["policy"], itemsize=devices.gathered_itemsize) * devices.fsdp
        )
        parts = {
            "key-value cache": policy.cache(rows) * num_caches(plan),
            "activations": policy.decoding(prompts, rows),
        }
        if devices.on_cpu:
            parts["packed weights"] = packed_bytes(encoder, devices.autocast)
        stages[stage] = {"gathered weights": gathered_policy, **parts}
    if networks.frozen or plan.algorithm.samples_responses:
        scored = [
            (network, micro)
            for network in (
                *trained,
                *(x for name, x in networks.frozen.items() if name != "teacher"),
            )
        ]
        scored += [] if networks.teacher is None else [(networks.teacher, teacher_micro)]
        sizes_and_rows = [
            (Transformer.from_network(network, devices, {}), rows) for network, rows in scored
        ]
        activations = max(
            sizes.scoring(rows) for sizes, rows in sizes_and_rows if sizes is not None
        )
        stages["scoring"] = {"gathered weights": max(gathered), "activations": activations}
    divergence, entropy, other = (
        divergence_tensors(plan),
        getattr(plan.settings, "entropy_coefficient", 0.0) != 0,
        0,
    )
    if divergence:
        models: list[Any] = [networks.trained["policy"], *networks.frozen.values()]
        # In float32, or in 16 bits and, for products and while they are cast, in float32 as well.
        itemsize = 4 if devices.gathered_itemsize is None else 4 + devices.gathered_itemsize
        other = (
            max(
                num_bytes(model.model.get_output_embeddings(), itemsize=itemsize)
                for model in models
            )
            * devices.fsdp
        )
    update = {
        "gathered weights": max(gathered) + other,
        "gathered gradients": max(unreduced),
        "cast weights": casts,
    }
    stages["update"] = update | {
        "activations": sum(x.training(micro, divergence, entropy=entropy) for x in transformers)
    }
    stages["optimizer step"] = {
        "activations": 0 if plan.config.optimizer.get("fused") else held["gradients"]
    }
    if devices.on_cpu:
        held["interpreter and libraries"] = PROCESS_BYTES
        stages |= {"checkpoint": {"gathered checkpoint": checkpoint}} if checkpoint else {}
    return Footprint(
        {stage: held | parts for stage, parts in stages.items()},
        {} if devices.on_cpu else host,
        micro,
    )


def _chunk(network: nn.Module, devices: Devices) -> int:
    plain = isinstance(network, Policy) and is_plain_linear(network.model.get_output_embeddings())
    return logits_per_chunk("cpu" if devices.on_cpu else "cuda") if plain else 0


def _outside_and_block(network: nn.Module, *, trained: bool = False) -> tuple[int, int]:
    """Return the number of weights outside of transformer blocks, and in the largest block."""
    blocks = [tensors(block, trained=trained) for block in sharding.blocks(network)]
    inside = {id(x) for block in blocks for x in block}
    outside = sum(x.numel() for x in tensors(network, trained=trained) if id(x) not in inside)
    return outside, max((sum(x.numel() for x in block) for block in blocks), default=0)
