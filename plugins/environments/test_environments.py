"""Episodes of other packages: the conversation that they share, and games, environments and a
server of the packages, where they are installed."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from environments import Episodes, as_text, play

from rlmods.environment import Agent
from rlmods.environment.session import RequestError
from rlmods.errors import UserError
from rlmods.reward import EnvironmentReward
from rlmods.rollout import Local, MultiTurn
from rlmods.types import Response
from tests.support.tiny_setup import policy


class Client:
    """A policy that says these texts, and whose next turn a limit refuses."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.read: list[str] = []
        """The last message of each request."""

    async def chat(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self.read.append(messages[-1]["content"])
        if not self.texts:
            raise RequestError(400, "the session has had its turns", "max_turns")
        return {"role": "assistant", "content": self.texts.pop(0), "finish_reason": "stop"}


def run(agent: Callable[..., Any], client: Client, seed: int = 7, **options: Any) -> list[float]:
    [prompt] = Episodes(options, num_train=1, num_val=0, seed=seed)().train
    rewards: list[float] = asyncio.run(agent({"meta": prompt.meta}, client))
    return rewards


def sample(agent: str, options: Mapping[str, Any], **limits: Any) -> list[Response]:
    """Return four responses to each of two prompts, of the embedded model."""
    prompts = Episodes(options, num_train=2, num_val=0)().train
    limits = {"max_turns": 3, "max_tokens": 4000} | limits
    rollout = MultiTurn(Local(max_tokens=4, seed=1), Agent(agent=agent, **limits))
    rollout.sync(policy(), iteration=0)
    return rollout.generate(prompts, samples=4, iteration=0)


def test_seeds_are_whole_and_disjoint() -> None:
    splits = Episodes({"game": "x", "seed": 9}, num_train=4, num_val=2, seed=3)()
    prompts = (*splits.val, *splits.train)
    assert [prompt.meta for prompt in prompts] == [
        {"game": "x", "seed": seed} for seed in range(3, 9)
    ]
    assert len({prompt.id for prompt in prompts}) == 6


@pytest.mark.parametrize(("field", "bad"), [("num_train", 0), ("num_val", -1), ("seed", -1)])
def test_counts_are_checked(field: str, bad: int) -> None:
    with pytest.raises(ValueError, match=rf"data\.{field}={bad}"):
        Episodes(**{field: bad})


def test_observations_are_text_or_json() -> None:
    assert as_text("a room") == "a room"
    assert as_text((np.int64(3), np.array([1, 0]), {"b": True})) == '[3, [1, 0], {"b": true}]'


class TestPlay:
    @staticmethod
    async def step(text: str) -> tuple[Any, float, bool]:
        return [text], len(text) / 2, text == "end"

    def test_each_turn_is_observed_and_rewarded_until_the_end(self) -> None:
        client = Client("a", "end", "never")
        assert asyncio.run(play(client, {"at": 1}, self.step, "Go.")) == [0.5, 1.5]
        assert client.read == ['Go.\n{"at": 1}', '["a"]']

    def test_a_limit_keeps_the_rewards(self) -> None:
        assert asyncio.run(play(Client("a", "bb"), "", self.step)) == [0.5, 1.0]

    def test_a_first_turn_that_is_refused_is_an_error(self) -> None:
        with pytest.raises(RequestError, match="has had its turns"):
            asyncio.run(play(Client(), "", self.step))


def register_dice(textarena: Any) -> str:
    """Register a game that draws from the global generators in each step. "stop" ends it, "fail"
    and the number 1 as `broken` raise."""

    class Dice(textarena.Env):  # type: ignore[misc, name-defined]
        def __init__(self, broken: int = 0) -> None:
            self.broken = broken

        def reset(self, num_players: int, seed: int | None = None) -> None:
            self.state = textarena.SinglePlayerState(num_players=num_players, seed=seed)
            self.state.reset(
                game_state={}, player_prompt_function=lambda **_: f"begin {random.random()}"
            )
            if self.broken and seed == self.broken:
                raise RuntimeError("broken game")

        def step(self, action: str) -> Any:
            kind = textarena.ObservationType
            self.state.add_observation(action, kind.PLAYER_ACTION, from_id=0)
            drawn = f"drew {random.random()} {np.random.random()}"
            self.state.add_observation(drawn, kind.GAME_MESSAGE)
            if action == "stop":
                self.state.set_outcome(0.5)
            return self.state.step()

    if "Dice-v0" not in textarena.envs.registration.ENV_REGISTRY:
        textarena.envs.registration.register("Dice-v0", Dice)
    return "Dice-v0"


class TestTextArena:
    @pytest.fixture
    def dice(self) -> str:
        return register_dice(pytest.importorskip("textarena"))

    @pytest.fixture
    def agent(self, dice: str) -> Any:
        import textarena_games

        return textarena_games.agent

    def test_the_seed_decides_the_game_whatever_is_drawn_elsewhere(
        self, agent: Any, dice: str
    ) -> None:
        read = []
        for seed, drawn in [(7, 1), (7, 2), (8, 1)]:
            random.seed(drawn)
            np.random.seed(drawn)
            client = Client("a", "b", "stop")
            assert run(agent, client, seed, game=dice) == [0, 0, 0.5]
            read.append(client.read)
        assert read[0] == read[1]
        assert all(x != y for x, y in zip(read[0], read[2], strict=True))
        assert len(set(read[0])) == 3
        assert not any("[" in text or "a\n" in text for text in read[0])

    def test_the_global_generators_are_left_as_they_were(self, agent: Any, dice: str) -> None:
        before = np.random.get_state()[1].tolist()  # beartype draws from `random`
        run(agent, Client("a", "stop"), game=dice)
        assert np.random.get_state()[1].tolist() == before

    def test_bisection_wins(self, agent: Any) -> None:
        class Bisection(Client):
            low, high = 1, 12

            async def chat(self, messages: Any) -> Any:
                text = messages[-1]["content"]
                if text.endswith("higher."):
                    self.low = self.guess + 1
                elif text.endswith("lower."):
                    self.high = self.guess - 1
                else:
                    assert "between 1 and 12" in text
                self.guess = (self.low + self.high) // 2
                self.texts = [f"[{self.guess}]"]
                return await super().chat(messages)

        for seed in range(5):
            rewards = run(agent, Bisection(), seed, game="GuessTheNumber-v0", max_number=12)
            assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
            assert len(rewards) <= 4

    def test_responses_to_a_prompt_play_the_same_game_and_repeat(self, dice: str) -> None:
        responses, again = (
            sample("textarena_games:agent", {"game": dice}, workers=workers) for workers in (64, 3)
        )
        assert [(r.tokens, r.turns) for r in responses] == [(r.tokens, r.turns) for r in again]
        openings = [tuple(response.prompt_tokens) for response in responses]
        assert len(set(openings[:4])) == len(set(openings[4:])) == 1
        assert openings[0] != openings[4]
        assert {turn.reward for response in responses for turn in response.turns} == {0.0}
        assert {response.finish for response in responses} == {"length"}

    def test_a_game_that_raises_ends_its_sessions_only(self, dice: str) -> None:
        responses = sample("textarena_games:agent", {"game": dice, "broken": 1})
        records = [response.session for response in responses]
        assert [r and r.failure for r in records] == [None] * 4 + ["crash"] * 4
        assert EnvironmentReward()(responses).values == [0.0] * 4 + [None] * 4

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"game": "Dicee-v0"}, "first by crash: ValueError: Environment Dicee-v0 not found"),
            ({"faces": 6}, "unexpected keyword argument 'faces'"),
            ({"game": "TicTacToe-v0"}, "first by crash: AssertionError"),
        ],
    )
    def test_what_cannot_begin_ends_the_run(self, dice: str, options: Any, says: str) -> None:
        with pytest.raises(UserError, match=rf"all 8 sessions of textarena_games:agent .*{says}"):
            sample("textarena_games:agent", {"game": dice} | options)


