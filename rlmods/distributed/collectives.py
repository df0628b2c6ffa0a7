"""Collective operations over the ranks of a run. Every rank calls them; on a single rank they
return their input."""

import os
from typing import TypeVar

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


class Ranks:
    """Rank, world size, device and reductions of a LightningModule; a single rank before a Trainer
    is attached."""

    def __init__(self, module: L.LightningModule) -> None:
        self._module = module

    @property
    def rank(self) -> int:
        """Index of this rank."""
        return self._module.global_rank

    @property
    def world_size(self) -> int:
        """Number of ranks; 1 before a Trainer is attached."""
        return 1 if self._module._trainer is None else self._module.trainer.world_size

    @property
    def device(self) -> torch.device:
        """Device of this rank."""
        return self._module.device

    def reduce_count(self, count: int, op: str = "sum") -> int:
        """Reduce a number that the host knows; on a single rank the device has no part in it."""
        return count if self.world_size == 1 else int(self.reduce(torch.tensor(count), op))

    def reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduce `x` over ranks with `op` ("sum", "min" or "max"). Returns float64, so that counts
        stay exact."""
        x = x.to(self.device, torch.float64)
        if self.world_size == 1:
            return x
        # the strategy writes the result into its argument
        return self._module.trainer.strategy.reduce(x.clone(), reduce_op=op)


def is_first_rank() -> bool:
    """Return True on the rank that writes files. Before the process group exists, the launcher's
    environment variables decide."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return all(
        os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    )


def local_rank() -> int:
    """Return the index of this process on its machine, as its launcher says: Lightning, torchrun or
    SLURM."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def is_lost_connection(error: BaseException) -> bool:
    """Return True for the error of a collective whose other ranks have ended, or have not joined it
    within the time limit."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def all_gather(x: T) -> list[T]:
    """Return the picklable object `x` of every rank, in order of rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return [x]
    gathered: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, x)
    return gathered  # type: ignore[return-value]


def broadcast_parameters(network: nn.Module) -> None:
    """Broadcast the parameters and buffers of rank 0."""
    if dist.is_available() and dist.is_initialized():
        for x in network.state_dict().values():
            dist.broadcast(x, 0)
