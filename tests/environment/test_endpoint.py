"""The HTTP endpoint: what clients read, and what hostile ones cannot do."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
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
        self.endpoint.refused.clear()

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
    def test_of_an_ended_session(self, server: Server) -> None:
        server.session.end(Outcome())
        assert server.send({"messages": MESSAGES}).status_code == 401

    def test_are_checked_before_the_body_is_read(self, server: Server) -> None:
        with raw(server) as connection:
            head = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
            connection.sendall(head.encode())
            assert b"401" in connection.recv(100)


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


@pytest.fixture
def served(server: Server, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client that behaves is served afterwards, and nothing was logged."""
    yield
    assert caplog.get_records("call") == []
    assert server.send({"messages": MESSAGES}).json()["choices"][0]["message"]["content"] == "2"


@pytest.mark.usefixtures("served")
class TestHostile:
    """Whatever others send, a client that behaves is served."""

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

    @pytest.mark.slow
    def test_a_thousand_connections(self, server: Server) -> None:
        with ExitStack() as opened, ThreadPoolExecutor(8) as pool:
            for _ in range(1000):
                opened.enter_context(raw(server))
            replies = list(pool.map(lambda _: server.send({"messages": MESSAGES}), range(40)))
        assert {reply.status_code for reply in replies} == {200}
        assert len(server.asked) == 40

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


POST = f"POST /v1{CHAT} HTTP/1.1"
CLOSE = "Connection: close"


def request(key: str, body: str | bytes, head: str = POST, *lines: str) -> bytes:
    """Return the bytes of a request. `{key}` in `key` is the key of the session."""
    data = body if isinstance(body, bytes) else body.encode()
    length = f"Content-Length: {len(data)}"
    headers = (head, "Host: x", f"Authorization: {key}", length, *lines)
    return "\r\n".join(headers).encode() + b"\r\n\r\n" + data


OWN = "Bearer {key}"
GOOD = json.dumps({"messages": MESSAGES})
WRONG_KEYS = {
    "no key": "",
    "no word": "Bearer",
    "no value": "Bearer ",
    "another": "Bearer other",
    "ended": "Bearer ended",
    "longer": "Bearer {key}x",
    "shorter": "Bearer key-",
    "two": "Bearer {key} {key}",
    "basic": "Basic a2V5",
    "quoted": 'Bearer "{key}"',
    "in brackets": "Bearer [{key}]",
    "upper case": "Bearer KEY",
    "star": "Bearer *",
    "a path": "Bearer ../../{key}",
    "null": "Bearer null",
    "long": "Bearer " + "x" * 7000,
}
"""Values of the header Authorization."""
BAD_JSON: dict[str, str | bytes] = {
    "nothing": "",
    "space": "  ",
    "null": "null",
    "true": "true",
    "a number": "1",
    "a text": '"x"',
    "a list of objects": "[{}]",
    "half": '{"messages": [',
    "two objects": "{}{}",
    "a comma": '{"messages": [],}',
    "single quotes": "{'messages': []}",
    "a comment": "{} // x",
    "no value": '{"messages":}',
    "an escape": '{"messages": "\\x"}',
    "a form": "messages=x",
    "markup": "<messages/>",
    "bytes": b"\xff\xfe\x00",
    "zeros": b"\x00" * 100,
    "depth": "[" * 100_000,
    "depth of objects": '{"a":' * 100_000,
    "a depth that ends": '{"a":' + "[" * 900 + "]" * 900 + "}",
    "no messages": '{"messages": []}',
    "an object": '{"messages": {}}',
    "messages of lists": '{"messages": [[]]}',
    "messages of nulls": '{"messages": [null]}',
    "a role that is a list": '{"messages": [{"role": [], "content": "x"}]}',
    "a content that is a number": '{"messages": [{"role": "user", "content": 1}]}',
    "a content of lists": '{"messages": [{"role": "user", "content": [[]]}]}',
    "calls that are a number": '{"messages": [{"role": "assistant", "tool_calls": 1}]}',
    "calls of texts": '{"messages": [{"role": "assistant", "tool_calls": ["x"]}]}',
    "n below 0": GOOD[:-1] + ', "n": -1}',
    "n that is no number": GOOD[:-1] + ', "n": NaN}',
    "endless tokens": GOOD[:-1] + ', "max_tokens": Infinity}',
    "stop that is an object": GOOD[:-1] + ', "stop": {"a": 1}}',
    "tools of numbers": GOOD[:-1] + ', "tools": [1]}',
    "a number of 5,000 digits": GOOD[:-1] + ', "n": ' + "9" * 5000 + "}",
}
MESSAGES_FORM = "messages: must be one or more objects with"
TOOLS_FORM = "tools: must be a list of"
BAD_BODIES: dict[str, tuple[Any, str]] = {  # and what they are told
    "an empty object": ({}, MESSAGES_FORM),
    "no list": ({"messages": "x"}, MESSAGES_FORM),
    "a message that is a number": ({"messages": [1]}, MESSAGES_FORM),
    "a role": ({"messages": [{"role": "usr", "content": ""}]}, "did you mean user"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, MESSAGES_FORM),
    "a call": ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, MESSAGES_FORM),
    "n": ({"messages": MESSAGES, "n": 1000}, "n: must be from 1 to 128"),
    "a truth": ({"messages": MESSAGES, "n": True}, "n: must be a whole number"),
    "no tokens": ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens: must be at least 1"),
    "stop": ({"messages": MESSAGES, "stop": [1]}, "stop: must be a text, or a list"),
    "an empty stop": ({"messages": MESSAGES, "stop": [""]}, "stop: must be a text, or a list"),
    "tools": ({"messages": MESSAGES, "tools": "x"}, TOOLS_FORM),
    "no tool": ({"messages": MESSAGES, "tools": [{"type": "function"}]}, TOOLS_FORM),
    "parameters": (
        {"messages": MESSAGES, "tools": [{"function": {"name": "f", "parameters": [1]}}]},
        TOOLS_FORM,
    ),
    "required": (
        {
            "messages": MESSAGES,
            "tools": [{"function": {"name": "f", "parameters": {"required": ["x"]}}}],
        },
        TOOLS_FORM,
    ),
    "a list": ([], "the body is not a JSON object"),
    "a field of depth 80": (
        {"messages": MESSAGES, "metadata": json.loads("[" * 80 + "]" * 80)},
        "nested deeper than 64",
    ),
}
WRONG_HEADS = {
    "DELETE": f"DELETE /v1{CHAT} HTTP/1.1",
    "PUT": f"PUT /v1{CHAT} HTTP/1.1",
    "GET": f"GET /v1{CHAT} HTTP/1.1",
    "POST of models": "POST /v1/models HTTP/1.1",
    "another path": "POST /v1/files HTTP/1.1",
    "a file": "GET /etc/passwd HTTP/1.1",
    "a path upwards": "GET /v1/../../etc/passwd HTTP/1.1",
    "an escaped path": "GET /v1/%2e%2e/%00 HTTP/1.1",
    "an unknown method": f"FLOOD /v1{CHAT} HTTP/1.1",
}
PATHS = (CHAT, "/completions", "/responses", "/models", "/nothing", "/../../x")
FLOODS = {
    "many headers": [f"X-{i}: {'x' * 100}" for i in range(5000)],
    "a long header": ["X-A: " + "x" * 100_000],
    "two lengths": ["Content-Length: 3"],
    "a length below 0": ["Content-Length: -1"],
    "an unknown coding": ["Transfer-Encoding: x"],
    "a header without a colon": ["X"],
}
NO_REQUESTS = {
    "nothing": b"",
    "zeros": b"\x00" * 100,
    "a method": b"GET",
    "another version": b"POST /v1 HTTP/9\r\n\r\n",
    "empty lines": b"\r\n" * 1000,
    "a long line": b"A" * 100_000,
}


