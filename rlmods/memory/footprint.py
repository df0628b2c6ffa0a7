"""What a run holds on a device, part by part and stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from rlmods.algo import Learner
from rlmods.config.plan import Plan
from rlmods.distributed import sharding
from rlmods.memory import rehearsal
from rlmods.memory.allocations import Peak, retype
from rlmods.memory.devices import Devices
from rlmods.memory.workload import Rows, workload
from rlmods.reward.neural import RewardModelBase

BYTES_PER_SLOT = 64
"""Of a token in rows: its id, up to eight numbers in float32 and what selecting rows copies of them."""
PREFETCHED = 2
"""Blocks that FSDP2 gathers at once: one is computed with, the next one is on its way."""


@dataclass(frozen=True)
class Footprint:
    """Bytes on the device by stage and part; on the machine, where that is another memory, by stage: of the first rank, which has most."""

    device: Mapping[str, Mapping[str, int]]
    host: Mapping[str, int]

    def total(self, stage: str) -> int:
        return sum(self.device[stage].values())

    @property
    def decides(self) -> str:
        """The stage that needs most. A peak is a maximum over stages."""
        return max(self.device, key=self.total)

    @property
    def peak(self) -> int:
        return self.total(self.decides)


def footprint(plan: Plan, learner: Learner, devices: Devices, base: int = 0) -> Footprint:
    """Of a rank that runs the plan.

    Args:
        learner: its networks are on the meta device.
        base: bytes of interpreter and libraries, where the device is the CPU.
    """
    networks = list(learner.networks.values())
    if devices.own is not None:
        for network in networks:
            retype(network, devices.own)
    state, temporary = rehearsal.optimizer_step(learner, foreach=not devices.on_cpu and not devices.sharded)
    held = persistent(learner, devices, state.total)
    off = persistent(learner, devices, state.total, offloaded=True)
    weights, reference = size(networks), size(learner.reference.networks)
    # Of shards, the first rank brings a checkpoint together in its memory; nothing else is copied as a whole to be written.
    whole = Peak.of(*(_bytes(x) for x in _tensors(networks) if x.requires_grad)) if devices.sharded and devices.one_file else None
    stages = _stages(plan, learner, devices, temporary)
    rows = workload(plan, learner, devices.ranks).iteration
    held["rows"] = rows.num * rows.length * BYTES_PER_SLOT
    if not devices.on_cpu:
        host = {"loading": weights + reference, "checkpoint": (0 if whole is None else (whole + state).total) + sum(off.values())}
        return Footprint({stage: _with(held, parts) for stage, parts in stages.items()}, host)
    if whole is not None:
        stages["checkpoint"] = {"gathered weights": whole, "gathered optimizer state": state}
    kept = max(sum(x.small for x in parts.values()) for parts in stages.values())
    found = {"loading": {"interpreter and libraries": base, "weights": weights, "reference": reference}}
    for stage, parts in stages.items():
        freed = kept - sum(x.small for x in parts.values())
        shown = {name: Peak(x.small + x.large) for name, x in parts.items()}
        found[stage] = {"interpreter and libraries": base} | _with(held, shown) | {"kept by the allocator": freed}
    return Footprint(found, {})


def persistent(learner: Learner, devices: Devices, state: int, *, offloaded: bool = False) -> dict[str, int]:
    """What a rank holds all along. `state`: bytes of the optimizer's, of whole networks. `offloaded`: what it holds on the CPU instead."""
    networks, reference = list(learner.networks.values()), learner.reference.networks
    trained, shards = size(networks, trained=True), devices.shards
    cut = {
        "weights": size(networks) // shards,
        "gradients": trained // shards,
        "optimizer state": state // shards,
        "reference": size(reference) // shards,
    }
    whole = {"gradient buckets": trained * devices.buckets, "reward models": size(x for judge in _judges(learner) for x in judge.networks)}
    if offloaded:
        return cut if devices.offload else {}
    return (dict.fromkeys(cut, 0) if devices.offload else cut) | whole


def size(networks: Iterable[nn.Module], dtype: torch.dtype | None = None, *, trained: bool = False) -> int:
    """Bytes of the networks' weights and buffers, shared ones once; in another type if one is given. `trained`: of trained weights only."""
    return sum(_bytes(x, dtype) for x in _tensors(networks) if x.requires_grad or not trained)


