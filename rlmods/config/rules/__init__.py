"""Rules that a run must satisfy. A rule returns None, or an error message that ends with the
override to type."""

from __future__ import annotations

from collections.abc import Callable

from rlmods.config.rules import credit, parts, rows, turns, values
from rlmods.config.run_spec import RunSpec

Rule = Callable[[RunSpec], str | None]
RULES: tuple[Rule, ...] = (
    values.protocols,
    parts.group_size,
    parts.critic,
    credit.steps,
    credit.kl_in_reward,
    credit.kl_estimator,
    credit.token_credit,
    credit.selected_rows,
    credit.greedy_baseline,
    parts.reward_scaling,
    parts.reference,
    parts.teacher,
    parts.rounds,
    rows.ptx,
    rows.minibatches,
    rows.prompts,
    rows.sources,
    rows.answers,
    rows.columns,
    rows.demonstrations,
    rows.graded,
    rows.gradable,
    rows.validation,
    rows.preferences,
    parts.temperature,
    parts.truncation,
    parts.ahead,
    parts.router,
    values.precision,
    values.schedule,
    parts.quantization,
    values.master_weights,
    turns.several_turns,
    turns.branching,
    turns.turn_rewards,
    turns.episodes,
)
"""All rules, in the order in which they are checked."""
GRADING_RULES: tuple[Rule, ...] = (
    values.protocols,
    rows.sources,
    rows.answers,
    rows.graded,
    rows.gradable,
)
"""Those on data and reward, for commands that grade responses and train nothing."""
