"""A chat-completions server on loopback that says what a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, bytes] | tuple[int, bytes, dict[str, str]]
"""What the model says; or status, content and headers, word for word."""
Script = Callable[[dict[str, Any], int], Answer]
"""What is said to a request's body; the number counts the requests, from 0."""

TEMPLATE = "{prompt}|{first}|{second}"


@dataclass
class Served:
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def questions(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Nothing: a client that gave up is part of some tests."""


@contextmanager
def serve(script: Script) -> Iterator[Served]:
    served, lock = Served(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(served.bodies)
                served.bodies.append(body)
                served.headers.append({key.lower(): value for key, value in self.headers.items()})
                served.paths.append(self.path)
            answer = script(body, number)
            status, content, *headers = (200, completion(answer)) if isinstance(answer, str) else answer
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **(headers[0] if headers else {})}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(text: str | None, finish_reason: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}]}).encode()


def longer(body: dict[str, Any], number: int) -> str:
    """A judge that prefers the longer of the two responses of `TEMPLATE`, wherever it stands."""
    _, first, second = body["messages"][-1]["content"].split("|")
    return "TIE" if len(first) == len(second) else "A" if len(first) > len(second) else "B"


def in_turn(*answers: Answer) -> Script:
    """One after the other, the last again and again."""
    return lambda body, number: answers[min(number, len(answers) - 1)]
