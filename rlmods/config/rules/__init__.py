"""What does not fit what: each rule returns None, or the one line to print, with the override to type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlmods.config.rules import parts, rows, values

if TYPE_CHECKING:
    from rlmods.config.compose import Plan

RULES: tuple[Callable[[Plan], str | None], ...] = (
    values.protocols, values.values, parts.group_size, parts.critic, parts.steps, parts.scale, parts.reference, parts.rounds, rows.ptx,
    rows.minibatches, rows.prompts, rows.answers, rows.columns, rows.graded, rows.preferences, parts.temperature, parts.truncation,
    parts.router, values.precision, parts.quantization,
)  # fmt: skip
"""In the order in which they are asked."""
