"""The splits as Lightning wants them."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch

from rlmods.data.loader import PromptLoader
from rlmods.data.schema import Splits


class PromptModule(L.LightningDataModule):
    """Serves the train prompts; whoever evaluates reads `splits.val`. Asks the strategy which ranks share data, so that tensor-parallel
    ranks see the same prompts. Raises: UserError, from the loader.

    Keeps the loader's position itself: Lightning forgets it where a checkpoint was written at the end of an epoch or of training."""

    def __init__(self, splits: Splits, batch_size: int, seed: int = 0) -> None:
        super().__init__()
        self.splits, self.batch_size, self.seed = splits, batch_size, seed
        self._loader: PromptLoader | None = None
        self._position: dict[str, Any] = {}

    def train_dataloader(self) -> PromptLoader:
        shares = (self.trainer.distributed_sampler_kwargs if self.trainer is not None else None) or {"rank": 0, "num_replicas": 1}
        self._loader = PromptLoader(self.splits.train, self.batch_size, self.seed, shares["rank"], shares["num_replicas"])
        if self._position:
            self._loader.load_state_dict(self._position)
        return self._loader

    def state_dict(self) -> dict[str, Any]:
        return self._position if self._loader is None else self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._position = state_dict

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """As it is: prompts hold no tensors, and Lightning refuses to walk frozen records."""
        return batch
