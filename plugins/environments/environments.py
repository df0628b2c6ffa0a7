"""Episodes of environments of other packages, which agents play (`environment=agent`):

    python train.py data=episodes environment=agent environment.agent=textarena_games:agent \\
        reward=environment

`textarena_games`, `gymnasium_environments` and `openenv_servers` have an agent each. They share
this module."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlmods.data.schema import Splits, checked_splits
from rlmods.environment.session import RequestError
from rlmods.settings.bounds import Count, NonNegativeInt, bounded
from rlmods.types import Prompt

Step = Callable[[str], Awaitable[tuple[Any, float, bool]]]
"""Takes a turn, and returns the observation, the reward and True at the end of the episode."""


@dataclass(frozen=True)
@bounded("data")
class Episodes:
    """Prompts that are seeds of episodes. All responses to a prompt begin the same episode. Val has
    the seeds from `seed` on, and train those that follow.

    Raises: UserError for a field out of range."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the agent and its environment, as in `+data.options.game=Game2048-v0`."""
    num_train: Count = 1000
    """Number of train episodes."""
    num_val: NonNegativeInt = 100
    """Number of val episodes."""
    seed: NonNegativeInt = 0
    """Seed of the first episode."""

    def __call__(self) -> Splits:
        prompts = []
        for seed in range(self.seed, self.seed + self.num_val + self.num_train):
            meta = {**self.options, "seed": seed}
            prompts.append(Prompt(id=f"episode-{seed}", text=str(seed), meta=meta))
        return checked_splits(prompts[self.num_val :], prompts[: self.num_val], "data=episodes")


async def play(client: Any, observation: Any, step: Step, instruction: str = "") -> list[float]:
    """Play an episode until it ends, or a limit refuses the next turn, and return the reward of
    each turn.

    Args:
        client: the policy.
        observation: the first observation.
        instruction: text before the first observation.

    Raises:
        RequestError: the first turn is refused.
    """
    text = as_text(observation)
    if instruction:
        text = f"{instruction}\n{text}"
    messages = [{"role": "user", "content": text}]
    rewards: list[float] = []
    is_done = False
    while not is_done:
        try:
            reply = await client.chat(messages)
        except RequestError:
            if not rewards:
                raise
            break
        observation, reward, is_done = await step(reply["content"])
        rewards.append(reward)
        messages += [reply, {"role": "user", "content": as_text(observation)}]
    return rewards


def as_text(observation: Any) -> str:
    """Return an observation as text: JSON for numbers, arrays and objects."""
    if isinstance(observation, str):
        return observation
    return json.dumps(observation, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return the value of a NumPy number or array as Python has it; the text of other values."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
