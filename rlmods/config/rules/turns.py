"""Rules on environments of several turns."""

from __future__ import annotations

from typing import Any

from rlmods.config.plan import Plan
from rlmods.config.rules.credit import terms
from rlmods.reward import EnvironmentReward
from rlmods.rollout.turns import MultiTurn


def several_turns(plan: Plan) -> str | None:
    online = plan.algorithm.samples_responses or hasattr(plan.settings, "on_policy_fraction")
    if not isinstance(plan.parts.get("rollout"), MultiTurn) or not online or plan.algorithm.trains_on_turns:
        return None
    option = plan.choices.get("environment")
    return (
        f"algo={plan.config.algo.name} trains on responses of one turn, but environment={option} has several: type environment=single_turn"
    )


def turn_rewards(plan: Plan) -> str | None:
    rollout = plan.parts.get("rollout")
    for path, part, _ in terms(plan) if rollout is not None and "reward" in plan.parts else ():
        if isinstance(part, EnvironmentReward):
            if not isinstance(rollout, MultiTurn):
                return f"{path} reads the rewards of an environment, and environment=single_turn gives none: type environment=guess_number"
        elif isinstance(rollout, MultiTurn) and (getattr(part, "gives_steps", False) or getattr(part, "gives_tokens", False)):
            problem = f"{path} rewards single tokens of a response, whose observations in environment={plan.choices.get('environment')}"
            return f"{problem} are not sampled: drop it, or type environment=single_turn"
    return None


def episodes(plan: Plan) -> str | None:
    rollout = plan.parts.get("rollout")
    environment: Any = rollout.environment if isinstance(rollout, MultiTurn) else None
    for prompt in (*plan.splits.train, *plan.splits.val) if hasattr(environment, "check_prompt") else ():
        try:
            environment.check_prompt(prompt)
        except ValueError as error:
            return f"environment={plan.choices.get('environment')} cannot begin with {prompt.name}: {error}"
    return None
