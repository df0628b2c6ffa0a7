"""Batch sizes of an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rlmods.errors import UserError, check_bounds


@dataclass(frozen=True)
class Batch:
    """Number of prompts, responses, optimizer steps and tokens of one iteration."""

    prompts: int = 32
    """Prompts of one iteration, over all ranks. Offline algorithms: rows."""
    samples: int = 8
    """Responses to each prompt (G). Offline algorithms do not sample."""
    epochs: int = 1
    """Passes over the responses of one iteration."""
    minibatches: int = 1
    """Optimizer steps in one pass."""
    token_budget: int = 8192
    """Tokens of one forward and backward, padding included. Memory grows with it; results do not
    change."""
    max_norm: float = 1.0
    """Gradients are clipped to this global norm."""
    max_nonfinite: int = 3
    """Number of consecutive optimizer steps with a NaN or infinite loss or gradient that ends the
    run; fewer are skipped."""
    preflight: Literal["auto"] | bool = "auto"
    """Run forward and backward of the largest microbatches before the first iteration, which shows
    a lack of memory at once and changes no result. auto: on a GPU."""

    def __post_init__(self) -> None:
        counts = ("prompts", "samples", "epochs", "minibatches", "token_budget", "max_nonfinite")
        rules = {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        off = "positive; batch.max_norm=inf switches clipping off"
        check_bounds(self, "batch", {**rules, "max_norm": (self.max_norm > 0, off)})

    def runs_preflight(self, device: torch.device) -> bool:
        """Return True if the largest microbatches run before the first iteration on this device."""
        return device.type == "cuda" if self.preflight == "auto" else self.preflight

    def check_ranks(self, num_ranks: int, rows_per_prompt: int) -> None:
        """Check that ranks divide the prompts, and minibatches the rows of a rank, evenly.

        Raises:
            UserError: they do not; a step would then differ from that of a single rank.
        """
        if self.prompts % num_ranks:
            advice = f"type batch.prompts={-(-self.prompts // num_ranks) * num_ranks}"
            raise UserError(
                f"batch.prompts={self.prompts} cannot be shared evenly by {num_ranks} ranks: "
                f"{advice}"
            )
        rows = self.prompts // num_ranks * rows_per_prompt
        if rows % self.minibatches:
            fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
            rows_of_rank = f"the {rows} rows of each of {num_ranks} ranks"
            raise UserError(
                f"batch.minibatches={self.minibatches} does not divide {rows_of_rank}: type "
                f"one of {fits}"
            )
