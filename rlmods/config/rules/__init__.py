"""Rules that a spec must satisfy. A rule yields error messages that end with the override to
type."""

from collections.abc import Callable, Iterator, Sequence

from rlmods.config.rules import estimator, models, rollout, rows
from rlmods.config.run_spec import RunSpec

Rule = Callable[[RunSpec], Iterator[str]]
RULES: tuple[Rule, ...] = (
    rollout.protocols,
    estimator.group_size,
    estimator.critic,
    estimator.credit_terms,
    estimator.failed_programs,
    estimator.steps,
    estimator.kl_in_reward,
    estimator.kl_estimator,
    estimator.token_credit,
    estimator.token_selection,
    estimator.distance_from_old_policy,
    estimator.greedy_baseline,
    estimator.reward_scaling,
    estimator.selected_rows,
    models.reference,
    models.teacher,
    models.reward_model_rounds,
    rows.ptx,
    rows.prompts,
    rows.sources,
    rows.answers,
    rows.columns,
    rows.demonstrations,
    rows.reward_columns,
    rows.graded_prompts,
    rows.validation,
    models.preference_reference,
    rows.preferences,
    rows.margins,
    rollout.temperature,
    rollout.truncation,
    rollout.ahead,
    models.router,
    models.precision,
    rollout.kl_schedule,
    models.quantization,
    models.optimizer,
    models.compilation,
    models.master_weights,
    rollout.several_turns,
    rollout.observations,
    rollout.branching,
    rows.turn_rewards,
    rollout.episodes,
)
"""All rules, in the order of the checks."""
GRADING_RULES: tuple[Rule, ...] = (
    rollout.protocols,
    rows.sources,
    rows.answers,
    rows.reward_columns,
    rows.graded_prompts,
)
"""Rules on data and reward, for commands that grade responses and train nothing."""


def first_problem(spec: RunSpec, rules: Sequence[Rule] = RULES) -> str | None:
    """Return the first message of a rule that the run does not satisfy; None if it satisfies
    all."""
    for rule in rules:
        for message in rule(spec):
            return message
    return None
