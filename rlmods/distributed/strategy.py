"""Lightning strategies for several ranks (DDP, FSDP2) and checks of `trainer.strategy`."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlmods.distributed import deferred, sharded_checkpoint, sharding
from rlmods.distributed.trainer import MIXED
from rlmods.errors import UserError

META_FILE = "meta.pt"
"""File of a sharded checkpoint with everything but weights and optimizers."""


class DDP(DDPStrategy):
    """Data parallelism: a full copy of every network on each rank, gradients averaged over
    ranks."""

    def __init__(self, timeout_s: float | None = 1800.0, backend: str | None = None) -> None:
        """
        Args:
            timeout_s: seconds that a rank waits for the others in a collective operation; None:
            torch's own limit.
            backend: backend of collectives; None: nccl on GPUs, gloo on CPUs.
        """
        super().__init__(process_group_backend=backend, timeout=_time_limit(timeout_s))

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        # the first rank has checked its bytes
        return super().load_checkpoint(self.broadcast(checkpoint_path), weights_only)


SAVED_BYTES = 12
"""Bytes of a trained parameter in a checkpoint: its value and two moments in float32."""
SHARDED_FROM_BYTES = 16 * 2**30
"""Size of a checkpoint from which on each rank writes its own shards. One file would be gathered
and written by the first rank, while the others wait."""


class FSDP2(ModelParallelStrategy):
    """Fully sharded data parallelism: each rank holds a shard of every network, sharded block by
    block in `Learner.configure_model`.

    A checkpoint is one file with full tensors, from which any strategy and number of ranks can
    resume. With `sharded_checkpoints` it is a folder to which each rank writes its own shards, from
    which any number of ranks of this strategy can resume."""

    def __init__(
        self,
        replicas: int = 1,
        offload: bool = False,
        sharded_checkpoints: bool | None = None,
        timeout_s: float | None = 1800.0,
        backend: str | None = None,
    ) -> None:
        """
        Args:
            replicas: number of copies of the networks, each sharded over its part of the ranks
            (hybrid sharding). With the number of nodes as value, weights are gathered within a
            node. 1: one copy over all ranks.
            offload: keep shards, gradients and optimizer state on the CPU.
            sharded_checkpoints: each rank writes its own shards; None: above `SHARDED_FROM_BYTES`.
            timeout_s: seconds that a rank waits for the others in a collective operation; None:
            torch's own limit.
            backend: backend of collectives; None: nccl on GPUs (with `offload` also gloo), gloo on
            CPUs.
        """
        if backend is None and offload and torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
        super().__init__(
            save_distributed_checkpoint=bool(sharded_checkpoints),
            process_group_backend=backend,
            timeout=_time_limit(timeout_s),
        )
        self.replicas = replicas
        self.offload = offload
        self.sharded_checkpoints = sharded_checkpoints
        self.shards: DeviceMesh | None = None
        self._num_trained = 0

    def setup_environment(self) -> None:
        """
        Raises:
            UserError: the replicas cannot share the ranks evenly.
        """
        ranks = self.num_nodes * self.num_processes
        check_replicas(self.replicas, ranks)
        self._data_parallel_size, self._tensor_parallel_size = ranks, 1
        super().setup_environment()
        sizes = {"shard": ranks // self.replicas}
        if self.replicas > 1:
            sizes = {"replicate": self.replicas, **sizes}
        self.shards = init_device_mesh(
            self.root_device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )

    def shard(self, network: nn.Module) -> None:
        """Shard a network over the ranks. Of a deferred network, this rank reads its shards."""
        assert self.shards is not None
        name = MIXED.get(str(self.precision_plugin.precision))
        dtype = None if name is None else getattr(torch, name)
        sharding.shard(network, self.shards, dtype=dtype, offload=self.offload)
        deferred.read(network, "cpu" if self.offload else self.root_device)
        self._num_trained += sum(x.numel() for x in network.parameters() if x.requires_grad)
        if self.sharded_checkpoints is None:
            num_bytes = self._num_trained * SAVED_BYTES
            self._save_distributed_checkpoint = num_bytes >= SHARDED_FROM_BYTES

    def model_to_device(self) -> None:
        if self.offload:  # sharding has already placed every tensor
            assert self.lightning_module is not None
            self.lightning_module._device = self.root_device
        else:
            super().model_to_device()

    # Checkpoints with full tensors

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        if self._save_distributed_checkpoint:
            return super().lightning_module_state_dict()
        return sharding.full_state(self.model)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if self._save_distributed_checkpoint:
            return super().optimizer_state(optimizer)
        return sharding.optimizer_state(getattr(optimizer, "_optimizer", optimizer))

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        path = Path(self.broadcast(checkpoint_path))
        if path.is_dir():
            return self._load_folder(path)
        checkpoint: dict[str, Any] = torch.load(
            path, map_location="cpu", weights_only=weights_only, mmap=True
        )
        return checkpoint

    def _load_folder(self, path: Path) -> dict[str, Any]:
        """Load the weights and the state of the optimizers from a sharded checkpoint, and return
        the rest of it.

        Lightning's own method executes what the checkpoint holds
        (`rlmods.distributed.sharded_checkpoint`)."""
        assert self.model is not None
        assert self.lightning_module is not None
        weights = {"state_dict": get_model_state_dict(self.model)}
        sharded_checkpoint.load(weights, path)
        self.model.load_state_dict(
            weights["state_dict"], strict=self.lightning_module.strict_loading
        )
        saved = sharded_checkpoint.read_metadata(path).state_dict_metadata
        parents = {key.rpartition(".")[0] for key in saved}
        for i, optimizer in enumerate(self.optimizers):
            name = f"optimizer_{i}"
            state: Any = get_optimizer_state_dict(self.model, optimizer)
            # parameters without a step yet, as the policy's while its critic is pretrained
            for parameter in list(state["state"]):
                if f"{name}.state.{parameter}" not in parents:
                    del state["state"][parameter]
            sharded_checkpoint.load({name: state}, path)
            options = StateDictOptions(cpu_offload=True, strict=False)
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=state, options=options)
        rest: dict[str, Any] = torch.load(path / META_FILE, map_location="cpu", weights_only=True)
        return rest | {"optimizer_states": []}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        if "state_dict" in checkpoint:  # the weights of a folder are loaded already
            assert self.model is not None
            sharding.load_full_state(self.model, checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        # empty for a folder
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):
            sharding.load_optimizer_state(optimizer, state)


def _time_limit(seconds: float | None) -> timedelta | None:
    return default_pg_timeout if seconds is None else timedelta(seconds=seconds)


def check_replicas(replicas: int, ranks: int) -> None:
    """Check that the replicas divide the ranks.

    Raises:
        UserError: the replicas cannot share the ranks evenly.
    """
    if replicas < 1 or ranks % replicas:
        fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        raise UserError(
            f"trainer.strategy.replicas={replicas} does not divide {ranks} ranks: type one of "
            f"{fits}"
        )


def check_settings(strategy: Any) -> None:
    """Check `trainer.strategy` in the configuration.

    Raises:
        UserError: it is FSDP1.
    """
    name = strategy if isinstance(strategy, str) else (strategy or {}).get("_target_", "")
    if name.startswith("fsdp") or name.endswith("FSDPStrategy"):
        raise UserError(
            "trainer.strategy is FSDP1, which supports only one forward and backward per "
            "step: type trainer=fsdp (FSDP2)"
        )


def shards(strategy: Any) -> bool:
    """Return True if `trainer.strategy` in the configuration shards networks."""
    target = "" if isinstance(strategy, str) else (strategy or {}).get("_target_", "")
    return bool(target) and issubclass(get_class(target), FSDP2)


def check(strategy: Any) -> None:
    """Check that the learners support a strategy.

    Raises:
        UserError: they do not.
    """
    is_known = isinstance(strategy, SingleDeviceStrategy | DDPStrategy | ModelParallelStrategy)
    # ranks that are forked or spawned need a run that can be pickled
    is_forked = isinstance(strategy, DDPStrategy) and strategy._start_method != "popen"
    if not is_known or is_forked:
        raise UserError(
            f"trainer.strategy: {type(strategy).__name__} is not supported, nor are ranks by fork "
            "or spawn: type trainer=ddp or trainer=fsdp"
        )


def check_resume(strategy: Any, checkpoint: Path | None) -> None:
    """Check that the strategy can load the checkpoint.

    Raises:
        UserError: the checkpoint is sharded and the strategy is not.
    """
    is_sharded = checkpoint is not None and checkpoint.is_dir()
    if is_sharded and not isinstance(strategy, ModelParallelStrategy):
        raise UserError(
            f"{checkpoint} is sharded: type trainer=fsdp, with trainer.devices=1 or more"
        )


def check_launch(ranks: int) -> None:
    """Check that a launcher such as torchrun has started as many processes as the Trainer has
    ranks.

    Raises:
        UserError: it has not; the processes would train separately or wait for each other forever.
    """
    num_started = int(os.environ.get("WORLD_SIZE", ranks))
    if num_started != ranks:
        num_local = int(os.environ.get("LOCAL_WORLD_SIZE", num_started))
        nodes = f" trainer.num_nodes={num_started // num_local}" if num_started > num_local else ""
        advice = f"type trainer=ddp or trainer=fsdp, with trainer.devices={num_local}{nodes}"
        raise UserError(
            f"{num_started} processes were started, but this trainer has {ranks}: {advice}"
        )
