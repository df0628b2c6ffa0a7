"""Parts of environments whose episodes begin from a seed (`data=episodes`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlmods.environment.worker import to_text
from rlmods.types import Prompt, Reply, ToolCall


def seed_of(prompt: Prompt) -> int:
    """Return the seed of an episode.

    Raises:
        ValueError: the prompt has none.
    """
    seed = prompt.meta.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError("it has no seed: type data=episodes")
    return seed


def opened(prompt: Prompt, text: str) -> Prompt:
    """Return the prompt with the first observation as its text, or as its user message."""
    return (
        replace(prompt, text=text)
        if prompt.messages is None
        else replace(prompt, messages=[{"role": "user", "content": text}])
    )


def observed(text: str, reward: float, max_chars: int) -> Reply:
    """Return a reply with an observation, cut at `max_chars` characters."""
    return Reply([{"role": "user", "content": to_text(text, max_chars)}], reward)


def failed(name: str, error: Exception, max_chars: int) -> Reply:
    """Return the reply that ends an episode whose environment raised an exception. It is recorded,
    and counted by `train/tool_errors`. `EnvironmentReward` does not score the response: the policy
    must neither gain nor lose by it."""
    result = to_text(f"Error: {describe(error)}", max_chars)
    return Reply(None, calls=[ToolCall(name, {}, result, "crash")])


def describe(error: Any) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
