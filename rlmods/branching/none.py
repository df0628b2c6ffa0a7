"""No branches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoBranching:
    """Every response is sampled from the prompt on."""
