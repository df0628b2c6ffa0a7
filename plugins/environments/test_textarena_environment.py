"""Games of textarena: a small fake of the package for the logic, and the package itself where it is
installed."""

from __future__ import annotations

import copy
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from environments import Episodes
from textarena_environment import TextArena

from rlmods.errors import UserError
from rlmods.types import Prompt, Turn

PROMPT = Prompt(id="a", text="7", meta={"seed": 7})


def said(text: str) -> Turn:
    return Turn(0, len(text), text)


class Dice:
    """Draws a number from the global generators at each step; "stop" ends the game with the reward
    0.5, "fail" raises."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        assert num_players == 1
        self.messages = [(-1, f"begin {random.random()}", None)]
        self.done = False

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if action == "fail":
            raise RuntimeError("broken\ngame")
        self.messages += [
            (0, action, None),
            (-1, f"drew {random.random()} {np.random.random()}", None),
        ]
        return action == "stop", {}

    def get_observation(self) -> tuple[int, list[Any]]:
        messages, self.messages = self.messages, []
        return 0, messages

    def close(self) -> tuple[dict[int, float], dict[str, Any]]:
        return {0: 0.5}, {}


class Wrapper:
    """A wrapper that repeats what was said, as those of the package."""

    def __init__(self, env: Any) -> None:
        self.env = env


def make(env_id: str, **options: Any) -> Any:
    if env_id != "Dice":
        raise ValueError(f"Environment {env_id} not found in registry.")
    return Wrapper(Dice(**options))


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", SimpleNamespace(make=make, Wrapper=Wrapper))


@pytest.mark.usefixtures("_fake")
class TestGame:
    game = TextArena("Dice")

    def test_the_seed_of_the_prompt_decides_the_game_whatever_is_drawn_elsewhere(self) -> None:
        first, second = (self.game.start(PROMPT, key=(sample,)) for sample in (0, 1))
        assert (
            first.prompt
            == second.prompt
            != self.game.start(Prompt(id="b", text="", meta={"seed": 8}), key=()).prompt
        )
        replies = []
        for episode in (first, second):
            random.random()
            replies.append([episode.reply(said("a")), episode.reply(said("b"))])
        assert replies[0] == replies[1]
        assert replies[0][0] != replies[0][1]

    def test_the_global_generators_are_left_as_they_were(self) -> None:
        before = np.random.get_state()[1].tolist()  # beartype draws from that of `random`
        self.game.start(PROMPT, key=()).reply(said("a"))
        assert np.random.get_state()[1].tolist() == before

    def test_observations_are_what_is_new_without_the_turn_itself(self) -> None:
        episode = self.game.start(PROMPT, key=())
        assert episode.prompt.text is not None
        assert episode.prompt.text.startswith("begin 0.")
        reply = episode.reply(said("hello"))
        [message] = reply.messages or ()
        assert message["role"] == "user"
        assert message["content"].startswith("drew 0.")
        assert "\n" not in message["content"]
        assert reply.reward == 0.0

    def test_observations_are_cut(self) -> None:
        reply = TextArena("Dice", max_result_chars=6).start(PROMPT, key=()).reply(said("a"))
        assert reply.messages is not None
        assert reply.messages[0]["content"] == "drew 0... [truncated]"

    def test_the_game_ends_with_its_reward(self) -> None:
        reply = self.game.start(PROMPT, key=()).reply(said("stop"))
        assert (reply.messages, reply.reward) == (None, 0.5)

    def test_an_exception_ends_the_game_and_is_recorded(self) -> None:
        reply = self.game.start(PROMPT, key=()).reply(said("fail"))
        assert (reply.messages, reply.reward) == (None, None)
        assert [(call.error, call.result) for call in reply.calls] == [
            ("crash", "Error: RuntimeError: broken game")
        ]

    def test_a_copy_goes_on_by_itself(self) -> None:
        episode = self.game.start(PROMPT, key=())
        other = copy.deepcopy(episode)
        assert other.reply(said("a")) == episode.reply(said("a"))

    def test_in_chats_the_opening_is_the_user_message(self) -> None:
        [prompt] = Episodes(num_train=1, num_val=0, chat=True)().train
        [message] = self.game.start(prompt, key=()).prompt.messages or ()
        assert message["role"] == "user"
        assert message["content"].startswith("begin")

    def test_what_cannot_begin_is_refused(self) -> None:
        self.game.check_prompt(PROMPT)
        with pytest.raises(
            UserError,
            match=r"environment\.game=Dicee: ValueError: Environment Dicee not found .*: type env",
        ):
            TextArena("Dicee").check_prompt(PROMPT)
        with pytest.raises(
            UserError, match=r"environment\.game=Dice: TypeError: .* type environment\.game="
        ):
            TextArena("Dice", options={"no": 1}).check_prompt(PROMPT)


class TestPackage:
    def test_bisection_wins(self) -> None:
        pytest.importorskip("textarena")
        episode = TextArena().start(PROMPT, key=())
        assert "between 1 and 20" in (episode.prompt.text or "")
        low, high = 1, 20
        while True:
            guess = (low + high) // 2
            reply = episode.reply(said(f"[{guess}]"))
            if reply.messages is None:
                break
            low, high = (
                (guess + 1, high) if "higher" in reply.messages[0]["content"] else (low, guess - 1)
            )
        assert reply.reward == 1.0

    def test_games_of_several_players_are_refused(self) -> None:
        pytest.importorskip("textarena")
        with pytest.raises(UserError, match="no game of one player begins"):
            TextArena("TicTacToe-v0").check_prompt(PROMPT)
