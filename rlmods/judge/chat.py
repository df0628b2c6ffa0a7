"""Client for requests to an OpenAI-compatible server, which may be slow, broken or hostile."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from random import Random
from typing import Any, Literal

import httpx2

from rlmods import activity
from rlmods.errors import UserError

PREVIEW_LENGTH = 200
"""Characters of an unexpected reply that are shown in an error message."""
TRUNCATED = "\n[cut off at max_tokens]"
REJECTED_STATUSES = (400, 413, 422)
"""Client errors that may be due to one question, such as one that exceeds the context length."""
RETRYABLE_STATUSES = (408, 409, 425, 429)
"""Client errors that are worth a retry, like all server errors (500 and above)."""

_jitter = Random()
"""Own generator for the pauses, so that they neither depend on the run's seed nor change its random
state."""


class NoReplyError(Exception):
    """No usable reply was received."""

    def __init__(
        self,
        reason: str,
        kind: Literal["errors", "timeouts"] = "errors",
        *,
        final: bool = False,
        rejected: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        """Count of the lost reply: `timeouts` if the time limit was reached, else `errors`."""
        self.final = final
        """True if the server rejects the request, so that a retry cannot succeed; the message then
        says what to set instead."""
        self.rejected = rejected
        """True if the rejection may be due to this question alone."""
        self.retry_after_s = retry_after_s
        """Value of the server's Retry-After header."""
        self.status = status
        """HTTP status of the reply; None if there was none, or if it was 200."""


