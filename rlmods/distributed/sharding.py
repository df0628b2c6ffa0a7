"""Sharding of networks over ranks (FSDP2), gathering of their weights, and loading of full tensors
into shards.

Every rank calls each function. Networks that are not sharded use the ordinary path.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.deferred import is_deferred


def shard(
    network: nn.Module, mesh: DeviceMesh, *, dtype: torch.dtype | None = None, offload: bool = False
) -> None:
    """Shard each transformer block, and the remaining weights, over the ranks of `mesh`.

    The weights of a block are gathered before it runs and freed afterwards. Gradients are averaged
    over ranks in float32.

    Args:
        mesh: one dimension, or two: replicas, and the ranks that share one replica.
        dtype: type of the gathered weights; None keeps their own.
        offload: keep shards, gradients and optimizer state on the CPU.
    """
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
    }
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        index = f":{torch.cuda.current_device()}" if mesh.device_type == "cuda" else ""
        device: Any = torch.device(f"{mesh.device_type}{index}")
        network.runs_on = device
    parts = blocks(network)
    if not parts:  # a value head, which computes in float32
        options["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in parts:
        fully_shard(block, **options)
    # Also the root: torch keeps its gathered weights after a forward without backward, and an
    # update would then not reach them.
    fully_shard(network, reshard_after_forward=True, **options)
    for name in getattr(network, "forward_methods", ()):
        register_fsdp_forward_method(network, name)


def blocks(network: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks of a network, by the `_no_split_modules` of transformers; empty
    for other networks."""
    names: set[str] = set()
    for module in network.modules():
        names.update(getattr(module, "_no_split_modules", None) or ())
    return [module for module in network.modules() if type(module).__name__ in names]


def device_of(network: nn.Module) -> torch.device:
    """Return the device on which the network's forward runs. With CPU offload its weights are
    elsewhere. The CPU for a deferred network, until it is sharded."""
    device: Any = getattr(network, "runs_on", None)
    if isinstance(device, torch.device):
        return device
    device = next(network.parameters()).device
    return torch.device("cpu") if device.type == "meta" and is_deferred(network) else device


def is_sharded(network: nn.Module) -> bool:
    """Return True if the network is sharded."""
    return isinstance(network, FSDPModule)


@contextmanager
def unsharded(network: Any) -> Iterator[None]:
    """Gather all weights of a sharded policy on every rank, so that inside the block no rank waits
    for another."""
    if not isinstance(network, FSDPModule):
        yield
        return
    network.set_reshard_after_forward(False)
    try:
        cast(Any, network).gather()
        yield
    finally:
        network.set_reshard_after_forward(True)
        for part in cast(nn.Module, network).modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def full_tensor(x: Tensor) -> Tensor:
    """Return the full tensor of a sharded one, on every rank."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def to_full(x: Any) -> Any:
    """Replace sharded tensors in nested mappings and lists by full tensors on the CPU of rank 0.
    Other ranks keep their shards."""
    if isinstance(x, DTensor):
        tensor = full_tensor(x)
        return tensor.cpu() if is_first_rank() else x
    if isinstance(x, Mapping):
        return {key: to_full(value) for key, value in x.items()}
    return list(map(to_full, x)) if isinstance(x, list | tuple) else x


def full_state(network: nn.Module) -> dict[str, Tensor]:
    """Return `network.state_dict()` with full tensors on rank 0; tied weights stay tied. On other
    ranks the result is not usable."""
    seen: dict[int, Tensor] = {}
    state = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = to_full(tensor.detach())
        state[name] = seen[id(tensor)]
    return state


class FullState(Mapping[str, Tensor]):
    """`network.state_dict()` with full tensors, each gathered when it is read, so that a sharded
    network is never whole on one device.

    Every rank reads the same names in the same order. Tied weights are listed under each of their
    names."""

    def __init__(self, network: nn.Module) -> None:
        self._state = network.state_dict()

    def __getitem__(self, name: str) -> Tensor:
        return full_tensor(self._state[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def shard_like(x: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of the full tensor `x` if `like` is sharded, else `x`. Every rank
    has the full tensor."""
    if not isinstance(like, DTensor):
        return x
    return distribute_tensor(
        x.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def load_full_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load full tensors with `network.load_state_dict`; every rank has them."""
    current = network.state_dict()
    shards = {}
    for name, tensor in state.items():
        shards[name] = shard_like(tensor, current[name]) if name in current else tensor
    network.load_state_dict(shards)
    for part in network.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return `optimizer.state_dict()` with full tensors on rank 0."""
    state: dict[str, Any] = to_full(optimizer.state_dict())
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load full tensors with `optimizer.load_state_dict`; every rank has them. A tensor of a
    weight's shape is sharded like the weight."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [index for group in state["param_groups"] for index in group["params"]]
    like = dict(zip(indices, weights, strict=True))
    sharded: dict[int, dict[str, Any]] = {}
    for index, values in state["state"].items():
        sharded[index] = {}
        for name, value in values.items():
            has_shape = isinstance(value, Tensor) and value.shape == like[index].shape
            sharded[index][name] = shard_like(value, like[index]) if has_shape else value
    optimizer.load_state_dict({"state": sharded, "param_groups": state["param_groups"]})
