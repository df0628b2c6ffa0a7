"""Rules on environments of several turns."""

from __future__ import annotations

from itertools import chain

from rlmods.branching import NoBranching
from rlmods.config.rules.credit import terms
from rlmods.config.run_spec import RunSpec
from rlmods.needs import EnvironmentNeeds, RewardNeeds, RolloutNeeds, needs_of
from rlmods.reward import EnvironmentReward
from rlmods.rollout.turns import MultiTurn, find_prompt_without_episode


def several_turns(spec: RunSpec) -> str | None:
    online = spec.algorithm.samples_responses or hasattr(spec.settings, "on_policy_fraction")
    if (
        not isinstance(spec.parts.get("rollout"), MultiTurn)
        or not online
        or spec.algorithm.trains_on_turns
    ):
        return None
    option = spec.choices.get("environment")
    return (
        f"algo={spec.config.algo.name} trains on responses of one turn, but "
        f"environment={option} has several: type environment=single_turn"
    )


def branching(spec: RunSpec) -> str | None:
    rule, rollout = spec.parts.get("branching"), spec.parts.get("rollout")
    if rule is None or isinstance(rule, NoBranching):
        return None
    option = f"branching={spec.choices.get('branching')}"
    if not isinstance(rollout, MultiTurn):
        return (
            f"{option}: responses branch after the result of a tool, and environment=single_turn "
            "has none: type environment=tools"
        )
    if not needs_of(rollout.rollout, RolloutNeeds).gives_entropies:
        problem = (
            f"rollout={spec.choices.get('rollout')} does not return the entropies by which "
            "responses branch"
        )
        return f"{option}: {problem}: type rollout=local, or branching=none"
    if not needs_of(rollout.environment, EnvironmentNeeds).copies:
        problem = (
            f"episodes of environment={spec.choices.get('environment')} cannot be copied, which "
            "branches need"
        )
        return f"{option}: {problem}: type branching=none, or another environment="
    if spec.batch.samples <= rule.num_initial:
        problem = (
            f"branching.num_initial={rule.num_initial} leaves none of "
            f"batch.samples={spec.batch.samples} for branches"
        )
        return (
            f"{problem}: type branching.num_initial={max(1, spec.batch.samples // 2)}, a larger "
            "batch.samples, or branching=none"
        )
    return None


def turn_rewards(spec: RunSpec) -> str | None:
    rollout = spec.parts.get("rollout")
    for path, part, _ in terms(spec) if rollout is not None and "reward" in spec.parts else ():
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
                f"environment={spec.choices.get('environment')}"
            )
            return f"{problem} are not sampled: drop it, or type environment=single_turn"
    return None


def episodes(spec: RunSpec) -> str | None:
    named = chain.from_iterable((spec.validation.data or {}).values())
    problem = find_prompt_without_episode(
        spec.parts.get("rollout"), (*spec.splits.train, *spec.splits.val, *named)
    )
    return (
        None
        if problem is None
        else f"environment={spec.choices.get('environment')} cannot begin with {problem}"
    )
