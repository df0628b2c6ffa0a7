"""The OpenAI-compatible HTTP server through which programs reach their sessions."""

import asyncio
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
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
from rlmods.environment.session import RequestError, Session
from rlmods.errors import UserError

MODEL = "policy"
"""Name of the model; requests may give any."""
MAX_BODY = 1 << 24
"""Largest body of a request, bytes."""
BODY_TIMEOUT_S = 30.0
"""Seconds within which a body must arrive."""
IGNORED_HEADER = "X-Ignored-Fields"
"""Header of an answer that names fields of the request which changed nothing."""
RESPONSES = "/v1/responses"
PARSERS = {"/v1/chat/completions": parse_chat, "/v1/completions": parse_completion}
WRITERS = {
    "/v1/chat/completions": (chat_body, chat_events),
    "/v1/completions": (completion_body, completion_events),
    RESPONSES: (response_body, response_events),
}
"""By path, what makes the body of an answer, and the events of a stream, of the answer, the model's
name and the body of the request."""


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
        self.refused: Counter[str] = Counter()
        """Number of requests that reached no session, by what they were."""
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
        for path in WRITERS:
            app.router.add_post(path, self._complete)
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
        self.refused["were not HTTP"] += 1
        return False

    @web.middleware
    async def _as_json(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
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
            self.refused["had no key of a running session"] += 1
            raise RequestError(401, "this is not the key of a running session", "invalid_api_key")
        return session

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rlmods"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        """Pass a request to its session and send the answer, as server-sent events if it asks for a
        stream. A request whose client leaves before it is sampled is dropped."""
        session = self._session(request)
        body = await _read(request)
        if request.path == RESPONSES:
            ask = parse_response(body, session.said)
        else:
            ask = PARSERS[request.path](body)
        self.ignored.update(ask.ignored)
        waiting = session.ask(ask)
        try:
            answer = await asyncio.wrap_future(waiting.answer)
        except asyncio.CancelledError:
            session.withdraw(waiting)
            raise
        if request.path == RESPONSES:
            session.said[answer.name] = conversation(body, ask, answer)
        as_body, as_events = WRITERS[request.path]
        model = str(body.get("model") or MODEL)
        ignored = [name for name in ask.ignored if name.isidentifier() and name.isascii()]
        headers = {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}
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
    return body


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
