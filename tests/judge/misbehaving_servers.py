"""Servers on loopback that break HTTP, JSON, the schema of a chat completion, or never end.

`rows()` asks a judge one question at each and returns what became of it."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rlmods.errors import UserError
from rlmods.judge import LLM
from rlmods.types import Prompt
from tests.judge.server import TEMPLATE, completion

Act = Callable[[socket.socket, threading.Event], None]
"""What a server does with a connection, once it has read the request; it ends when the event is set
or the client has gone."""
SHORT_S, LONG_S = 0.2, 20.0
"""Deadline of a question to a server that never ends, and to one whose reply ends."""
NEVER_S = 3.0
"""Time after which a server that never ends closes the connection, so that a client without a limit
is seen, and ends too."""


@dataclass(frozen=True)
class Behaviour:
    """A server's behaviour, and what becomes of a question."""

    name: str
    act: Act
    expected: str = "errors"
    """"verdict", or the count under which the lost verdict is found: "errors", "timeouts",
    "without_verdict"."""

    resolve_s: float = 0.0
    """Time in which the name of the server is resolved."""

    @property
    def deadline_s(self) -> float:
        return SHORT_S if self.expected == "timeouts" else LONG_S


def raw(*parts: bytes) -> Act:
    """Send the bytes and close the connection."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        for part in parts:
            connection.sendall(part)

    return act


def reply(content: bytes, *headers: str, status: str = "200 OK") -> Act:
    return raw(head(*headers, f"Content-Length: {len(content)}", status=status), content)


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


def as_json(value: Any) -> Act:
    return reply(json.dumps(value).encode())


def drip(*parts: bytes, every_s: float = 0.02) -> Act:
    """Send the first parts at once, and the last one again and again, slowly enough that no single
    read is late."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        for part in parts[:-1]:
            connection.sendall(part)
        end = time.monotonic() + NEVER_S
        while not stop.wait(every_s) and time.monotonic() < end:
            connection.sendall(parts[-1])

    return act


def flood(start: bytes, part: bytes) -> Act:
    """Send `part` without end."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(start)
        end = time.monotonic() + NEVER_S
        while not stop.is_set() and time.monotonic() < end:
            connection.sendall(part)

    return act


def stall(*parts: bytes) -> Act:
    """Send the bytes and leave the connection open."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        for part in parts:
            connection.sendall(part)
        stop.wait(NEVER_S)

    return act


def reset(*parts: bytes) -> Act:
    """Send the bytes and reset the connection."""

    def act(connection: socket.socket, stop: threading.Event) -> None:
        for part in parts:
            connection.sendall(part)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return act


GOOD = completion("A")
ZEROS = b"0" * (64 << 20)
SPACES = b" " * (6 << 20)
CHUNKED = head("Transfer-Encoding: chunked")
UNTIL_CLOSED = head("Content-Type: application/json")


def nested(content: bytes, times: int) -> bytes:
    for _ in range(times):
        content = gzip.compress(content)
    return content


LATE, BROKEN = "timeouts", "errors"


