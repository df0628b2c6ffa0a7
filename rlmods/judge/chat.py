"""Client of OpenAI-compatible servers: requests with a time limit, pauses between tries, and errors
in one line that say what to type."""

import json
import math
import os
import ssl
import threading
import time
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import httpx2

from rlmods.errors import UserError, in_one_line

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
        retry_after_s: float = 0.0,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        """Count of the lost reply: `timeouts` if the time limit was reached, else `errors`."""
        self.final = final
        """True if the server rejects the request, so that a retry cannot succeed; the message then
        says what to set instead."""
        self.retry_after_s = retry_after_s
        """Seconds of the server's Retry-After header."""
        self.status = status
        """HTTP status of the reply; None if there was none, or if it was 200."""

    @property
    def rejected(self) -> bool:
        """True if the rejection may be due to this question alone."""
        return self.status in REJECTED_STATUSES


@dataclass(frozen=True)
class Endpoint:
    """A server, given by the address of its `/v1` or of the whole endpoint, and the limits of
    requests to it. The proxies of the environment are used.

    Redirects are not followed: the key would be sent to another server.
    """

    url: str
    key_variable: str | None
    """Environment variable with the API key."""
    timeout_s: float
    """Time limit of each step of a request: to connect, and to wait for the reply or more of it."""
    retries: int = 0
    """Tries after the first."""
    backoff_s: float = 1.0
    """Pause before the second try, times a random factor from 0.5 to 1; doubled with each try. A
    longer Retry-After takes precedence."""
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
        reply = self.post(body, deadline)
        try:
            choice = reply["choices"][0]
            text = choice["message"]["content"] or ""
            end = TRUNCATED if choice.get("finish_reason") == "length" else ""
            return "".join((text, end))
        except (LookupError, TypeError, AttributeError) as error:
            preview = self._preview(str(reply))
            raise NoReplyError(f"the reply is not a chat completion: {preview}") from error

    def post(self, body: dict[str, Any], deadline: float = math.inf) -> Any:
        """Return the parsed reply to one request.

        Args:
            deadline: value of `time.monotonic()` at which the request is given up, if that is
            before its own time limit.

        Raises:
            NoReplyError: no connection, a time limit, an overloaded or broken server, a reply that
            is not JSON; or the server rejects the key, address, model or request (`final`).
        """
        return self.parse(self.send(body, deadline))

    def send(self, body: dict[str, Any] | None, deadline: float = math.inf) -> bytes:
        """Return the reply to one request: a GET request if there is no body.

        Raises:
            NoReplyError: as `post`, unless the reply is not JSON.
        """
        response = self._send(body, deadline)
        if response.status_code != 200:
            raise self._rejection(response, str((body or {}).get("model")))
        return response.content

    def parse(self, reply: bytes) -> Any:
        """Return the JSON value of a reply.

        Raises:
            NoReplyError: it is not JSON.
        """
        try:
            return json.loads(reply)
        except (ValueError, RecursionError) as error:
            preview = self._preview(reply.decode(errors="replace"))
            raise NoReplyError(f"the reply is not JSON: {preview}") from error

    def wait(
        self, error: NoReplyError, attempt: int, deadline: float, stop: threading.Event
    ) -> bool:
        """Pause before another try, and return True. Return False, without a pause, if there is
        none: `error` is final, `attempt` (from 0) was the last, or the pause would pass the
        deadline."""
        backoff_s = self.backoff_s * 2.0 ** min(attempt, 64) * _jitter.uniform(0.5, 1.0)
        pause = max(backoff_s, error.retry_after_s)
        if error.final or attempt >= self.retries or time.monotonic() + pause >= deadline:
            return False
        stop.wait(pause)
        return True

    @property
    def address(self) -> str:
        """The `url` with `path` before its query, such as Azure's `?api-version=...`."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").removesuffix(self.path) + self.path
        return urlunsplit(parts._replace(path=path))

    @property
    def key(self) -> str:
        """API key from the environment, "" if there is none."""
        return os.environ.get(self.key_variable or "", "").strip()

    def _send(self, body: dict[str, Any] | None, deadline: float) -> httpx2.Response:
        method = "GET" if body is None else "POST"
        limit_s = max(0.001, min(self.timeout_s, deadline - time.monotonic()))
        headers = {"Accept-Encoding": "identity"}  # a small reply cannot unpack to a large one
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            return httpx2.request(
                method, self.address, json=body, headers=headers, timeout=limit_s, verify=_tls()
            )
        except httpx2.TimeoutException as error:
            raise NoReplyError("timed out", "timeouts") from error
        except (ImportError, ValueError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            advice = (
                f"check {self.group}.url=http://HOST/v1, the key in ${self.key_variable} and the "
                "proxies of the environment"
            )
            reason = in_one_line(error, PREVIEW_LENGTH)
            raise NoReplyError(f"{reason}: {advice}", final=True) from error
        except httpx2.HTTPError as error:
            raise NoReplyError(in_one_line(error, PREVIEW_LENGTH)) from error

    def _rejection(self, response: httpx2.Response, model: str) -> NoReplyError:
        """Return the error of a reply with another status than 200."""
        status = response.status_code
        preview = self._preview(response.text)
        if status in RETRYABLE_STATUSES or status >= 500 or status < 300:
            retry_after_s = _seconds(response.headers.get("Retry-After"))
            reason = f"HTTP {status}, {preview}"
            return NoReplyError(reason, retry_after_s=retry_after_s, status=status)
        advice = self._advice(status, response.headers.get("Location", ""), model)
        reason = f"HTTP {status}, {advice}; the reply was {preview}"
        return NoReplyError(reason, final=True, status=status)

    def _advice(self, status: int, location: str, model: str) -> str:
        """Return what to type after a rejection."""
        group = self.group
        if status in (401, 403):
            state = "not accepted" if self.key else "not set"
            return (
                f"the key in ${self.key_variable} is {state}: export {self.key_variable}=KEY, or "
                f"type {group}.key_variable=NAME"
            )
        if status == 404:
            return (
                f"no such address, or no model {model!r}: type {group}.url=http://HOST/v1 "
                f"{group}.model=NAME"
            )
        if status < 400:
            return f"redirects are not followed: type {group}.url={self._preview(location)}"
        return (
            f"invalid request: change the settings of {group}, such as model, max_tokens or "
            "temperature (null omits it)"
        )

    def _preview(self, text: str) -> str:
        """Return the beginning of a text from the server, without the key."""
        shown = text.replace(self.key, "***") if self.key else text
        return repr(shown[:PREVIEW_LENGTH])


def as_user_error(endpoint: Endpoint, error: NoReplyError, attempt: int, advice: str) -> UserError:
    """Return the error for a user whose request failed at try `attempt`, counted from 0."""
    reason = str(error) if error.final else f"{error} (after {attempt + 1} tries: {advice})"
    return UserError(f"{endpoint.group}.url={endpoint.url}: {reason}")


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS settings, which take longer to load than a request on a local network."""
    return httpx2.create_ssl_context()


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 if there is none, or if it is a date."""
    try:
        return float(retry_after or 0.0)
    except ValueError:
        return 0.0
