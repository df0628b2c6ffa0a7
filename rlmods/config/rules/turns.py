"""Rules on environments of several turns."""

from __future__ import annotations

from itertools import chain

from rlmods.branching import NoBranching
from rlmods.config.plan import Plan
from rlmods.config.rules.credit import terms
from rlmods.needs import EnvironmentNeeds, RewardNeeds, RolloutNeeds, needs_of
from rlmods.reward import EnvironmentReward
from rlmods.rollout.turns import MultiTurn, find_prompt_without_episode


def several_turns(plan: Plan) -> str | None:
    online = plan.algorithm.samples_responses or hasattr(plan.settings, "on_policy_fraction")
    if (
        not isinstance(plan.parts.get("rollout"), MultiTurn)
        or not online
        or plan.algorithm.trains_on_turns
    ):
        return None
    option = plan.choices.get("environment")
    return (
        f"algo={plan.config.algo.name} trains on responses of one turn, but "
        f"environment={option} has several: type environment=single_turn"
    )


def branching(plan: Plan) -> str | None:
    rule, rollout = plan.parts.get("branching"), plan.parts.get("rollout")
    if rule is None or isinstance(rule, NoBranching):
        return None
    option = f"branching={plan.choices.get('branching')}"
    if not isinstance(rollout, MultiTurn):
        return (
            f"{option}: responses branch after the result of a tool, and environment=single_turn "
            "has none: type environment=tools"
        )
    if not needs_of(rollout.rollout, RolloutNeeds).gives_entropies:
        problem = (
            f"rollout={plan.choices.get('rollout')} does not return the entropies by which "
            "responses branch"
        )
        return f"{option}: {problem}: type rollout=local, or branching=none"
    if not needs_of(rollout.environment, EnvironmentNeeds).copies:
        problem = (
            f"episodes of environment={plan.choices.get('environment')} cannot be copied, which "
            "branches need"
        )
        return f"{option}: {problem}: type branching=none, or another environment="
    if plan.batch.samples <= rule.num_initial:
        problem = (
            f"branching.num_initial={rule.num_initial} leaves none of "
            f"batch.samples={plan.batch.samples} for branches"
        )
        return (
            f"{problem}: type branching.num_initial={max(1, plan.batch.samples // 2)}, a larger "
            "batch.samples, or branching=none"
        )
    return None


def turn_rewards(plan: Plan) -> str | None:
    rollout = plan.parts.get("rollout")
    for path, part, _ in terms(plan) if rollout is not None and "reward" in plan.parts else ():
        if isinstance(part, EnvironmentReward):
            if not isinstance(rollout, MultiTurn):
                return (
                    f"{path} reads the rewards of an environment, and environment=single_turn "
                    "gives none: type environment=guess_number"
                )
        elif isinstance(rollout, MultiTurn) and (
            needs_of(part, RewardNeeds).gives_steps or needs_of(part, RewardNeeds).gives_tokens
        ):
            problem = (
                f"{path} rewards single tokens of a response, whose observations in "
                f"environment={plan.choices.get('environment')}"
            )
            return f"{problem} are not sampled: drop it, or type environment=single_turn"
    return None


def episodes(plan: Plan) -> str | None:
    named = chain.from_iterable((plan.validation.data or {}).values())
    problem = find_prompt_without_episode(
        plan.parts.get("rollout"), (*plan.splits.train, *plan.splits.val, *named)
    )
    return (
        None
        if problem is None
        else f"environment={plan.choices.get('environment')} cannot begin with {problem}"
    )
