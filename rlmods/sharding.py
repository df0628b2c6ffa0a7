"""Networks whose weights lie in shards on many ranks (FSDP2): made, made whole for a while, read out and filled.

Every function is for every rank: the ranks wait for each other. On networks that are not sharded they do the plain thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")


def shard(network: nn.Module, mesh: DeviceMesh, *, dtype: torch.dtype | None = None, offload: bool = False) -> None:
    """Cut the weights of each transformer block, and of the rest, into one piece a rank.

    A block is gathered when it runs and freed when it has run; gradients are averaged over ranks in float32.

    Args:
        mesh: one dimension, or two: replicas, and the ranks that share one.
        dtype: of gathered weights; None: as they are.
        offload: keep the shards, their gradients and the optimizer's state on the CPU.
    """
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        network.runs_on = torch.device(mesh.device_type, torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")  # type: ignore[assignment]
    if not (parts := blocks(network)):  # a head alone, which computes in float32
        options["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in parts:
        fully_shard(block, **options)
    # The root's weights too: torch would keep them gathered after a forward without backward, and an update would not reach them.
    fully_shard(network, reshard_after_forward=True, **options)
    for name in getattr(network, "forward_methods", ()):
        register_fsdp_forward_method(network, name)


def blocks(network: nn.Module) -> list[nn.Module]:
    """The parts that transformers says belong together: one a layer. None in a network that is no transformer."""
    names = {name for module in network.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in network.modules() if type(module).__name__ in names]


def device_of(network: nn.Module) -> torch.device:
    """Where its forward runs; with offload its weights lie elsewhere."""
    found: Any = getattr(network, "runs_on", None)
    return found if isinstance(found, torch.device) else next(network.parameters()).device


def is_sharded(network: nn.Module) -> bool:
    return isinstance(network, FSDPModule)


@contextmanager
def whole(network: Any) -> Iterator[None]:
    """All weights of a sharded policy on every rank: inside, no rank waits for another however much it samples."""
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


def is_first() -> bool:
    """Whether this is the rank that writes."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def level(network: nn.Module) -> None:
    """The first rank's weights on every rank, where each has trained a whole copy by itself."""
    if dist.is_available() and dist.is_initialized():
        for x in network.state_dict().values():
            dist.broadcast(x, 0)


def gathered(x: T) -> list[T]:
    """What every rank has, by rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return [x]
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    return parts


def whole_tensor(x: Tensor) -> Tensor:
    """On every rank."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def full(x: Any) -> Any:
    """The same nested mappings and lists with whole tensors, on the CPU of the first rank; the others get what they had in their place."""
    if isinstance(x, DTensor):
        tensor = whole_tensor(x)
        return tensor.cpu() if is_first() else x
    if isinstance(x, Mapping):
        return {key: full(value) for key, value in x.items()}
    return [full(value) for value in x] if isinstance(x, list | tuple) else x


def full_state(network: nn.Module) -> dict[str, Tensor]:
    """`network.state_dict()` of whole tensors on the first rank; weights that share memory still do. The others' is of no use."""
    seen: dict[int, Tensor] = {}
    state = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = full(tensor.detach())
        state[name] = seen[id(tensor)]
    return state


def cut(x: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a whole tensor, where `like` has one; every rank has the whole."""
    if not isinstance(like, DTensor):
        return x
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def load_full_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """`network.load_state_dict` of whole tensors; every rank has them all."""
    mine = network.state_dict()
    network.load_state_dict({name: cut(tensor, mine[name]) if name in mine else tensor for name, tensor in state.items()})
    for part in network.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`optimizer.state_dict()` of whole tensors on the first rank."""
    state: dict[str, Any] = full(optimizer.state_dict())
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict` of whole tensors; every rank has them all. A tensor of a weight's shape is cut as the weight is."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    like = dict(zip(places, weights, strict=True))
    found = {
        place: {k: cut(v, like[place]) if isinstance(v, Tensor) and v.shape == like[place].shape else v for k, v in values.items()}
        for place, values in state["state"].items()
    }
    optimizer.load_state_dict({"state": found, "param_groups": state["param_groups"]})
