"""Predict the memory of a run: `python -m rlmods.plan [group=option] [key=value]`, with the
overrides of `train.py`.

Loads no weights. Prints GiB on one device by part: weights, gradients and optimizer state follow
from the number of parameters; activations, key-value cache and logits from the largest batch that
the settings allow. Teachers, reward models and what FSDP gathers in an update are not counted.

    num_gpus=8      number of devices on all nodes, if trainer.devices is auto
    gpu_gib=80      memory of one device"""

from __future__ import annotations

import sys

from rlmods.errors import print_usage
from rlmods.settings.bounds import Count, bounded

print_usage(__name__, __doc__)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from torch import nn

from rlmods.cli.command import command, compose_run
from rlmods.config.instantiate import instantiate
from rlmods.config.run_spec import RunSpec
from rlmods.distributed.strategy import DDP, FSDP2, check_replicas
from rlmods.distributed.trainer import MIXED, choose
from rlmods.needs import FrozenModelNeeds, KLNeeds, PreferenceNeeds, needs_of
from rlmods.policy import Policy
from rlmods.policy.fused import is_llama_like
from rlmods.policy.output_layer import logits_per_chunk
from rlmods.rollout import Local
from rlmods.rollout.cache import cache_bytes
from rlmods.rollout.turns import engine_of
from rlmods.training.lengths import longest_texts, short_prompts
from rlmods.training.networks import hidden_matrices

GIB = 2**30
USABLE = 0.9  # fraction of GPU memory for tensors


@dataclass(frozen=True)
@bounded("")
class PlanSettings:
    """Options of this command, described in the module's docstring."""

    num_gpus: Count = 8
    gpu_gib: float = 80


@dataclass(frozen=True)
class Devices:
    """Ranks of a run, `shards` of which share one copy of the networks. DDP copies gradients into
    buckets; FSDP can offload its shards."""

    ranks: int = 1
    shards: int = 1
    has_buckets: bool = False
    offloads: bool = False


