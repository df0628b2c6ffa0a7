"""Rules that a plan must satisfy. Each returns None, or the error message, with the override to type."""

from __future__ import annotations

from collections.abc import Callable

from rlmods.config.plan import Plan
from rlmods.config.rules import parts, rows, values

RULES: tuple[Callable[[Plan], str | None], ...] = (
    values.protocols, parts.group_size, parts.critic, parts.steps, parts.scale, parts.reference, parts.rounds, rows.ptx,
    rows.minibatches, rows.prompts, rows.answers, rows.columns, rows.graded, rows.preferences, parts.temperature, parts.truncation,
    parts.router, values.precision, parts.quantization,
)  # fmt: skip
"""In the order in which they are checked."""
