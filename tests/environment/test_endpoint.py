"""The HTTP endpoint: what clients read, and what hostile ones cannot do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import pytest

from rlmods.environment import endpoint as module
from rlmods.environment.endpoint import Endpoint, endpoint
from rlmods.environment.session import (
    Answer,
    Ask,
    Choice,
    Outcome,
    RequestError,
    Session,
    give,
    refuse,
    settle,
)
from rlmods.errors import UserError

CALL = {"id": "a1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": "1+1?"}]
CHAT = "/chat/completions"


class Server:
    """The endpoint and one session, whose requests are answered by `reply`."""

    def __init__(self) -> None:
        self.endpoint = endpoint("127.0.0.1", 0)
        self.changed = threading.Condition()
        self.session = Session(60.0, self.changed)
        self.key = f"key-{id(self)}"
        self.endpoint.sessions[self.key] = self.session
        self.asked: list[Ask] = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def close(self) -> None:
        self.session.end(Outcome())
        self.thread.join()
        del self.endpoint.sessions[self.key]
        # what later tests of this process would be warned of
        self.endpoint.ignored.clear()
        self.endpoint.num_unauthorized = 0

    def _serve(self) -> None:
        while True:
            settle([self.session], self.changed)
            if self.session.outcome is not None:
                return
            for request in self.session.take():
                self.asked.append(request.ask)
                if request.ask.text == "refused":
                    refuse(request, RequestError(400, "no room", "context_length_exceeded"))
                else:
                    give(request, Answer("name", 7, [self.choice(request.ask)] * request.ask.n))

    def choice(self, ask: Ask) -> Choice:
        message: dict[str, Any] = {"role": "assistant", "content": "2"}
        if ask.tools:
            message["tool_calls"] = [CALL]
        return Choice(message, "stop", 3, [("2", -0.5)] if ask.logprobs else None)

    def send(self, body: Any, path: str = CHAT, key: str | None = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return httpx2.post(self.endpoint.base_url + path, headers=headers, json=body, timeout=20)

    def events(self, body: Any, path: str = CHAT) -> list[Any]:
        lines = [
            line for line in self.send(body | {"stream": True}, path).text.split("\n\n") if line
        ]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class TestAnswers:
    def test_of_a_chat(self, server: Server) -> None:
        body = server.send({"model": "mine", "messages": MESSAGES, "n": 2, "logprobs": True}).json()
        assert body["object"] == "chat.completion"
        assert body["model"] == "mine"
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        choice = body["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "2", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"]["content"][0] == {
            "token": "2",
            "logprob": -0.5,
            "bytes": [50],
            "top_logprobs": [],
        }
        assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}

    def test_with_calls_of_tools(self, server: Server) -> None:
        [choice] = server.send({"messages": MESSAGES, "tools": TOOLS}).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}

    def test_as_a_stream(self, server: Server) -> None:
        first, last, usage = server.events(
            {"messages": MESSAGES, "tools": TOOLS, "stream_options": {"include_usage": True}}
        )
        delta = first["choices"][0]["delta"]
        assert delta["role"] == "assistant"
        assert delta["tool_calls"][0]["index"] == 0
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["usage"]["total_tokens"] == 10
        assert {event["object"] for event in (first, last, usage)} == {"chat.completion.chunk"}

    def test_of_text(self, server: Server) -> None:
        body = server.send({"prompt": "1+1=", "logprobs": 1}, "/completions").json()
        [choice] = body["choices"]
        assert choice["text"] == "2"
        assert choice["logprobs"] == {"tokens": ["2"], "token_logprobs": [-0.5]}
        [event] = server.events({"prompt": "1+1="}, "/completions")
        assert event["choices"][0]["text"] == "2"

    def test_of_a_response(self, server: Server) -> None:
        body = {"model": "mine", "input": "1+1?"}
        first = server.send(body, "/responses").json()
        assert (first["object"], first["model"]) == ("response", "mine")
        assert first["output"][0]["content"][0]["text"] == "2"
        assert first["usage"]["total_tokens"] == 10
        server.send({"input": "so?", "previous_response_id": first["id"]}, "/responses")
        contents = [message["content"] for message in server.asked[-1].messages]
        assert contents == ["1+1?", "2", "so?"]

    def test_of_a_response_as_a_stream(self, server: Server) -> None:
        lines = server.send({"input": "1+1?", "stream": True}, "/responses").text.split("\n\n")
        names = [line.split("\n")[0] for line in lines]
        assert names[0] == "event: response.created"
        assert names[-3:] == ["event: response.completed", "data: [DONE]", ""]

    def test_of_models(self, server: Server) -> None:
        headers = {"Authorization": f"Bearer {server.key}"}
        body = httpx2.get(f"{server.endpoint.base_url}/models", headers=headers).json()
        assert [model["id"] for model in body["data"]] == ["policy"]

    def test_name_ignored_fields(self, server: Server) -> None:
        body = {"messages": MESSAGES, "seed": 3, "temperature": 0, "tool_choice": "auto"}
        reply = server.send(body)
        assert reply.headers["X-Ignored-Fields"] == "seed, temperature"
        assert {"seed", "temperature"} <= server.endpoint.ignored
        assert "X-Ignored-Fields" not in server.send({"messages": MESSAGES}).headers

    def test_of_refused_requests(self, server: Server) -> None:
        reply = server.send({"prompt": "refused"}, "/completions")
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"


class TestKeys:
    @pytest.mark.parametrize(
        "path", [CHAT, "/completions", "/responses", "/models", "/nothing", "/../../x"]
    )
    @pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer no"}, {"Authorization": "x"}])
    def test_others_get_401_and_nothing_else(
        self, server: Server, path: str, header: dict[str, str]
    ) -> None:
        before = server.endpoint.num_unauthorized
        for method in ("GET", "POST"):
            reply = httpx2.request(method, server.endpoint.base_url + path, headers=header)
            assert reply.status_code == 401
            assert list(reply.json()) == ["error"]
        assert server.endpoint.num_unauthorized == before + 2
        assert server.asked == []

    def test_of_an_ended_session(self, server: Server) -> None:
        server.session.end(Outcome())
        assert server.send({"messages": MESSAGES}).status_code == 401

    def test_are_checked_before_the_body_is_read(self, server: Server) -> None:
        with raw(server) as connection:
            head = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
            connection.sendall(head.encode())
            assert b"401" in connection.recv(100)


BAD_BODIES: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "messages: must be a list of at least one message"),
    "no list": ({"messages": "x"}, "messages: must be a list"),
    "a number": ({"messages": [1]}, "messages: each must be an object"),
    "a role": ({"messages": [{"role": "usr", "content": ""}]}, "did you mean user"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "a content must be text",
    ),
    "n": ({"messages": MESSAGES, "n": 1000}, "n: must be a whole number, from 1 to 128"),
    "a truth": ({"messages": MESSAGES, "n": True}, "n: must be a whole number"),
    "no tokens": ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens: must be a whole number"),
    "stop": ({"messages": MESSAGES, "stop": [1]}, "stop: must be a text, or a list"),
    "an empty stop": ({"messages": MESSAGES, "stop": [""]}, "stop: must be a text, or a list"),
    "tools": ({"messages": MESSAGES, "tools": "x"}, "tools: must be a list"),
    "no tool": ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools: each must be"),
    "parameters": (
        {"messages": MESSAGES, "tools": [{"function": {"name": "f", "parameters": [1]}}]},
        "the parameters of f are not a JSON schema",
    ),
    "required": (
        {
            "messages": MESSAGES,
            "tools": [{"function": {"name": "f", "parameters": {"required": ["x"]}}}],
        },
        "f requires a parameter that it does not have",
    ),
    "a call": (
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        'a tool call must have a "function"',
    ),
    "a list": ([], "the body is not a JSON object"),
    "depth": (
        {"messages": MESSAGES, "metadata": json.loads("[" * 80 + "]" * 80)},
        "nested deeper than 64",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_one_line(server: Server, name: str) -> None:
    body, text = BAD_BODIES[name]
    reply = server.send(body)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 400
    assert text in message
    assert "\n" not in message
    assert server.asked == []


@contextmanager
def raw(server: Server) -> Iterator[socket.socket]:
    """A connection without a client."""
    port = int(server.endpoint.base_url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        yield connection


def head(server: Server, length: int) -> bytes:
    return (
        f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


class TestHostile:
    """Whatever others send, a client that behaves is served."""

    @pytest.fixture(autouse=True)
    def served(self, server: Server, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        yield
        assert caplog.records == []
        assert server.send({"messages": MESSAGES}).json()["choices"][0]["message"]["content"] == "2"

    @pytest.mark.parametrize(
        "data",
        [b"", b"\x00" * 100, b"GET", b"POST /v1 HTTP/9\r\n\r\n", b"\r\n" * 1000, b"A" * 100_000],
        ids=repr,
    )
    def test_bytes_that_are_no_request(self, server: Server, data: bytes) -> None:
        with raw(server) as connection, suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(2)
            connection.recv(100)

    def test_a_huge_body(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with raw(server) as connection:
            connection.sendall(head(server, module.MAX_BODY + 1))
            connection.sendall(b" " * 1000)
            sent = 1000
            with suppress(OSError):
                while sent <= module.MAX_BODY:
                    connection.sendall(b" " * (1 << 16))
                    sent += 1 << 16
            with suppress(OSError):
                assert b"413" in connection.recv(100)

    def test_half_a_request(self, server: Server) -> None:
        for _ in range(20):
            with raw(server) as connection:
                connection.sendall(head(server, 1000) + b'{"messages": [')
        assert server.asked == []

    def test_slow_bytes(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "BODY_TIMEOUT_S", 0.3)
        with raw(server) as connection:
            connection.sendall(head(server, 1000))
            for _ in range(10):
                with suppress(OSError):
                    connection.sendall(b"{")
                time.sleep(0.06)
            assert b"408" in connection.recv(100)

    def test_many_connections(self, server: Server) -> None:
        with ThreadPoolExecutor(8) as pool:
            opened = [raw(server) for _ in range(200)]
            connections = list(pool.map(lambda x: x.__enter__(), opened))
            replies = list(pool.map(lambda _: server.send({"messages": MESSAGES}), range(40)))
            for connection in connections:
                connection.close()
        assert {reply.status_code for reply in replies} == {200}

    def test_a_client_that_leaves_is_not_answered(self, server: Server) -> None:
        session = Session(60.0, threading.Condition())
        server.endpoint.sessions["leaves"] = session
        body = json.dumps({"messages": MESSAGES}).encode()
        with raw(server) as connection:
            text = head(server, len(body)).replace(server.key.encode(), b"leaves")
            connection.sendall(text + body)
            wait_until(session.is_settled)
        wait_until(lambda: not session.is_settled())
        del server.endpoint.sessions["leaves"]


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_port_in_use_is_one_line() -> None:
    port = int(endpoint("127.0.0.1", 0).base_url.split(":")[2].split("/")[0])
    with pytest.raises(UserError, match=r"environment\.port=\d+: the endpoint cannot listen there"):
        Endpoint("127.0.0.1", port)
