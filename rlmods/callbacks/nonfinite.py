"""Rows of optimizer steps that are not finite."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning import Callback, Trainer

from rlmods.errors import UserError
from rlmods.run import atomic_write

if TYPE_CHECKING:
    from rlmods.algo import Learner


class NonfiniteRows(Callback):
    """Write the rows of the last optimizer step to `folder` when too many steps in a row were not
    finite (`batch.max_nonfinite`): `iteration_000012.pt` for each rank, read by `torch.load(path,
    weights_only=True)`, with the rows under `shares`, and under `losses` the loss of every
    microbatch with the indices of its rows."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_nonfinite_batch(
        self, trainer: Trainer, learner: Learner, study: Mapping[str, object]
    ) -> None:
        """
        Raises:
            UserError: always, with the path of the file.
        """
        rank = f"_rank_{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"iteration_{study['iteration']:06d}{rank}.pt"
        content = io.BytesIO()
        torch.save(dict(study), content)
        atomic_write(path, content.getvalue())
        raise UserError(
            f"{study['why']}; its rows are in {path}: torch.load(PATH, weights_only=True)"
        )
