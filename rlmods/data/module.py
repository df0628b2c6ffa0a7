"""Lightning data module of the splits."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch

from rlmods.data.loader import PromptLoader
from rlmods.data.pools import DifficultyPools
from rlmods.data.schema import Splits
from rlmods.types import Prompt


class PromptModule(L.LightningDataModule):
    """Data module of the train prompts; evaluation reads `splits.val`. The strategy determines
    which ranks are data-parallel, so that tensor-parallel ranks get the same prompts. Raises:
    UserError, from the loader.

    The loader's position is saved here, because Lightning drops it in checkpoints at the end of an
    epoch or of training."""

    def __init__(self, splits: Splits, batch_size: int, seed: int = 0) -> None:
        super().__init__()
        self.splits = splits
        self.batch_size = batch_size
        self.seed = seed
        self.pools: DifficultyPools | None = None
        """Retires prompts; set by the algorithm before the loader is created."""
        self._loader: PromptLoader | None = None
        self._position: dict[str, Any] = {}

    def train_dataloader(self) -> PromptLoader:
        replica = {"rank": 0, "num_replicas": 1}
        if self.trainer is not None and self.trainer.distributed_sampler_kwargs:
            replica = self.trainer.distributed_sampler_kwargs
        self._loader = PromptLoader(
            self.splits.train,
            self.batch_size,
            self.seed,
            replica["rank"],
            replica["num_replicas"],
            self.splits.weights,
            self.pools,
        )
        if self._position:
            self._loader.load_state_dict(self._position)
        return self._loader

    def next_prompts(self) -> list[Prompt]:
        """Return the prompts of the batch that the loader will return next, on this rank."""
        assert self._loader is not None
        return self._loader.next_batch()

    def state_dict(self) -> dict[str, Any]:
        return self._position if self._loader is None else self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._position = state_dict

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Return the batch unchanged: prompts hold no tensors, and Lightning cannot map over frozen
        dataclasses."""
        return batch
