"""Chat completions server on loopback with scripted replies."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = str | tuple[int, bytes] | tuple[int, bytes, dict[str, str]]
"""Text of the model's message; or the raw status, content and headers."""
Script = Callable[[dict[str, Any], int], Reply]
"""Maps a request's body and its number, counted from 0, to the reply."""

TEMPLATE = "{prompt}|{first}|{second}"


@dataclass
class RequestLog:
    """Address of a running server, and the requests it has received."""

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
        """Print nothing: in some tests the client disconnects on purpose."""


@contextmanager
def serve(script: Script) -> Iterator[RequestLog]:
    log, lock = RequestLog(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body: dict[str, Any]) -> None:
            with lock:
                number = len(log.bodies)
                log.bodies.append(body)
                log.headers.append({key.lower(): value for key, value in self.headers.items()})
                log.paths.append(self.path)
            reply = script(body, number)
            status, content, *headers = (
                (200, completion(reply)) if isinstance(reply, str) else reply
            )
            self.send_response(status)
            for key, value in {
                "Content-Length": str(len(content)),
                **(headers[0] if headers else {}),
            }.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    log.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield log
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(text: str | None, finish_reason: str = "stop") -> bytes:
    return json.dumps(
        {
            "choices": [
                {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
            ]
        }
    ).encode()


def longer(body: dict[str, Any], number: int) -> str:
    """Script of a judge that prefers the longer of the two responses of `TEMPLATE`, in either
    position."""
    _, first, second = body["messages"][-1]["content"].split("|")
    return "TIE" if len(first) == len(second) else "A" if len(first) > len(second) else "B"


def in_turn(*replies: Reply) -> Script:
    """Script of fixed replies in order; the last one repeats."""
    return lambda body, number: replies[min(number, len(replies) - 1)]
