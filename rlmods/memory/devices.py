"""What the networks of a run are spread over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hydra.utils import get_class
from omegaconf import DictConfig

from rlmods.distributed.strategy import DDP, FSDP2, check_replicas
from rlmods.types import UserError


@dataclass(frozen=True)
class Devices:
    """As a trainer's configuration has them."""

    ranks: int = 1
    replicas: int | None = None
    """Copies of the networks, each in shards over its part of the ranks; None: every rank has a whole one."""
    buckets: bool = False
    """DDP sends gradients from a second copy of them."""
    offload: bool = False
    """Shards, gradients and the optimizer's state are on the CPU."""
    one_file: bool = True
    """The first rank brings a checkpoint's tensors together."""
    on_cpu: bool = False
    precision: str = "32-true"

    @classmethod
    def of(cls, config: DictConfig, num_gpus: int) -> Devices:
        """
        Args:
            config: the group `trainer`.
            num_gpus: devices of all nodes, where `trainer.devices` is no number.

        Raises:
            UserError: replicas that do not divide the ranks.
        """
        given, strategy = config.get("devices", 1), dict(config.get("strategy") or {})
        ranks = given * config.get("num_nodes", 1) if isinstance(given, int) and given > 0 else num_gpus
        kind = get_class(strategy["_target_"]) if "_target_" in strategy else object
        sharded = issubclass(kind, FSDP2)
        on_cpu, precision = config.get("accelerator") == "cpu", str(config.get("precision"))
        if sharded:
            check_replicas(strategy["replicas"], ranks)
            return cls(
                ranks,
                strategy["replicas"],
                offload=strategy["offload"] and not on_cpu,
                one_file=not strategy["sharded_checkpoints"],
                on_cpu=on_cpu,
                precision=precision,
            )
        if not issubclass(kind, DDP) and ranks > 1:
            raise UserError(f"trainer.devices={given}: several devices need a strategy: type trainer=fsdp or trainer=ddp")
        return cls(ranks, buckets=issubclass(kind, DDP), on_cpu=on_cpu, precision=precision)

    @property
    def sharded(self) -> bool:
        return self.replicas is not None

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the networks."""
        return 1 if self.replicas is None else self.ranks // self.replicas

    @property
    def autocast(self) -> torch.dtype | None:
        """What operations compute in, where it is not the type of the weights."""
        return {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(self.precision)

    @property
    def own(self) -> torch.dtype | None:
        """What the trained weights are turned into; None: they stay as they are."""
        return {"bf16-true": torch.bfloat16, "16-true": torch.float16}.get(self.precision)

    @property
    def gathered(self) -> torch.dtype | None:
        """What shards are gathered in; None: as they are."""
        return torch.bfloat16 if self.sharded and self.precision == "bf16-mixed" else None
