"""Rows of a distillation over the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from rlmods.types import Experience, RowInts


@dataclass(frozen=True, slots=True)
class DistillBatch:
    """Responses after the policy's prompts and after the teacher's, the input of optimizer steps
    that compare whole distributions."""

    student: Experience
    """Rows as the policy sees them."""
    teacher: Experience
    """The same responses as the teacher sees them, row by row."""

    def __len__(self) -> int:
        return len(self.student)

    @property
    def forward_tokens(self) -> RowInts:
        """Number of tokens in a forward of the longer of the two rows."""
        return torch.maximum(self.student.lengths, self.teacher.lengths)

    @property
    def loss_counts(self) -> Int[Tensor, " 2"]:
        """Number of tokens and of sequences with loss: this rank's part of `Totals`."""
        return self.student.loss_counts

    def tensors(self) -> dict[str, Tensor | None]:
        """Return the tensors of the policy's rows by field name."""
        return self.student.tensors()

    def select(self, rows: Tensor) -> DistillBatch:
        """Return the rows selected by an index [n] or a bool mask [N]."""
        return DistillBatch(self.student.select(rows), self.teacher.select(rows))

    def to(self, device: torch.device | str) -> DistillBatch:
        """Move all tensors to a device."""
        return DistillBatch(self.student.to(device), self.teacher.to(device))

    def trim(self) -> DistillBatch:
        """Return the rows without the columns that are padding in all of them."""
        return DistillBatch(self.student.trim(), self.teacher.trim())

    def without_loss(self) -> DistillBatch:
        """Return rows of the same shape with empty masks."""
        return DistillBatch(self.student.without_loss(), self.teacher.without_loss())
