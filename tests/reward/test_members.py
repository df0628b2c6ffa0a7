"""Rewards that call other rewards forward what those need and check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds, needs_of
from rlmods.protocols import ChecksPrompt
from rlmods.reward import BySource, Cosine, Ensemble, WeightedSum
from rlmods.reward.members import with_members
from rlmods.types import Prompt

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "terms.a.reward": lambda reward: WeightedSum({"a": {"reward": reward}}),
    "rewards.math": lambda reward: BySource({"math": reward}),
    "rewards.b": lambda reward: Ensemble({"b": reward}),
    "reward": lambda reward: Cosine(max_length=10, reward=reward),
}


@dataclass(frozen=True)
class Demanding:
    needs: ClassVar[RewardNeeds] = RewardNeeds(answer=True, group=True, turns=True, runs_code=True)

    def __call__(self, responses: Any) -> Any: ...

    def check_prompt(self, prompt: Prompt) -> None:
        raise ValueError("no tests")


@dataclass(frozen=True)
class BySteps:
    needs: ClassVar[RewardNeeds] = RewardNeeds(gives_steps=True, gives_outcomes=False)

    def __call__(self, responses: Any) -> Any: ...


@pytest.mark.parametrize("path", WRAPPERS)
def test_needs_and_checks_are_forwarded(path: str) -> None:
    wrapper = WRAPPERS[path](Demanding())
    assert needs_of(wrapper, RewardNeeds) == Demanding.needs
    assert isinstance(wrapper, ChecksPrompt)
    with pytest.raises(ValueError, match="no tests"):
        wrapper.check_prompt(Prompt(id="a", text="?", source="math"))


@pytest.mark.parametrize("path", WRAPPERS)
def test_members_have_their_paths(path: str) -> None:
    member = Demanding()
    wrapper = WRAPPERS[path](WRAPPERS["rewards.b"](member))
    assert list(with_members(wrapper, "reward"))[2] == (f"reward.{path}.rewards.b", member)


def test_rewards_by_step_are_not_added_up() -> None:
    assert needs_of(WRAPPERS["terms.a.reward"](BySteps()), RewardNeeds).gives_steps
    assert not needs_of(WRAPPERS["reward"](BySteps()), RewardNeeds).gives_steps
    with pytest.raises(UserError, match=r"rewards\.b gives one reward per step"):
        WRAPPERS["rewards.b"](BySteps())