def _stages(plan: Plan, learner: Learner, devices: Devices, temporary: Peak) -> dict[str, dict[str, Peak]]:
    """What each stage of an iteration holds beside what is held all along."""
    work = workload(plan, learner, devices.ranks)
    networks, policy = list(learner.networks.values()), getattr(learner, "policy", None)
    trained = Peak.of(*(_bytes(x) for x in _tensors(networks) if x.requires_grad))
    blocks = _at_most(_gathered(network, devices.gathered) for network in networks) if devices.sharded else Peak()
    gradients = _at_most(_unreduced(network, devices.gathered) for network in networks) if devices.sharded else Peak()
    everything = Peak.of(*(_bytes(x, devices.gathered) for x in _tensors([policy]))) if policy is not None and devices.sharded else Peak()
    if devices.gathered is not None:  # it is what is computed with
        for network in (*networks, *learner.reference.networks):
            retype(network, devices.gathered)
    stages: dict[str, dict[str, Peak]] = {}
    for stage, asked in work.decoded.items():
        assert policy is not None  # who samples has one
        found, cache = rehearsal.decoding(policy, learner.rollout, asked, autocast=devices.autocast), _cache(policy, asked.rows, devices)
        stages[stage] = {"gathered weights": everything, "key-value cache": cache, "activations": found - cache}
    if policy is not None and (learner.reference or plan.algorithm.samples_responses):
        found = rehearsal.scoring(policy, work.micro, autocast=devices.autocast)
        stages["scoring"] = {"gathered weights": blocks, "activations": found}
    # One microbatch alone makes the gradients while its activations go; on the CPU, in new places all the same.
    alone = work.step <= work.micro.num and not devices.sharded and not devices.on_cpu
    found = rehearsal.update(learner, work.micro, autocast=devices.autocast, keep_gradients=alone)
    found = found - trained if alone else found
    stages["update"] = {"gathered weights": blocks, "gathered gradients": gradients, "activations": found}
    share = Peak(*(x // devices.shards for x in (temporary.total, temporary.small, temporary.large)))
    stages["optimizer step"] = {} if devices.offload else {"activations": share}
    return stages


def _with(held: Mapping[str, int], parts: Mapping[str, Peak]) -> dict[str, int]:
    return {**held, **{name: x.total for name, x in parts.items()}}


def _gathered(network: nn.Module, dtype: torch.dtype | None) -> Peak:
    """Weights that FSDP2 has brought together while it runs through a network: those outside of blocks, and blocks."""
    root, block = _cut(network)
    return Peak.of(sum(_bytes(x, dtype) for x in root), *[sum(_bytes(x, dtype) for x in block)] * PREFETCHED)


def _unreduced(network: nn.Module, dtype: torch.dtype | None) -> Peak:
    """Whole gradients, of the weights outside of blocks all along backward and of a block, and what is sent of them in float32."""
    root, block = ([x for x in part if x.requires_grad] for part in _cut(network))
    sent = max(sum(_bytes(x, torch.float32) for x in part) for part in (root, block))
    return Peak.of(sum(_bytes(x, dtype) for x in root), sum(_bytes(x, dtype) for x in block), sent)


def _cut(network: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights outside of blocks, and of the largest block."""
    blocks = [list(_tensors([block])) for block in sharding.blocks(network)]
    inside = {id(x) for block in blocks for x in block}
    return [x for x in _tensors([network]) if id(x) not in inside], max(blocks, key=lambda block: sum(map(_bytes, block)), default=[])


def _cache(policy: Any, rows: Rows, devices: Devices) -> Peak:
    """Keys and values of every row, layer and head."""
    config = policy.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    features = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = devices.autocast or policy.model.dtype
    return Peak.of(*[rows.num * rows.length * heads * features * dtype.itemsize] * (2 * config.num_hidden_layers))


def _at_most(peaks: Iterable[Peak]) -> Peak:
    return max(peaks, key=lambda peak: peak.total)


def _tensors(networks: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for network in networks:
        for x in (*network.parameters(), *network.buffers()):
            if id(x) not in seen:
                seen.add(id(x))
                yield x


def _bytes(x: torch.Tensor, dtype: torch.dtype | None = None) -> int:
    return x.numel() * (dtype or x.dtype).itemsize


def _judges(learner: Learner) -> list[RewardModelBase]:
    """Rewards and judges that read with a network of their own."""
    found: list[RewardModelBase] = []

    def visit(x: Any) -> None:
        if isinstance(x, RewardModelBase):
            found.append(x)
        elif isinstance(x, Mapping):
            for value in x.values():
                visit(value)
        elif isinstance(x, list | tuple):
            for value in x:
                visit(value)
        elif is_dataclass(x) and not isinstance(x, type):
            visit([getattr(x, f.name) for f in fields(x)])
            visit(getattr(x, "scorer", None))

    visit([learner.reward, getattr(learner, "judge", None)])
    return found
