"""How the ranks share the work: Lightning's strategies, as `trainer.strategy` names them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlmods.distributed import sharding
from rlmods.types import UserError


class DDP(DDPStrategy):
    """A whole copy of every network on each rank; gradients are averaged."""

    def __init__(self, timeout_s: float = 1800.0, backend: str | None = None) -> None:
        """
        Args:
            timeout_s: how long a rank waits for the others before it gives up.
            backend: of collectives; None: nccl on GPUs, gloo on CPUs.
        """
        super().__init__(process_group_backend=backend, timeout=timedelta(seconds=timeout_s))


class FSDP2(ModelParallelStrategy):
    """One shard of every network a rank: `Learner.configure_model` has them cut, block by block.

    A checkpoint is one file of whole tensors that any strategy and any number of ranks go on from, or, with `sharded_checkpoints`, a folder
    to which each rank writes its own (any number of ranks of this strategy goes on from it).
    """

    def __init__(
        self,
        replicas: int = 1,
        offload: bool = False,
        sharded_checkpoints: bool = False,
        timeout_s: float = 1800.0,
        backend: str | None = None,
    ) -> None:
        """
        Args:
            replicas: hybrid sharding: copies of the networks, each sharded over its part of the ranks; the number of nodes keeps the
                gathering of weights within a node. 1: one copy over all ranks.
            offload: keep shards, gradients and optimizer state on the CPU.
            sharded_checkpoints: each rank writes its own shards.
            timeout_s: how long a rank waits for the others before it gives up.
            backend: of collectives; None: nccl on GPUs (beside gloo with `offload`), gloo on CPUs.
        """
        backend = backend or ("cpu:gloo,cuda:nccl" if offload and torch.cuda.is_available() else None)
        options = {"process_group_backend": backend, "timeout": timedelta(seconds=timeout_s)}
        super().__init__(save_distributed_checkpoint=sharded_checkpoints, **options)  # type: ignore[arg-type]
        self.replicas, self.offload = replicas, offload
        self.shards: DeviceMesh | None = None

    def setup_environment(self) -> None:
        """
        Raises:
            UserError: the replicas cannot share the ranks evenly.
        """
        ranks = self.num_nodes * self.num_processes
        check_replicas(self.replicas, ranks)
        self._data_parallel_size, self._tensor_parallel_size = ranks, 1
        super().setup_environment()
        shape, names = ((ranks,), ("shard",)) if self.replicas == 1 else ((self.replicas, ranks // self.replicas), ("replicate", "shard"))
        self.shards = init_device_mesh(self.root_device.type, shape, mesh_dim_names=names)

    def shard(self, network: nn.Module) -> None:
        """Cut it, for this strategy's ranks."""
        assert self.shards is not None
        mixed = self.precision_plugin.precision == "bf16-mixed"
        sharding.shard(network, self.shards, dtype=torch.bfloat16 if mixed else None, offload=self.offload)

    def model_to_device(self) -> None:
        if self.offload:  # cutting has moved what belongs on the device
            assert self.lightning_module is not None
            self.lightning_module._device = self.root_device
        else:
            super().model_to_device()

    # Checkpoints of whole tensors

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return super().lightning_module_state_dict() if self._save_distributed_checkpoint else sharding.full_state(self.model)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if self._save_distributed_checkpoint:
            return super().optimizer_state(optimizer)
        return sharding.optimizer_state(getattr(optimizer, "_optimizer", optimizer))

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        path = Path(self.broadcast(checkpoint_path))
        if path.is_dir():
            return super().load_checkpoint(path, weights_only) | {"optimizer_states": []}
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=weights_only, mmap=True)
        return checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        if "state_dict" in checkpoint:  # of a folder it is loaded already
            assert self.model is not None
            sharding.load_full_state(self.model, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):  # none of a folder
            sharding.load_optimizer_state(optimizer, state)


def check_replicas(replicas: int, ranks: int) -> None:
    """
    Raises:
        UserError: the replicas cannot share the ranks evenly.
    """
    if replicas < 1 or ranks % replicas:
        fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        raise UserError(f"trainer.strategy.replicas={replicas} does not divide {ranks} ranks: type one of {fits}")


def check_settings(strategy: Any) -> None:
    """
    Raises:
        UserError: the configuration names FSDP1.
    """
    named = strategy if isinstance(strategy, str) else (strategy or {}).get("_target_", "")
    if named.startswith("fsdp") or named.endswith("FSDPStrategy"):
        raise UserError("trainer.strategy is FSDP1, which knows one forward and one backward a step: type trainer=fsdp (FSDP2)")


def check(strategy: Any) -> None:
    """
    Raises:
        UserError: the learners cannot run on it.
    """
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy | ModelParallelStrategy):
        raise UserError(f"trainer.strategy: {type(strategy).__name__} is not supported: type trainer=ddp or trainer=fsdp")
    if getattr(strategy, "_start_method", "popen") != "popen":
        raise UserError("trainer.strategy starts ranks by fork or spawn, which a run cannot be sent through: type trainer=ddp")


def check_resume(strategy: Any, checkpoint: Path | None) -> None:
    """
    Raises:
        UserError: the checkpoint is in shards, and the strategy reads none.
    """
    if checkpoint is not None and checkpoint.is_dir() and not isinstance(strategy, ModelParallelStrategy):
        raise UserError(f"{checkpoint} is in shards: type trainer=fsdp, with trainer.devices=1 or more")


def check_launch(ranks: int) -> None:
    """
    Raises:
        UserError: a launcher such as torchrun has started another number of processes: each would train by itself, or wait for ever.
    """
    started = int(os.environ.get("WORLD_SIZE", ranks))
    if started != ranks:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", started))
        nodes = f" trainer.num_nodes={started // local}" if started > local else ""
        advice = f"type trainer=ddp or trainer=fsdp, with trainer.devices={local}{nodes}"
        raise UserError(f"{started} processes were started, and this trainer has {ranks}: {advice}")
