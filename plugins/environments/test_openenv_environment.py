"""Environments of OpenEnv: a fake of its client for the logic, and a server of the package where it
is installed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from openenv_environment import OpenEnv

from rlmods.errors import UserError
from rlmods.types import Prompt, Reply, Turn

PROMPT = Prompt(id="a", text="7", meta={"seed": 7})


def said(text: str) -> Turn:
    return Turn(0, len(text), text)


class Client:
    """Asks for the last digit of a number that grows in every step."""

    made: list[Client]
    refuses = False

    def __init__(self, base_url: str, message_timeout_s: float) -> None:
        self.closed, self.number, self.options = False, 0, dict[str, Any]()
        self.made.append(self)

    def sync(self) -> Client:
        return self

    def reset(self, seed: int, **options: Any) -> Any:
        if self.refuses:
            raise ConnectionError("Failed to connect\nto it")
        self.number, self.options = seed, options
        return SimpleNamespace(observation={"text": f"Say {seed % 10}:", "metadata": {}})

    def step(self, action: dict[str, Any]) -> Any:
        assert not self.closed
        if action["message"] == "boom":
            raise RuntimeError("Server error: boom")
        right = action["message"] == str(self.number % 10)
        self.number += 1
        observation = {"text": "no", "left": self.number, "metadata": {}}
        return SimpleNamespace(observation=observation, reward=1.0 if right else None, done=right)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []
    kind = type("Fake", (Client,), {"made": made})
    monkeypatch.setitem(
        sys.modules, "openenv", SimpleNamespace(core=SimpleNamespace(GenericEnvClient=kind))
    )
    monkeypatch.setitem(sys.modules, "openenv.core", SimpleNamespace(GenericEnvClient=kind))
    return made


def environment(**settings: Any) -> OpenEnv:
    return OpenEnv(**{"url": "http://h:1", "observation": "text"} | settings)


class TestEpisode:
    def test_turns_are_actions(self, clients: list[Client]) -> None:
        episode = environment(instruction="A game.", options={"level": 2}).start(PROMPT, key=())
        assert episode.prompt.text == "A game.\nSay 7:"
        assert clients[0].options == {"level": 2}
        reply = episode.reply(said(" 3\n"))
        assert (reply.messages, reply.reward) == ([{"role": "user", "content": "no"}], 0.0)
        reply = episode.reply(said("8"))
        assert (reply.messages, reply.reward) == (None, 1.0)
        assert clients[0].closed

    def test_a_limit_closes_the_session(self, clients: list[Client]) -> None:
        assert environment().start(PROMPT, key=()).end() == Reply(None)
        assert clients[0].closed

    def test_the_whole_observation_is_json(self, clients: list[Client]) -> None:
        episode = environment(observation=None).start(PROMPT, key=())
        assert episode.prompt.text == "Say 7:"  # its only field
        [message] = episode.reply(said("x")).messages or ()
        assert message["content"] == '{"text": "no", "left": 8}'

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({}, "RuntimeError: Server error: boom"),
            ({"observation": "txt"}, "no field txt; fields: text"),
        ],
    )
    def test_an_error_of_the_server_ends_the_episode(
        self, clients: list[Client], settings: Any, error: str
    ) -> None:
        episode = environment().start(PROMPT, key=())
        object.__setattr__(episode, "environment", environment(**settings))
        reply = episode.reply(said("boom" if not settings else "x"))
        assert (reply.messages, reply.reward) == (None, None)
        [call] = reply.calls
        assert call.error == "crash"
        assert error in call.result
        assert clients[0].closed

    def test_messages_of_chat(self, clients: list[Client]) -> None:
        shown = (
            environment()
            .start(
                Prompt(id="a", messages=[{"role": "user", "content": "7"}], meta={"seed": 7}),
                key=(),
            )
            .prompt
        )
        assert shown.messages == [{"role": "user", "content": "Say 7:"}]


class TestServer:
    def test_one_that_begins_no_episode_is_an_error(
        self, clients: list[Client], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment().check_prompt(PROMPT)
        assert clients[0].closed
        monkeypatch.setattr(Client, "refuses", True)
        for check in (
            environment().check_prompt,
            lambda prompt: environment().start(prompt, key=()),
        ):
            with pytest.raises(
                UserError,
                match=r"environment\.url=http://h:1: no episode begins: ConnectionError: Failed to "
                r"connect to it",
            ):
                check(PROMPT)

    @pytest.mark.parametrize("url", [None, "localhost:8000", "file:///etc/passwd"])
    def test_needs_an_address(self, url: Any) -> None:
        with pytest.raises(
            UserError,
            match=r"type the address of an OpenEnv server, environment\.url=http://localhost:8000",
        ):
            environment(url=url).check_prompt(PROMPT)

    def test_the_time_limit_is_checked(self) -> None:
        with pytest.raises(ValueError, match=r"environment\.timeout_s=0\.0: must be above 0"):
            environment(timeout_s=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of the package."""
    core = pytest.importorskip("openenv.core.env_server")
    import uvicorn

    class Say(core.Action):  # type: ignore[misc, name-defined]
        message: str

    class Said(core.Observation):  # type: ignore[misc, name-defined]
        text: str = ""

    class Digits(core.Environment):  # type: ignore[misc, name-defined]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, **options: Any
        ) -> Said:
            self.number = seed or 0
            return Said(text=f"Say {self.number % 10}:", done=False, reward=0.0)

        def step(self, action: Say, timeout_s: float | None = None, **options: Any) -> Said:
            if action.message == "boom":
                raise RuntimeError("boom")
            right = action.message == str(self.number % 10)
            self.number += 1
            return Said(text="no", done=right, reward=float(right))

        @property
        def state(self) -> Any:
            return core.State()

    app = core.create_app(Digits, Say, Said, env_name="digits", max_concurrent_envs=4)
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(10)


@pytest.mark.filterwarnings("default")
def test_with_the_package(server: str) -> None:
    made = environment(url=server)
    made.check_prompt(PROMPT)
    episode = made.start(PROMPT, key=())
    assert episode.prompt.text == "Say 7:"
    assert episode.reply(said("3")).messages == [{"role": "user", "content": "no"}]
    assert episode.reply(said("8")).reward == 1.0
    reply = made.start(PROMPT, key=()).reply(said("boom"))
    assert "boom" in reply.calls[0].result
