"""Client for one request to an OpenAI-compatible server."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from rlmods.types import UserError

PREVIEW_LENGTH = 200
"""Characters of an unexpected reply that are shown in an error message."""
TRUNCATED = "\n[cut off at max_tokens]"
RETRYABLE_STATUSES = (408, 409, 425, 429)
"""Client errors that are worth a retry, like all server errors (500 and above)."""


class NoReplyError(Exception):
    """No usable reply was received; a retry may succeed."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        """Value of the server's Retry-After header."""


@dataclass(frozen=True)
class Endpoint:
    """A server, given by the address of its `/v1` or of the whole endpoint."""

    url: str
    key_variable: str | None
    timeout_s: float
    path: str = "/chat/completions"
    """Endpoint below `/v1`."""
    group: str = "judge"
    """Configuration group with the fields `url` and `model`, for error messages."""

    def complete(self, body: dict[str, Any]) -> str:
        """Return the text of the first choice, "" for an empty one. `TRUNCATED` is appended to a text that reached max_tokens.

        Raises:
            NoReplyError: as `post`, or the reply is not a chat completion.
            UserError: as `post`.
        """
        reply = self.post(body)
        try:
            choice = reply["choices"][0]
            text, truncated = choice["message"]["content"], choice.get("finish_reason") == "length"
            if not isinstance(text, str | None):
                raise TypeError
        except (LookupError, TypeError, AttributeError) as error:
            raise NoReplyError(f"the reply is not a chat completion: {self._preview(json.dumps(reply).encode())}") from error
        return f"{text or ''}{TRUNCATED}" if truncated else text or ""

    def post(self, body: dict[str, Any]) -> Any:
        """Return the parsed reply to one request.

        Raises:
            NoReplyError: no connection, a timeout, an overloaded or broken server, a reply that is not JSON.
            UserError: the server rejects the key, address, model or request; the message says what to set instead.
        """
        key = self.key
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = Request(self.address, json.dumps(body).encode(), headers, method="POST")
        try:
            with build_opener(_NoRedirect).open(request, timeout=self.timeout_s) as response:
                content: bytes = response.read()
        except HTTPError as error:
            with error:
                raise self._convert_error(error, str(body["model"])) from error
        except (OSError, HTTPException) as error:
            raise NoReplyError(str(getattr(error, "reason", "")) or str(error) or type(error).__name__) from error
        try:
            return json.loads(content)
        except ValueError as error:
            raise NoReplyError(f"the reply is not JSON: {self._preview(content)}") from error

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith(self.path) else f"{base}{self.path}"

    @property
    def key(self) -> str:
        """API key from the environment, "" if there is none."""
        return os.environ.get(self.key_variable or "", "").strip()

    def _convert_error(self, error: HTTPError, model: str) -> Exception:
        preview = self._preview(error.read())
        if error.code in RETRYABLE_STATUSES or error.code >= 500:
            return NoReplyError(f"HTTP {error.code}, {preview}", _parse_retry_after(error.headers.get("Retry-After")))
        if error.code in (401, 403):
            state = f"the key in ${self.key_variable} is {'not accepted' if self.key else 'not set'}"
            advice = f"{state}: export {self.key_variable}=KEY, or type {self.group}.key_variable=NAME"
        elif error.code == 404:
            advice = f"no such address, or no model {model!r}: type {self.group}.url=http://HOST/v1 {self.group}.model=NAME"
        elif error.code < 400:
            advice = f"redirects are not followed: type {self.group}.url={error.headers.get('Location')}"
        else:
            settings = (
                "judge.model, judge.max_tokens or judge.temperature (null omits it)"
                if self.group == "judge"
                else f"{self.group}.model or the server's settings"
            )
            advice = f"invalid request: change {settings}"
        return UserError(f"{self.group}.url={self.url}: HTTP {error.code}, {advice}; the reply was {preview}")

    def _preview(self, content: bytes) -> str:
        text = content.decode(errors="replace")
        return repr((text.replace(self.key, "***") if self.key else text)[:PREVIEW_LENGTH])


class _NoRedirect(HTTPRedirectHandler):
    """Reject redirects: urllib would send a redirected POST as a GET, with the key in its header."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _parse_retry_after(header: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None if there is none or it cannot be parsed."""
    try:
        return None if header is None else float(header)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(str(header)) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None
