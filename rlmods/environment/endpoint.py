"""The OpenAI-compatible HTTP server through which programs reach their sessions."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rlmods.environment.chat_completions import (
    chat_body,
    chat_events,
    completion_body,
    completion_events,
    parse_chat,
    parse_completion,
)
from rlmods.environment.responses import (
    conversation,
    parse_response,
    response_body,
    response_events,
)
from rlmods.environment.session import Answer, Ask, Request, RequestError, Session
from rlmods.errors import UserError

MODEL = "policy"
"""Name of the model; requests may give any."""
MAX_BODY = 1 << 24
"""Largest body of a request, bytes."""
MAX_DEPTH = 64
"""Depth of the JSON of a body."""
BODY_TIMEOUT_S = 30.0
"""Seconds within which a body must arrive."""
IGNORED_HEADER = "X-Ignored-Fields"
"""Header of an answer that names fields of the request which changed nothing."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AsBody = Callable[[Answer, str, Mapping[str, Any]], dict[str, Any]]
"""Makes the body of an answer of the answer, the model's name and the body of the request."""
AsEvents = Callable[[Answer, str, Mapping[str, Any]], Iterable[Mapping[str, Any]]]
"""Makes the events of a stream of the same."""


class Endpoint:
    """A server in a thread of its own. A request with the key of a running session is passed to the
    session; any other gets status 401 before its body is read."""

    def __init__(self, host: str, port: int) -> None:
        """
        Raises:
            UserError: it cannot listen there.
        """
        self.sessions: dict[str, Session] = {}
        """Running sessions by key."""
        self.num_unauthorized = 0
        """Number of requests without the key of a running session."""
        self.num_malformed = 0
        """Number of requests that were not HTTP."""
        self.ignored: set[str] = set()
        """Fields of requests that were ignored."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True).start()
        started = asyncio.run_coroutine_threadsafe(self._start(host, port), self._loop)
        try:
            bound = started.result()
        except OSError as error:
            raise UserError(
                f"environment.host={host} environment.port={port}: the endpoint cannot listen "
                f"there ({error.strerror}): type environment.port=0"
            ) from error
        self.base_url = f"http://{host}:{bound}/v1"

    async def _start(self, host: str, port: int) -> int:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._as_json])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/v1/responses", self._response)
        logger = logging.getLogger(f"{__name__}.{id(self)}")
        logger.addFilter(self._count_malformed)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, logger=logger)
        await runner.setup()
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        return int(runner.addresses[0][1])

    def _count_malformed(self, record: logging.LogRecord) -> bool:
        """Return False for the traceback of bytes that are not HTTP: anybody can send them."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self.num_malformed += 1
        return False

    @web.middleware
    async def _as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key first, and return errors as OpenAI's clients read them."""
        try:
            self._session(request)
            return await handler(request)
        except RequestError as error:
            return _error(error.status, str(error), error.code)
        except web.HTTPException as error:
            return _error(error.status, error.reason, "invalid_request")

    def _session(self, request: web.Request) -> Session:
        """Return the session of a request's key.

        Raises:
            RequestError: it is not the key of a running session.
        """
        _, _, key = request.headers.get("Authorization", "").partition(" ")  # Bearer KEY
        session = self.sessions.get(key.strip())
        if session is None or session.outcome is not None:
            self.num_unauthorized += 1
            raise RequestError(401, "this is not the key of a running session", "invalid_api_key")
        return session

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rlmods"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await _read(request)
        answer, ask = await self._answer(request, parse_chat(body))
        return await _send(request, body, ask, answer, chat_body, chat_events)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await _read(request)
        answer, ask = await self._answer(request, parse_completion(body))
        return await _send(request, body, ask, answer, completion_body, completion_events)

    async def _response(self, request: web.Request) -> web.StreamResponse:
        body = await _read(request)
        said = self._session(request).said
        answer, ask = await self._answer(request, parse_response(body, said))
        said[answer.name] = conversation(body, ask, answer)
        return await _send(request, body, ask, answer, response_body, response_events)

    async def _answer(self, request: web.Request, ask: Ask) -> tuple[Answer, Ask]:
        """Wait for the answer. A request whose client leaves before it is sampled is dropped."""
        session = self._session(request)
        self.ignored.update(ask.ignored)
        waiting: Request = session.ask(ask)
        try:
            return await asyncio.wrap_future(waiting.answer), ask
        except asyncio.CancelledError:
            session.withdraw(waiting)
            raise


async def _read(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in the body.

    Raises:
        RequestError: there is none, or it does not arrive in time.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await request.read()
    except TimeoutError as error:
        raise RequestError(408, f"the body did not arrive in {BODY_TIMEOUT_S:g} s") from error
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is not a JSON object")
    _check_depth(body, MAX_DEPTH)
    return body


def _check_depth(value: object, depth: int) -> None:
    """Check that a JSON value is not nested deeper than `depth`.

    Raises:
        RequestError: it is.
    """
    if isinstance(value, dict | list):
        if depth == 0:
            raise RequestError(400, f"the body is nested deeper than {MAX_DEPTH}")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth - 1)


def _headers(ask: Ask) -> dict[str, str]:
    names = [name for name in ask.ignored if name.isidentifier() and name.isascii()]
    return {IGNORED_HEADER: ", ".join(names)} if names else {}


async def _send(
    request: web.Request,
    body: Mapping[str, Any],
    ask: Ask,
    answer: Answer,
    as_body: AsBody,
    as_events: AsEvents,
) -> web.StreamResponse:
    """Send an answer, as server-sent events if the request asks for a stream."""
    model = str(body.get("model") or MODEL)
    headers = _headers(ask)
    if not body.get("stream"):
        return web.json_response(as_body(answer, model, body), headers=headers)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
    await response.prepare(request)
    for event in as_events(answer, model, body):
        name = f"event: {event['type']}\n" if "type" in event else ""
        await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _error(status: int, text: str, code: str) -> web.Response:
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


def endpoint(host: str, port: int) -> Endpoint:
    """Return this process's endpoint at a host and port (0: any free port), started at the first
    call; a forked process starts its own."""
    return _endpoint(host, port, os.getpid())


@cache
def _endpoint(host: str, port: int, process_id: int) -> Endpoint:
    return Endpoint(host, port)
