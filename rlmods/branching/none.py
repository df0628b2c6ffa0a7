"""No branches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NoBranching:
    """Every response is sampled from the prompt on."""
