"""Environments of gymnasium: a small fake of the package for the logic, and the package itself
where it is installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium_environment import Gymnasium, as_text, read_action

from rlmods.errors import UserError
from rlmods.types import Prompt, Reply, Turn

PROMPT = Prompt(id="a", text="7", meta={"seed": 7})


def said(text: str) -> Turn:
    return Turn(0, len(text), text)


class Discrete:
    start, n = np.int64(1), np.int64(3)


class Text:
    def contains(self, text: str) -> bool:
        return text.isalpha()


class Box:
    pass


class Walk:
    """Adds the actions to the seed; ends at 10, raises at 11."""

    def __init__(self, space: Any = Discrete) -> None:
        self.action_space = space()

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        self.place = seed
        return np.int64(seed), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.place += action
        if self.place > 10:
            raise RuntimeError("outside")
        return np.int64(self.place), np.float64(0.25), self.place == 10, self.place == 3, {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules,
        "gymnasium",
        SimpleNamespace(make=lambda name, **options: {"Walk": Walk}[name](**options)),
    )


@pytest.mark.usefixtures("_fake")
class TestEpisode:
    walk = Gymnasium("Walk", instruction="Go to 10.", invalid_reward=-0.5)

    def test_begins_with_the_seed_of_the_prompt(self) -> None:
        assert self.walk.start(PROMPT, key=()).prompt.text == "Go to 10.\n7"

    def test_actions_are_observed_and_rewarded_until_the_end(self) -> None:
        episode = self.walk.start(PROMPT, key=())
        reply = episode.reply(said("I take 9, no, 2"))
        assert (reply.messages, reply.reward) == ([{"role": "user", "content": "9"}], 0.25)
        reply = episode.reply(said("1"))
        assert (reply.messages, reply.reward) == (None, 0.25)
        assert episode.inner.closed

    def test_so_does_a_limit_of_the_environment(self) -> None:
        episode = self.walk.start(replace(PROMPT, meta={"seed": 2}), key=())
        assert episode.reply(said("1")) == Reply(None, 0.25)

    def test_a_turn_without_a_valid_action_takes_no_step(self) -> None:
        episode = self.walk.start(PROMPT, key=())
        for text in ("", "left", "0", "4", "-1"):
            reply = episode.reply(said(text))
            assert (reply.messages, reply.reward) == (
                [{"role": "user", "content": "no valid action"}],
                -0.5,
            )
        assert episode.inner.place == 7

    def test_an_exception_ends_the_episode_and_is_recorded(self) -> None:
        episode = self.walk.start(PROMPT, key=())
        episode.reply(said("2"))
        reply = episode.reply(said("2"))
        assert (reply.messages, reply.reward) == (None, None)
        assert [call.result for call in reply.calls] == ["Error: RuntimeError: outside"]

    def test_what_cannot_begin_is_refused(self) -> None:
        self.walk.check_prompt(PROMPT)
        with pytest.raises(
            UserError,
            match=r"environment\.env_id=Wal: KeyError: 'Wal': type environment\.env_id=Frozen",
        ):
            Gymnasium("Wal").check_prompt(PROMPT)
        with pytest.raises(
            UserError, match="its actions are Box, and the policy writes Text or Discrete"
        ):
            Gymnasium("Walk", options={"space": Box}).check_prompt(PROMPT)
        with pytest.raises(
            UserError, match=r"environment\.env_id=no_module:Walk: ModuleNotFoundError"
        ):
            Gymnasium("no_module:Walk").check_prompt(PROMPT)


def test_text_actions_are_the_whole_turn() -> None:
    assert read_action(" north \n", Text()) == "north"
    assert read_action("2", Text()) is None


def test_observations_are_text_or_json() -> None:
    assert as_text("a room") == "a room"
    assert as_text((np.int64(3), np.array([1, 0]), {"b": True})) == '[3, [1, 0], {"b": true}]'


def test_a_lake_of_the_package_is_crossed() -> None:
    pytest.importorskip("gymnasium")
    environment = Gymnasium(options={"is_slippery": False})
    environment.check_prompt(PROMPT)
    episode = environment.start(PROMPT, key=())
    assert episode.prompt.text == "0"
    replies = [episode.reply(said(str(action))) for action in (1, 1, 2, 1, 2, 2)]
    assert [reply.reward for reply in replies] == [0, 0, 0, 0, 0, 1]
    assert replies[-1].messages is None
