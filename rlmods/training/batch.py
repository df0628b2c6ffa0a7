"""How large an iteration is."""

from __future__ import annotations

from dataclasses import dataclass

from rlmods.types import UserError


@dataclass(frozen=True)
class Batch:
    """The size of one iteration; everything else follows from it."""

    prompts: int = 32
    """Prompts of one iteration, over all ranks. Offline algorithms: rows."""
    samples: int = 8
    """Responses to each prompt (G). Offline algorithms do not sample."""
    epochs: int = 1
    """Passes over the responses of one iteration."""
    minibatches: int = 1
    """Optimizer steps in one pass."""
    token_budget: int = 8192
    """Tokens of one forward and backward, padding included. Memory grows with it; results do not change."""
    max_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    max_nonfinite: int = 3
    """Optimizer steps in a row that a NaN or infinite loss or gradient may cost; that many end the run."""

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "epochs", "minibatches", "token_budget", "max_nonfinite"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch.{name}={getattr(self, name)}: must be at least 1")
        if self.max_norm <= 0:
            raise ValueError(f"batch.max_norm={self.max_norm}: must be positive; batch.max_norm=inf switches clipping off")

    def check_ranks(self, num_ranks: int, rows_per_prompt: int) -> None:
        """
        Raises:
            UserError: the ranks cannot share the prompts evenly, or cannot cut their rows into minibatches of equal size, so that a step
                would not be what it is on one rank.
        """
        if self.prompts % num_ranks:
            advice = f"type batch.prompts={-(-self.prompts // num_ranks) * num_ranks}"
            raise UserError(f"batch.prompts={self.prompts} cannot be shared evenly by {num_ranks} ranks: {advice}")
        rows = self.prompts // num_ranks * rows_per_prompt
        if rows % self.minibatches:
            fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
            shares = f"the {rows} rows of each of {num_ranks} ranks"
            raise UserError(f"batch.minibatches={self.minibatches} does not divide {shares}: type one of {fits}")
