"""Rules that a plan must satisfy. A rule returns None, or an error message that ends with the override to type."""

from __future__ import annotations

from collections.abc import Callable

from rlmods.config.plan import Plan
from rlmods.config.rules import parts, rows, values

RULES: tuple[Callable[[Plan], str | None], ...] = (
    values.protocols, parts.group_size, parts.critic, parts.steps, parts.reward_scaling, parts.reference, parts.teacher, parts.rounds,
    rows.ptx, rows.minibatches, rows.prompts, rows.answers, rows.columns, rows.demonstrations, rows.gradable, rows.preferences,
    parts.temperature, parts.truncation, parts.router, values.precision, parts.quantization,
)  # fmt: skip
"""All rules, in the order in which they are checked."""