class TestGymnasium:
    @pytest.fixture
    def module(self) -> Any:
        pytest.importorskip("gymnasium")
        import gymnasium_environments

        return gymnasium_environments

    def test_a_lake_is_crossed(self, module: Any) -> None:
        client = Client("I go down: 1", "1", "2", "1", "east", "4", "-1", "2", "2")
        rewards = run(
            module.agent, client, is_slippery=False, instruction="Go to 15.", invalid_reward=-0.5
        )
        assert rewards == [0, 0, 0, 0, -0.5, -0.5, -0.5, 0, 1]
        assert client.read[:2] == ["Go to 15.\n0", "4"]
        assert client.read[5:7] == ["no valid action", "no valid action"]

    def test_a_limit_of_the_environment_ends_it(self, module: Any) -> None:
        client = Client(*["0"] * 9)
        assert run(module.agent, client, is_slippery=False, max_episode_steps=3) == [0, 0, 0]

    def test_the_seed_decides_where_the_ice_carries(self, module: Any) -> None:
        read = []
        for seed in (1, 1, 2, 3, 4):
            client = Client(*["2"] * 6)
            run(module.agent, client, seed)
            read.append(client.read)
        assert read[0] == read[1]
        assert len({tuple(texts) for texts in read}) > 2

    def test_text_actions_are_the_whole_turn(self, module: Any) -> None:
        space = module.Text(max_length=6, charset="northeas")
        assert module.read_action(" north \n", space) == "north"
        assert module.read_action("go north", space) is None

    def test_other_actions_end_the_run(self, module: Any) -> None:
        with pytest.raises(UserError, match=r"actions of Pendulum-v1 are Box.*Discrete or Text"):
            sample("gymnasium_environments:agent", {"env_id": "Pendulum-v1"})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server of the package."""
    core = pytest.importorskip("openenv.core.env_server")
    import uvicorn

    class Say(core.Action):  # type: ignore[misc, name-defined]
        message: str

    class Said(core.Observation):  # type: ignore[misc, name-defined]
        text: str = ""
        left: int = 0

    class Digits(core.Environment):  # type: ignore[misc, name-defined]
        """Asks for the last digit of a number that grows in every step."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, plus: int = 0
        ) -> Said:
            self.number = (seed or 0) + plus
            return Said(text=f"Say {self.number % 10}:", done=False, reward=None)

        def step(self, action: Say, timeout_s: float | None = None, **options: Any) -> Said:
            if action.message == "boom":
                raise RuntimeError("boom")
            right = action.message == str(self.number % 10)
            self.number += 1
            reward = 1.0 if right else None
            return Said(text="no", left=self.number, done=right, reward=reward)

        @property
        def state(self) -> Any:
            return core.State()

    app = core.create_app(Digits, Say, Said, env_name="digits", max_concurrent_envs=8)
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(10)


