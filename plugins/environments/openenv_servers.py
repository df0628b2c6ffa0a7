"""Environments that an OpenEnv server runs:

    python train.py data=episodes +data.options.url=http://localhost:8000 environment=agent \\
        environment.agent=openenv_servers:agent reward=environment"""

from collections.abc import Mapping
from typing import Any

from environments import play
from openenv.core import GenericEnvClient


async def agent(task: Mapping[str, Any], client: Any) -> list[float]:
    """Act in an environment of the server of a row of `data=episodes`. The reward of a turn is that
    of its step, and 0 for None."""
    return await act(client, **task["meta"])


async def act(
    client: Any,
    *,
    seed: int,
    url: str = "http://localhost:8000",
    action: str = "message",
    observation: str | None = None,
    instruction: str = "",
    **options: Any,
) -> list[float]:
    """Act in an environment, one action `{action: TURN}` a turn. What is random must follow from
    the seed, or runs cannot be repeated.

    Args:
        client: the policy.
        seed: of `reset`.
        url: address of the server.
        action: field of an action that holds the text of the turn.
        observation: field of an observation that the policy reads; None: all fields, as JSON, or
            the only one.
        instruction: text before the first observation.
        options: other arguments of `reset`.
    """
    # without a time limit of its own: environment.timeout_s cancels the episode
    async with GenericEnvClient(base_url=url, message_timeout_s=None) as server:

        async def step(text: str) -> tuple[Any, float, bool]:
            result = await server.step({action: text.strip()})
            shown = shown_field(result.observation, observation)
            return shown, float(result.reward or 0.0), result.done

        result = await server.reset(seed=seed, **options)
        return await play(client, shown_field(result.observation, observation), step, instruction)


def shown_field(observation: Mapping[str, Any], name: str | None) -> Any:
    """Return the field of an observation that the policy reads.

    Raises:
        ValueError: there is no field `name`.
    """
    fields = {key: value for key, value in observation.items() if key != "metadata"}
    if name is None:
        return next(iter(fields.values())) if len(fields) == 1 else fields
    if name not in fields:
        raise ValueError(f"an observation has no field {name}; fields: {', '.join(fields)}")
    return fields[name]