@dataclass(frozen=True)
class Endpoint:
    """A server, given by the address of its `/v1` or of the whole endpoint, and the limits of
    requests to it.

    Redirects are not followed: the key would be sent to another server.
    """

    url: str
    key_variable: str | None
    timeout_s: float
    """Time limit of one request, from connecting to the last byte of the reply."""
    deadline_s: float = math.inf
    """Time limit of all tries of a request and the pauses between them."""
    retries: int = 0
    """Tries after the first."""
    backoff_s: float = 1.0
    """Pause before the second try, times a random factor from 0.5 to 1; doubled with each try. A
    longer Retry-After takes precedence."""
    max_bytes: int = 4 << 20
    """Maximum size of a reply, after decompression."""
    path: str = "/chat/completions"
    """Endpoint below `/v1`."""
    group: str = "judge"
    """Key of the settings `url` and `model`, for error messages."""

    def complete(self, body: dict[str, Any], deadline: float = math.inf) -> str:
        """Return the text of the first choice, "" for an empty one. `TRUNCATED` is appended to a
        text that reached max_tokens.

        Raises:
            NoReplyError: as `post`, or the reply is not a chat completion.
        """
        content = self._send_within(body, deadline)
        reply = self._parse(content)
        try:
            choice = reply["choices"][0]
            text, truncated = choice["message"]["content"], choice.get("finish_reason") == "length"
            if not isinstance(text, str | None):
                raise TypeError
        except (LookupError, TypeError, AttributeError) as error:
            raise NoReplyError(
                f"the reply is not a chat completion: {self._preview(content)}"
            ) from error
        return f"{text or ''}{TRUNCATED}" if truncated else text or ""

    def post(self, body: dict[str, Any], deadline: float = math.inf) -> Any:
        """Return the parsed reply to one request.

        Args:
            deadline: value of `time.monotonic()` at which the request is given up, if that is
            before its own time limit.

        Raises:
            NoReplyError: no connection, a time limit, an overloaded or broken server, a reply that
            is too large or not JSON; or the server
                rejects the key, address, model or request (`final`).
        """
        return self._parse(self._send_within(body, deadline))

    def wait(
        self, error: NoReplyError, attempt: int, deadline: float, stop: threading.Event
    ) -> bool:
        """Pause before another try, and return True. Return False, without a pause, if there is
        none: `error` is final, `attempt` (from 0) was the last, or the pause would pass the
        deadline."""
        pause = max(
            self.backoff_s * 2.0 ** min(attempt, 64) * _jitter.uniform(0.5, 1.0),
            error.retry_after_s or 0.0,
        )
        if error.final or attempt >= self.retries or time.monotonic() + pause >= deadline:
            return False
        stop.wait(pause)
        return True

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith(self.path) else f"{base}{self.path}"

    @property
    def key(self) -> str:
        """API key from the environment, "" if there is none."""
        return os.environ.get(self.key_variable or "", "").strip()

    def _send_within(self, body: dict[str, Any], deadline: float) -> bytes:
        limit_s = min(self.timeout_s, deadline - time.monotonic())
        if limit_s <= 0:
            raise NoReplyError(f"no reply within {self.deadline_s:g} s", "timeouts")
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        try:
            with asyncio.Runner(loop_factory=_EventLoop) as runner:
                status, reply_headers, content = runner.run(
                    self._send(json.dumps(body).encode(), headers, limit_s)
                )
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise NoReplyError("timed out", "timeouts") from error
        except UnicodeEncodeError as error:
            advice = (
                f"the key in ${self.key_variable} is not plain ASCII: export "
                f"{self.key_variable}=KEY"
            )
            raise NoReplyError(
                f"{advice}, or type {self.group}.key_variable=NAME", final=True
            ) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise NoReplyError(
                f"{_one_line(error)}: type {self.group}.url=http://HOST/v1", final=True
            ) from error
        except (OSError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise NoReplyError(self._hide_key(_one_line(error))) from error
        if status != 200:
            raise self._rejection(status, reply_headers, content, str(body.get("model")))
        return content

    async def _send(
        self, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> tuple[int, httpx2.Headers, bytes]:
        content = bytearray()
        async with (
            # of everything: timeouts of httpx are those of each read, which a byte now and then
            # never reaches
            asyncio.timeout(limit_s),
            _client(limit_s) as client,
            client.stream("POST", self.address, content=body, headers=headers) as response,
        ):
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > self.max_bytes:
                    raise NoReplyError(f"the reply is larger than {self.max_bytes} bytes")
        return response.status_code, response.headers, bytes(content)

    def _parse(self, content: bytes) -> Any:
        activity.count_reply()
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise NoReplyError(f"the reply is not JSON: {self._preview(content)}") from error

    def _rejection(
        self, status: int, headers: Mapping[str, str], content: bytes, model: str
    ) -> NoReplyError:
        preview = self._preview(content)
        if status in RETRYABLE_STATUSES or status >= 500 or status < 300:
            retry_after_s = _parse_retry_after(headers.get("Retry-After"))
            return NoReplyError(
                f"HTTP {status}, {preview}", retry_after_s=retry_after_s, status=status
            )
        if status in (401, 403):
            state = (
                f"the key in ${self.key_variable} is {'not accepted' if self.key else 'not set'}"
            )
            advice = (
                f"{state}: export {self.key_variable}=KEY, or type {self.group}.key_variable=NAME"
            )
        elif status == 404:
            advice = (
                f"no such address, or no model {model!r}: type {self.group}.url=http://HOST/v1 "
                f"{self.group}.model=NAME"
            )
        elif status < 400:
            location = re.sub(r"[^!-~]", "", headers.get("Location", "http://HOST/v1"))[
                :PREVIEW_LENGTH
            ]
            advice = f"redirects are not followed: type {self.group}.url={self._hide_key(location)}"
        else:
            settings = (
                f"{self.group}.model, {self.group}.max_tokens or {self.group}.temperature "
                "(null omits it)"
                if self.group.endswith("judge")
                else f"{self.group}.model or the server's settings"
            )
            advice = f"invalid request: change {settings}"
        reason = f"HTTP {status}, {advice}; the reply was {preview}"
        return NoReplyError(reason, final=True, rejected=status in REJECTED_STATUSES, status=status)

    def _preview(self, content: bytes) -> str:
        return repr(
            self._hide_key(content[: 8 * PREVIEW_LENGTH].decode(errors="replace"))[:PREVIEW_LENGTH]
        )

    def _hide_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def as_user_error(endpoint: Endpoint, error: NoReplyError, attempt: int, advice: str) -> UserError:
    """Return the error for a user whose request failed at try `attempt`, counted from 0."""
    reason = str(error) if error.final else f"{error} (after {attempt + 1} tries: {advice})"
    return UserError(f"{endpoint.group}.url={endpoint.url}: {reason}")


class _EventLoop(asyncio.SelectorEventLoop):
    """Event loop that resolves names in daemon threads. The ordinary one waits for its threads when
    it is closed, as Python does when it exits, and the system's resolver may take minutes."""

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        future = self.create_future()

        def resolve() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = socket.getaddrinfo(*args, **kwargs)
            except Exception as exception:
                error = exception
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the name any more
                self.call_soon_threadsafe(deliver, result, error)

        def deliver(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        threading.Thread(target=resolve, daemon=True, name="getaddrinfo").start()
        return await future


def _client(timeout_s: float) -> httpx2.AsyncClient:
    """
    Raises:
        NoReplyError: the environment names a proxy that cannot be used (final).
    """
    context = _ssl_context()
    try:
        return httpx2.AsyncClient(timeout=timeout_s, verify=context, follow_redirects=False)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        unset = "unset " + " ".join(
            name
            for name in os.environ
            if name.lower() in ("all_proxy", "http_proxy", "https_proxy")
        )
        missing = isinstance(error, ImportError)
        reason = (
            "a SOCKS proxy needs socksio: pip install 'httpx2[socks]', or type"
            if missing
            else f"{_one_line(error)}: type"
        )
        raise NoReplyError(
            f"the proxy of the environment cannot be used: {reason} {unset}", final=True
        ) from error


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def _one_line(error: BaseException) -> str:
    """Return the system's message of an error, such as "Connection refused", if that caused it,
    else its own; on one line."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    system = [
        os.strerror(cause.errno or 0) if isinstance(cause, ConnectionError) else cause.strerror
        for cause in causes
        if isinstance(cause, OSError) and cause.strerror
    ]
    return " ".join((system or [str(error)])[-1].split())[:PREVIEW_LENGTH] or type(error).__name__


def _parse_retry_after(header: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None if there is none or it
    cannot be parsed."""
    try:
        seconds = float(header or "nan")
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(str(header)) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return None if math.isnan(seconds) else seconds
