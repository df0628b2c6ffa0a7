"""Optimizer steps that are left out, as a loss or a gradient was NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.types import UserError


class Nonfinite:
    """Counts them (`train/nonfinite_steps`), and ends the run after `most` in a row. All ranks decide alike."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_a_row = 0
        self._losses: list[tuple[int, Tensor, Tensor]] = []

    def begin(self) -> None:
        """An optimizer step."""
        self._losses = []

    def see(self, share: int, rows: Tensor, loss: Tensor) -> Tensor:
        """The loss of a microbatch, handed on: of these rows, by index, of a share of the step's rows."""
        self._losses.append((share, rows, loss.detach()))
        return loss

    def found(self, learner: Any, norms: Mapping[str, Tensor], shares: Sequence[Any]) -> bool:
        """Whether the step has to be left out, by its losses and the `norms` of its gradients.

        Callbacks that have `on_nonfinite_batch` get the rows of one too many.

        Raises:
            UserError: one too many.
        """
        seen = (*(loss for _, _, loss in self._losses), *norms.values())
        numbers = torch.stack([number.to(learner.device, torch.float64) for number in seen])
        nonfinite = bool(learner.across_ranks(~numbers.isfinite().all(), "max"))
        learner.meter.total("train/nonfinite_steps", int(nonfinite and learner.global_rank == 0))
        self.in_a_row = self.in_a_row + 1 if nonfinite else 0
        if nonfinite and self.in_a_row >= self.most:
            advice = f"iteration {learner.iteration + 1} ends the run, try a smaller optimizer.lr=... or batch.max_nonfinite=N"
            why = f"{self.in_a_row} optimizer steps in a row were not finite: {advice}"
            learner.notify("on_nonfinite_batch", {"why": why} | self._study(learner, norms, shares))
            raise UserError(why)
        return nonfinite

    def _study(self, learner: Any, norms: Mapping[str, Tensor], shares: Sequence[Any]) -> dict[str, Any]:
        """What was asked of this rank, as plain values and tensors."""
        rows = [{name: None if x is None else x.cpu() for name, x in share.tensors().items()} for share in shares]
        losses = [{"share": share, "rows": rows.cpu(), "loss": float(loss)} for share, rows, loss in self._losses]
        facts = {"iteration": learner.iteration + 1, "optimizer_steps": learner.optimizer_steps, "rank": learner.global_rank}
        return facts | {"norms": {name: float(norm) for name, norm in norms.items()}, "losses": losses, "shares": rows}
