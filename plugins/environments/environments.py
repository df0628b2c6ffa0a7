"""Environments of other packages, and the episodes that they play:

    python train.py data=episodes environment=textarena reward=environment

`environment=gymnasium`, `textarena` and `openenv` are adapters, a module each. They share this one.
An episode begins with a seed, which is the prompt; the policy reads the first observation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rlmods.data.schema import Splits, check_fields, checked_splits, prompt_fields
from rlmods.errors import check_bounds
from rlmods.grading.tool_worker import to_text
from rlmods.types import Prompt, Reply, ToolCall


@dataclass(frozen=True)
class Episodes:
    """Prompts that are seeds of episodes. Val has the seeds from `seed` on, and train those that
    follow.

    Raises: UserError for a field out of range."""

    num_train: int = 1000
    """Number of train episodes."""
    num_val: int = 100
    """Number of val episodes."""
    seed: int = 0
    """Seed of the first episode."""
    chat: bool = False
    """Put the observation in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        check_fields(self, num_train=1, num_val=0, seed=0)
        val = self._prompts("val", self.seed, self.num_val)
        train = self._prompts("train", self.seed + self.num_val, self.num_train)
        return checked_splits(train, val, "data=episodes")

    def _prompts(self, split: str, first: int, count: int) -> list[Prompt]:
        prompts = []
        for n in range(first, first + count):
            shown = prompt_fields(str(n), self.chat)
            prompts.append(Prompt(id=f"episode-{split}-{n}", meta={"seed": n}, **shown))
        return prompts


def seed_of(prompt: Prompt) -> int:
    """Return the seed of an episode.

    Raises:
        ValueError: the prompt has none.
    """
    seed = prompt.meta.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError("it has no seed: type data=episodes")
    return seed


def check_limits(environment: Any) -> None:
    """Check the limits that all adapters have.

    Raises:
        ValueError: one is below 1.
    """
    names = ("max_turns", "max_tokens", "max_result_chars")
    rules = {name: (getattr(environment, name) >= 1, "at least 1") for name in names}
    check_bounds(environment, "environment", rules)


def opened(prompt: Prompt, text: str) -> Prompt:
    """Return the prompt with the first observation as its text, or as its user message."""
    if prompt.messages is None:
        return replace(prompt, text=text)
    return replace(prompt, messages=[{"role": "user", "content": text}])


def observed(text: str, reward: float, max_chars: int) -> Reply:
    """Return a reply with an observation, cut at `max_chars` characters."""
    return Reply([{"role": "user", "content": to_text(text, max_chars)}], reward)


def failed(name: str, error: Exception, max_chars: int) -> Reply:
    """Return the reply that ends an episode whose environment raised an exception. It is recorded,
    and counted by `train/tool_errors`. `EnvironmentReward` does not score the response: the policy
    must neither gain nor lose by it."""
    result = to_text(f"Error: {describe(error)}", max_chars)
    return Reply(None, calls=[ToolCall(name, {}, result, "crash")])


def describe(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