@pytest.mark.filterwarnings("default")  # of the packages
class TestOpenEnv:
    @pytest.fixture
    def agent(self, url: str) -> Any:
        import openenv_servers

        return openenv_servers.agent

    def test_turns_are_actions(self, agent: Any, url: str) -> None:
        client = Client(" 4\n", "0")
        options = {"url": url, "observation": "text", "instruction": "A game.", "plus": 2}
        assert run(agent, client, **options) == [0.0, 1.0]
        assert client.read == ["A game.\nSay 9:", "no"]

    def test_the_whole_observation_is_json(self, agent: Any, url: str) -> None:
        client = Client("x")
        run(agent, client, url=url)
        assert client.read[1] == '{"text": "no", "left": 8}'

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({}, "Server error: .*boom"),
            ({"observation": "txt"}, "no field txt; fields: text, left"),
        ],
    )
    def test_an_error_ends_the_episode(self, agent: Any, url: str, options: Any, says: str) -> None:
        with pytest.raises((RuntimeError, ValueError), match=says):
            run(agent, Client("boom"), url=url, **options)

    def test_sessions_close_at_a_limit_and_repeat(self, agent: Any, url: str) -> None:
        # the server takes 8 at once
        options = {"url": url, "observation": "text"}
        first, again = (sample("openenv_servers:agent", options) for _ in range(2))
        assert [(r.tokens, r.turns) for r in first] == [(r.tokens, r.turns) for r in again]
        assert all(r.session is not None and r.session.failure is None for r in first)

    def test_no_server_ends_the_run(self, agent: Any) -> None:
        with pytest.raises(UserError, match=r"all 8 sessions .*127\.0\.0\.1:9"):
            sample("openenv_servers:agent", {"url": "http://127.0.0.1:9"})
