"""Rewards that call other rewards: they check what their members check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from rlmods.protocols import ChecksPrompt
from rlmods.types import Prompt


@runtime_checkable
class HasMembers(Protocol):
    """A reward that calls other rewards."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The other rewards, by their paths in its configuration."""
        ...


def with_members(reward: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a reward and all that it calls, with their paths in the configuration."""
    yield path, reward
    if isinstance(reward, HasMembers):
        for name, member in reward.members.items():
            yield from with_members(member, f"{path}.{name}")


def check_members(members: Iterable[object], prompt: Prompt) -> None:
    """Check that rewards can grade responses to `prompt`.

    Raises:
        ValueError: one cannot.
    """
    for member in members:
        if isinstance(member, ChecksPrompt):
            member.check_prompt(prompt)