def slow() -> list[Behaviour]:
    """Servers that do not reply in time."""
    return [
        Behaviour("a name that is not resolved", stall(), LATE, resolve_s=NEVER_S),
        Behaviour("a name that is resolved late", reply(GOOD), "verdict", resolve_s=0.1),
        Behaviour("no reply", stall(), LATE),
        Behaviour("a status line and no more", stall(b"HTTP/1.1 200 OK\r\n"), LATE),
        Behaviour("headers and no body", stall(head("Content-Length: 9")), LATE),
        Behaviour(
            "half a body and no more", stall(head(f"Content-Length: {len(GOOD)}"), GOOD[:9]), LATE
        ),
        Behaviour("a byte of the status line now and then", drip(b"HTTP/1.1 2", b"0"), LATE),
        Behaviour("a header now and then", drip(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"), LATE),
        Behaviour(
            "a byte of the body now and then", drip(head("Content-Length: 99999"), b" "), LATE
        ),
        Behaviour("a byte of an unbounded body now and then", drip(UNTIL_CLOSED, b" "), LATE),
        Behaviour("a chunk now and then", drip(CHUNKED, b"1\r\n \r\n"), LATE),
        Behaviour(
            "a byte of an error's body now and then",
            drip(head("Content-Length: 999", status="500 Oops"), b"x"),
            LATE,
        ),
        Behaviour("100 Continue now and then", drip(b"HTTP/1.1 100 Continue\r\n\r\n"), LATE),
        Behaviour(
            "100 Continue without end", flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50), LATE
        ),
        Behaviour(
            "Retry-After: in 30 years",
            reply(b"", "Retry-After: 999999999", status="429 Slow down"),
            BROKEN,
        ),
        Behaviour(
            "Retry-After: infinity",
            reply(b"", "Retry-After: 1e999", status="429 Slow down"),
            BROKEN,
        ),
        Behaviour(
            "Retry-After: not a number", reply(b"", "Retry-After: nan", status="503 Busy"), BROKEN
        ),
        Behaviour(
            "Retry-After: negative", reply(b"", "Retry-After: -5", status="503 Busy"), BROKEN
        ),
        Behaviour(
            "Retry-After: the year 9999",
            reply(b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", status="429 X"),
            BROKEN,
        ),
        Behaviour(
            "Retry-After: no such date",
            reply(b"", "Retry-After: Fri, 99 Dec 99999 99:99:99 -9999", status="429 X"),
            BROKEN,
        ),
    ]


def large() -> list[Behaviour]:
    """Replies without end, or large ones once decompressed; made when they are asked for."""
    bomb, deflated = gzip.compress(ZEROS, 1), zlib.compress(ZEROS, 1)
    return [
        Behaviour("a body without end", flood(UNTIL_CLOSED, b" " * 65536), BROKEN),
        Behaviour(
            "chunks without end", flood(CHUNKED, b"1000\r\n" + b" " * 4096 + b"\r\n"), BROKEN
        ),
        Behaviour("headers without end", flood(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 500), BROKEN),
        Behaviour("a header without end", flood(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096), BROKEN),
        Behaviour("an error without end", flood(head(status="500 Oops"), b"x" * 65536), BROKEN),
        Behaviour("a verdict before megabytes of white space", reply(GOOD + SPACES), BROKEN),
        Behaviour(
            "a verdict before megabytes of white space in gzip",
            reply(gzip.compress(GOOD + SPACES), "Content-Encoding: gzip"),
            BROKEN,
        ),
        Behaviour("gzip bomb", reply(bomb, "Content-Encoding: gzip"), BROKEN),
        Behaviour("deflate bomb", reply(deflated, "Content-Encoding: deflate"), BROKEN),
        Behaviour(
            "gzip bomb in an error", reply(bomb, "Content-Encoding: gzip", status="400 Bad"), BROKEN
        ),
        Behaviour(
            "gzip in gzip in gzip",
            reply(nested(ZEROS, 3), "Content-Encoding: gzip, gzip, gzip"),
            BROKEN,
        ),
        Behaviour(
            "nine times gzip",
            reply(nested(GOOD, 9), "Content-Encoding: " + ", ".join(["gzip"] * 9)),
            BROKEN,
        ),
    ]


def broken_http() -> list[Behaviour]:
    """Connections and messages that break HTTP, and errors of HTTP."""
    return [
        Behaviour("closed at once", raw(), BROKEN),
        Behaviour("reset at once", reset(), BROKEN),
        Behaviour("reset in the headers", reset(b"HTTP/1.1 200 OK\r\nConte"), BROKEN),
        Behaviour(
            "reset in the body", reset(head(f"Content-Length: {len(GOOD)}"), GOOD[:9]), BROKEN
        ),
        Behaviour("closed in the status line", raw(b"HTTP/1."), BROKEN),
        Behaviour("closed in the headers", raw(b"HTTP/1.1 200 OK\r\nContent-Le"), BROKEN),
        Behaviour("closed in the body", raw(head("Content-Length: 9999"), GOOD), BROKEN),
        Behaviour("closed in a chunk", raw(CHUNKED, b"1000\r\nabc"), BROKEN),
        Behaviour("not HTTP", raw(bytes(range(256)) * 4), BROKEN),
        Behaviour("HTTP/0.9", raw(GOOD), BROKEN),
        Behaviour("TLS", raw(b"\x15\x03\x01\x00\x02\x02\x28"), BROKEN),
        Behaviour("a status that is no number", reply(GOOD, status="OK"), BROKEN),
        Behaviour("status 999", reply(GOOD, status="999 What"), BROKEN),
        Behaviour("status 000", reply(GOOD, status="000 What"), BROKEN),
        Behaviour("a negative length", raw(head("Content-Length: -1"), GOOD), BROKEN),
        Behaviour("two lengths", raw(head("Content-Length: 3", "Content-Length: 5"), GOOD), BROKEN),
        Behaviour("a chunk of no size", raw(CHUNKED, b"xyz\r\n"), BROKEN),
        Behaviour("a chunk of 2^80 bytes", raw(CHUNKED, b"100000000000000000000\r\n"), BROKEN),
        Behaviour("a header without a colon", raw(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), BROKEN),
        Behaviour("a header with a NUL", raw(b"HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n"), BROKEN),
        Behaviour("gzip that is none", reply(GOOD, "Content-Encoding: gzip"), BROKEN),
        Behaviour("half a gzip", reply(gzip.compress(GOOD)[:30], "Content-Encoding: gzip"), BROKEN),
        Behaviour(
            "101 Switching Protocols",
            raw(head("Upgrade: x", "Connection: Upgrade", status="101 Switch")),
            BROKEN,
        ),
        Behaviour("204 No Content", raw(head(status="204 No Content")), BROKEN),
        Behaviour(
            "a redirect to itself",
            reply(b"", "Location: /v1/chat/completions", status="307 Here"),
            BROKEN,
        ),
        Behaviour(
            "a redirect with a terminal's codes",
            reply(b"", "Location: http://x\x1b[2J\x07", status="301 Here"),
            BROKEN,
        ),
        Behaviour(
            "a key that is not accepted any more", reply(b"no", status="401 Unauthorized"), BROKEN
        ),
        Behaviour("a model that is gone", reply(b"no", status="404 Not Found"), BROKEN),
        Behaviour(
            "a context that is too short", reply(b"too long", status="400 Bad Request"), BROKEN
        ),
    ]


def invalid_contents() -> list[Behaviour]:
    """Bodies that hold no verdict."""
    return [
        Behaviour("an empty body", reply(b""), BROKEN),
        Behaviour("HTML", reply(b"<html>busy</html>", "Content-Type: text/html"), BROKEN),
        Behaviour("no UTF-8", reply(b'{"choices": "\xff\xfe"}'), BROKEN),
        Behaviour("half a JSON", reply(GOOD[:-4]), BROKEN),
        Behaviour("JSON and more", reply(GOOD + b"{}"), BROKEN),
        Behaviour("deep lists", reply(b"[" * 1_000_000), BROKEN),
        Behaviour("deep objects", reply(b'{"choices":' * 200_000), BROKEN),
        Behaviour(
            "a deep reply that ends",
            reply(b'{"choices":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
            BROKEN,
        ),
        Behaviour("a number of a million digits", reply(b"1" * 1_000_000), BROKEN),
        Behaviour("not a number", reply(b"NaN"), BROKEN),
        Behaviour("null", as_json(None), BROKEN),
        Behaviour("a text", as_json("A"), BROKEN),
        Behaviour("choices that are an object", as_json({"choices": {"0": {}}}), BROKEN),
        Behaviour("choices of null", as_json({"choices": [None]}), BROKEN),
        Behaviour("no message", as_json({"choices": [{"message": None}]}), BROKEN),
        Behaviour(
            "content that is a number", as_json({"choices": [{"message": {"content": 1}}]}), BROKEN
        ),
        Behaviour(
            "content that is a list",
            as_json({"choices": [{"message": {"content": [{"text": "A"}]}}]}),
            BROKEN,
        ),
        Behaviour("no verdict", reply(completion("Both are good.")), "without_verdict"),
        Behaviour("no content", reply(completion(None)), "without_verdict"),
        Behaviour("a verdict that is cut off", reply(completion("A", "length")), "without_verdict"),
        Behaviour(
            "a line of a million stars",
            reply(completion("A" + "*" * 1_000_000 + "x")),
            "without_verdict",
        ),
        Behaviour("a million words", reply(completion("a " * 1_000_000)), "without_verdict"),
        Behaviour(
            "half a surrogate pair",
            reply(b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
            "without_verdict",
        ),
    ]


def unusual() -> list[Behaviour]:
    """Unusual replies that hold a verdict."""
    return [
        Behaviour("no such version", raw(b"HTTP/7.3 200 OK\r\n\r\n" + GOOD), "verdict"),
        Behaviour("a wrong content type", reply(GOOD, "Content-Type: image/png"), "verdict"),
        Behaviour("a byte order mark", reply(b"\xef\xbb\xbf" + GOOD), "verdict"),
        Behaviour("gzip", reply(gzip.compress(GOOD), "Content-Encoding: gzip"), "verdict"),
        Behaviour("a body that ends with the connection", raw(UNTIL_CLOSED, GOOD), "verdict"),
        Behaviour(
            "two replies",
            raw(head(f"Content-Length: {len(GOOD)}"), GOOD, head(), completion("B")),
            "verdict",
        ),
    ]


def behaviours() -> list[Behaviour]:
    """Return all behaviours."""
    return [*slow(), *large(), *broken_http(), *invalid_contents(), *unusual()]


@contextmanager
def serve(act: Act) -> Iterator[str]:
    """Run a server with one behaviour; yields its address."""
    stop, threads = threading.Event(), list[threading.Thread]()

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client has gone
            connection.settimeout(5)
            _read_request(connection)
            act(connection, stop)

    def accept() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=handle, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.01)
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@contextmanager
def slow_names(seconds: float) -> Iterator[None]:
    """Let the system's resolver take so long; addresses need none."""
    resolve = socket.getaddrinfo

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return resolve(*args, **kwargs)

    with mock.patch.object(socket, "getaddrinfo", late) if seconds else nullcontext():
        yield


def _read_request(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        if not (data := connection.recv(65536)):
            return
        received += data
    headers, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in headers.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        if not (data := connection.recv(65536)):
            return
        body += data


def judge(url: str, deadline_s: float) -> LLM:
    limits = {
        "timeout_s": deadline_s / 1.5,
        "deadline_s": deadline_s,
        "retries": 2,
        "backoff_s": 0.01,
        "concurrency": 1,
    }
    return LLM(url=url, model="m", template=TEMPLATE, key_variable=None, swap=False, **limits)


def ask(behaviour: Behaviour, *, replied_before: bool) -> dict[str, Any]:
    """Ask a judge one question at the server. `replied_before`: as if it had got a reply
    already."""
    with serve(behaviour.act) as url, slow_names(behaviour.resolve_s):
        llm = judge(
            url.replace("127.0.0.1", "localhost") if behaviour.resolve_s else url,
            behaviour.deadline_s,
        )
        if replied_before:
            llm.losses.in_a_row = 0
        start = time.monotonic()
        try:
            verdict, error = llm(Prompt(id="0", text="?"), "x", "y"), None
        except UserError as exception:
            verdict, error = None, str(exception)
        seconds = time.monotonic() - start
    counts = {
        name: count for name, count in llm.counts.items() if name not in ("requests", "retries")
    }
    return {
        "name": behaviour.name,
        "verdict": verdict,
        "counts": counts,
        "error": error,
        "seconds": seconds,
        "limit_s": behaviour.deadline_s,
    }


def rows() -> list[dict[str, Any]]:
    """Return a row for each behaviour: name, verdict, counts, error message (None: none), seconds
    and their limit."""
    return [ask(behaviour, replied_before=True) for behaviour in behaviours()]


def table() -> list[dict[str, Any]]:
    """Return the totals of `rows` for `make redteam`. A question that gets neither verdict nor
    error and is not counted is silent."""
    results = rows()
    lost = [row for row in results if row["verdict"] is None]
    totals = {
        "servers": len(results),
        "verdicts": len(results) - len(lost),
        "counted as errors or timeouts": sum(
            row["error"] is None and sum(row["counts"].values()) > 0 for row in lost
        ),
        "ends with what to type": sum(row["error"] is not None for row in lost),
        "silent": sum(row["error"] is None and not sum(row["counts"].values()) for row in lost),
        "over the limit by 1 s": sum(row["seconds"] > row["limit_s"] + 1 for row in results),
        "slowest, s": f"{max(row['seconds'] for row in results):.2f}",
    }
    return [totals]


if __name__ == "__main__":
    results = rows()
    for row in results:
        print(
            f"{row['name']:45} {row['verdict']!s:5} {row['counts']!s:30} {row['seconds']:.2f} "
            f"s {row['error'] or ''}"
        )
    print(f"{len(results)} servers, slowest {max(row['seconds'] for row in results):.2f} s")