def exchange(server: Server, data: bytes, *, ends: bool = False) -> bytes:
    """Send these bytes, with the session's key in place of `{key}`, and return what comes back.
    `ends`: send no more, so that the server does not wait for the rest of a request."""
    received = b""
    with raw(server) as connection, suppress(ConnectionError):
        connection.settimeout(20)
        connection.sendall(data.replace(b"{key}", server.key.encode()))
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


def status_of(reply: bytes) -> int:
    """Return the status of a reply; 0 if the connection was closed without one."""
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.") else 0


@pytest.mark.slow
@pytest.mark.usefixtures("served")
class TestSixtyHostileClients:
    """All at once, beside a client that behaves: each gets one line, and nothing is mixed up."""

    def send(
        self, server: Server, requests: dict[str, bytes], *, ends: bool = False
    ) -> dict[str, bytes]:
        """Return the reply to each, sent at once while another client asks forty times."""
        ended = Session(60.0, threading.Condition())
        ended.end(Outcome())
        server.endpoint.sessions["ended"] = ended
        bodies = [{"model": str(i), "messages": MESSAGES} for i in range(40)]
        with ThreadPoolExecutor(16) as pool:
            hostile = {
                name: pool.submit(exchange, server, x, ends=ends) for name, x in requests.items()
            }
            good = list(pool.map(server.send, bodies))
            replies = {name: future.result() for name, future in hostile.items()}
        del server.endpoint.sessions["ended"]
        assert {reply.status_code for reply in good} == {200}
        assert [reply.json()["model"] for reply in good] == [str(i) for i in range(40)]
        assert len(server.asked) == 40
        return replies

    def assert_one_line(self, reply: bytes, text: str = "") -> None:
        message = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert message
        assert text in message
        assert "\n" not in message

    def test_with_wrong_keys(self, server: Server) -> None:
        requests = {name: request(key, GOOD, POST, CLOSE) for name, key in WRONG_KEYS.items()}
        for path in PATHS:
            for method in ("GET", "POST"):
                head = f"{method} /v1{path} HTTP/1.1"
                requests[head] = request("x", "", head, CLOSE)
        refused = server.endpoint.refused
        before = refused["had no key of a running session"]
        for name, reply in self.send(server, requests).items():
            assert status_of(reply) == 401, name
            self.assert_one_line(reply)
        assert refused["had no key of a running session"] == before + len(requests)

    def test_with_bad_bodies(self, server: Server) -> None:
        bodies = BAD_JSON | {name: json.dumps(body) for name, (body, _) in BAD_BODIES.items()}
        requests = {name: request(OWN, body, POST, CLOSE) for name, body in bodies.items()}
        for name, reply in self.send(server, requests).items():
            assert status_of(reply) == 400, name
            _, text = BAD_BODIES.get(name, (None, ""))
            self.assert_one_line(reply, text)

    def test_with_bad_heads(self, server: Server) -> None:
        requests = {name: request(OWN, GOOD, head, CLOSE) for name, head in WRONG_HEADS.items()}
        for name, lines in FLOODS.items():
            requests[name] = request(OWN, "", POST, CLOSE, *lines)
        requests |= NO_REQUESTS
        for name, reply in self.send(server, requests, ends=True).items():
            assert status_of(reply) in (0, 400, 404, 405), name


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_port_in_use_is_one_line() -> None:
    port = int(endpoint("127.0.0.1", 0).base_url.split(":")[2].split("/")[0])
    with pytest.raises(UserError, match=r"environment\.port=\d+: the endpoint cannot listen there"):
        Endpoint("127.0.0.1", port)