def read_devices(trainer: DictConfig, num_gpus: int) -> Devices:
    """Read the group `trainer`, where `num_gpus` stands for devices that are not a number."""
    devices = trainer.get("devices", 1)
    strategy = trainer.get("strategy") or {}
    counted = isinstance(devices, int) and devices > 0
    ranks = devices * trainer.get("num_nodes", 1) if counted else num_gpus
    kind = get_class(strategy["_target_"]) if "_target_" in strategy else object
    if issubclass(kind, FSDP2):
        check_replicas(strategy["replicas"], ranks)
        return Devices(ranks, ranks // strategy["replicas"], offloads=strategy["offload"])
    return Devices(ranks, has_buckets=issubclass(kind, DDP))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer, and the bytes that its passes take. `query` is heads x head size;
    `inner` is the feed-forward width of all experts that process a token."""

    layers: int
    hidden: int
    query: int
    inner: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """Read the sizes from a Hugging Face configuration of a language model."""
        hidden = config["hidden_size"]
        heads = config["num_attention_heads"]
        head_size = config.get("head_dim") or hidden // heads
        inner = config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden
        inner *= config.get("num_experts_per_tok") or 1
        layers = config["num_hidden_layers"]
        return cls(layers, hidden, heads * head_size, inner, config["vocab_size"])

    def activations(self, tokens: float, itemsize: int, checkpointing: bool) -> float:
        """Return T (24 h + 4 b (q + i)) a layer for T tokens and b bytes an element, and half a
        layer for gradients: what autograd saves (after arXiv:2205.05198, section 4.1) with RMSNorm,
        gated feed-forward and fused attention. With checkpointing a layer keeps its input, 4 h."""
        layer = tokens * (24 * self.hidden + 4 * itemsize * (self.query + self.inner))
        if checkpointing:
            return self.layers * tokens * 4 * self.hidden + 1.5 * layer
        return (self.layers + 0.5) * layer

    def logits(self, tokens: float) -> float:
        """Return two float32 chunks of logits, and the gradient of the output matrix."""
        chunk = min(tokens * self.vocabulary, logits_per_chunk("cuda"))
        return 2 * 4 * chunk + 4 * self.vocabulary * self.hidden


def predict(
    spec: RunSpec, policy: Policy, devices: Devices, precision: str
) -> dict[str, dict[str, float]]:
    """Return the bytes of one rank by part, for an update and for sampling in this process."""
    with torch.device("meta"):
        critic = spec.parts["critic"](policy) if "critic" in spec.parts else None
        trained = [policy] if critic is None else [policy, critic]
        held = _held(spec, policy, trained, devices)
    is_cast = precision in MIXED
    itemsize = 2 if is_cast else policy.model.dtype.itemsize
    num_weights = _num_bytes([policy]) / policy.model.dtype.itemsize
    num_networks = _num_bytes(trained) / _num_bytes([policy])  # 1, or 2 with a critic
    sizes = Sizes.of(policy.model.config.get_text_config().to_dict())
    checkpointing = spec.config.policy.get("gradient_checkpointing", False)
    algorithm = spec.algorithm
    train = short_prompts(policy, spec.splits.train, spec.config.data.get("max_prompt_tokens"))
    sampler = spec.parts["rollout"] if algorithm.samples_responses else None
    prompt, response = longest_texts(policy, train, algorithm.columns(spec.settings), sampler)
    row = prompt + response
    samples = spec.batch.samples if algorithm.samples_responses else 1
    rows = spec.batch.prompts // devices.ranks * samples
    tokens = max(row, min(spec.batch.padded_budget, rows * row))
    update = held | {
        "cast weights": 2 * num_weights * num_networks * (is_cast and devices.shards == 1),
        "activations": sizes.activations(tokens, itemsize, checkpointing) * num_networks,
        "logits": sizes.logits(tokens * response / row),
    }
    stages = {"update": update}
    per_token = cache_bytes(policy.model.config, itemsize)
    rollout = spec.parts.get("rollout")
    engine = engine_of(rollout)
    if isinstance(engine, Local):
        at_once = min(rows, engine.batch_size)
        copies = is_cast or (engine.fused and is_llama_like(policy.model))
        stages["sampling"] = held | {
            "gathered weights": itemsize * num_weights * (devices.shards > 1),
            "copies of weights": itemsize * num_weights * (copies and devices.shards == 1),
            "key-value cache": per_token * at_once * row,
            "logits": 20 * at_once * sizes.vocabulary,
        }
    return stages


def _held(
    spec: RunSpec, policy: Policy, trained: Sequence[nn.Module], devices: Devices
) -> dict[str, float]:
    """Return the bytes that a rank holds in every stage."""
    parts = spec.parts
    gradients = _num_bytes(trained, trained=True)
    sizes: dict[str, float] = {
        "weights": _num_bytes(trained),
        "gradients": gradients,
        "optimizer state": _optimizer_bytes(spec.config.optimizer, trained),
    }
    compares = "kl" in parts and needs_of(parts["kl"], KLNeeds).reference
    if "preference" in parts:
        compares = needs_of(parts["preference"], PreferenceNeeds).reference
    if compares:
        sizes["reference"] = _frozen_bytes(parts["reference"], policy)
    if "teacher" in parts:
        sizes["teacher"] = _frozen_bytes(parts["teacher"], policy)
    share = 0 if devices.offloads else 1 / devices.shards
    held = {name: size * share for name, size in sizes.items()}
    return held | {"gradient buckets": gradients * devices.has_buckets}


def _frozen_bytes(part: Any, policy: Policy) -> int:
    """Return the bytes of a reference or teacher; 0 if it is the policy itself or on a server."""
    copies = needs_of(part, FrozenModelNeeds).copies_policy
    model = policy if copies else part(policy)
    if model is None or (model is policy and not copies):
        return 0
    # of a copy under an adapter, only the adapter is copied
    return _num_bytes([model], trained=model.base_fingerprint is not None)


def _optimizer_bytes(optimizer: DictConfig, trained: Sequence[nn.Module]) -> float:
    """Return the bytes of optimizer state."""
    all_bytes = _num_bytes(trained, trained=True)
    hidden = [nn.ParameterList(hidden_matrices(network)) for network in trained]
    hidden_bytes = _num_bytes(hidden, trained=True)
    other_bytes = all_bytes - hidden_bytes
    return hidden_bytes * _copies(optimizer, True) + other_bytes * _copies(optimizer, False)


def _copies(optimizer: DictConfig, hidden: bool) -> float:
    """Return the bytes of optimizer state per byte of a trained weight, counted on one matrix.
    `hidden`: it is a hidden matrix."""
    create = instantiate(optimizer, "optimizer", partial=True)
    with torch.device("cpu"):
        weight = nn.Parameter(torch.zeros(256, 256))  # not so small that it keeps 32 bits
        weight.grad = torch.zeros_like(weight)
        made = create([{"params": [weight], "hidden": hidden}])
        made.step()
    state = [x for x in made.state[weight].values() if torch.is_tensor(x)]
    # scales of quantized moments are small
    return sum(x.nbytes for x in state if x.shape == weight.shape) / weight.nbytes


def _num_bytes(networks: Sequence[nn.Module], *, trained: bool = False) -> int:
    """Return the bytes of weights. `trained`: only those with a gradient."""
    unique = {id(x): x for network in networks for x in network.parameters()}
    return sum(x.numel() * x.itemsize for x in unique.values() if x.requires_grad or not trained)


def report(spec: RunSpec, settings: PlanSettings) -> str:
    """Return the table of parts and stages, the peak, and what to type to lower it."""
    devices = read_devices(spec.config.trainer, settings.num_gpus)
    with torch.device("meta"):
        policy: Policy = spec.adapter(instantiate(spec.config.policy, "policy")())
    precision = str(spec.config.trainer.get("precision"))
    if precision == "auto":
        precision = choose(policy, "cuda", is_fast=True).name
    stages = predict(spec, policy, devices, precision)
    totals = {stage: sum(parts.values()) for stage, parts in stages.items()}
    rows = {"GiB on a device": list(stages)}
    for part in {part: None for stage in stages.values() for part in stage}:
        rows[part] = [f"{stage.get(part, 0) / GIB:.2f}" for stage in stages.values()]
    rows["all"] = [f"{total / GIB:.2f}" for total in totals.values()]
    lines = [f"{name:<18}" + "".join(f"{x:>10}" for x in cells) for name, cells in rows.items()]
    peak = max(totals, key=lambda stage: totals[stage])
    usable = USABLE * settings.gpu_gib
    verdict = "fits" if totals[peak] <= usable * GIB else "does not fit"
    shards = "trainer.strategy.offload=true" if devices.shards > 1 else "trainer=fsdp"
    lines += [
        "",
        f"precision: {precision}",
        f"peak: {totals[peak] / GIB:.2f} GiB in {peak}; {verdict} {devices.ranks} x "
        f"{settings.gpu_gib:g} GiB, of which {usable:g} GiB are usable",
        f"to lower it, type batch.token_budget={spec.batch.padded_budget // 2}, a smaller "
        f"rollout.batch_size=N, or {shards}",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    command(lambda: report(*compose_run(arguments, PlanSettings)))


if __name__ == "__main__":
    main(sys.argv[1:])
