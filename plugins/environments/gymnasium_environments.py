"""Environments of the gymnasium package whose actions are texts or whole numbers:

    python train.py data=episodes +data.options.env_id=FrozenLake-v1 environment=agent \\
        environment.agent=gymnasium_environments:agent reward=environment"""

from collections.abc import Mapping
from typing import Any

import gymnasium
from environments import play
from gymnasium.spaces import Discrete, Text

from rlmods.environment.guess_number import last_number


async def agent(task: Mapping[str, Any], client: Any) -> list[float]:
    """Act in the environment of a row of `data=episodes`. The reward of a turn is that of its
    step."""
    return await act(client, **task["meta"])


async def act(
    client: Any,
    *,
    seed: int,
    env_id: str = "FrozenLake-v1",
    instruction: str = "",
    invalid_reward: float = 0.0,
    **options: Any,
) -> list[float]:
    """Act in an environment, one action a turn. A turn without a valid action takes no step.

    Args:
        client: the policy.
        seed: of `reset`.
        env_id: name in the registry, or "module:NAME" to import the module that registers it.
        instruction: text before the first observation.
        invalid_reward: reward of a turn without a valid action.
        options: arguments of the environment, such as `is_slippery=False`.

    Raises:
        ValueError: its actions are neither texts nor whole numbers.
    """
    with gymnasium.make(env_id, **options) as environment:
        space = environment.action_space
        if not isinstance(space, Discrete | Text):
            raise ValueError(
                f"actions of {env_id} are {space}, and the policy writes Discrete or Text"
            )

        async def step(text: str) -> tuple[Any, float, bool]:
            action = read_action(text, space)
            if action is None:
                return "no valid action", invalid_reward, False
            observation, reward, is_terminal, is_truncated, _ = environment.step(action)
            return observation, float(reward), is_terminal or is_truncated

        observation, _ = environment.reset(seed=seed)
        return await play(client, observation, step, instruction)


def read_action(text: str, space: Any) -> str | int | None:
    """Return the action that a turn names: the whole text, or its last whole number. None if the
    space does not contain it."""
    action = text.strip() if isinstance(space, Text) else last_number(text)
    return action if space.contains(action) else None
