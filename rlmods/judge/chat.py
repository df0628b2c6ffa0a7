"""One question to a server that speaks OpenAI's chat completions."""

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

SHOWN = 200
"""Characters of an unwanted reply that are shown."""
CUT = "\n[cut off at max_tokens]"
PASSING = (408, 409, 425, 429)
"""Refusals that pass by themselves, as the server's own failures (500 and above) do."""


class NoReplyError(Exception):
    """Nothing usable came back, and asking again may help."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        """What the server asked for."""


@dataclass(frozen=True)
class Endpoint:
    """A server, by the address of its `/v1` or of its whole `/v1/chat/completions`."""

    url: str
    key_variable: str | None
    timeout_s: float

    def reply(self, body: dict[str, Any]) -> str:
        """The text of the first choice, "" where the model said nothing; `CUT` follows a text that reached max_tokens.

        Raises:
            NoReplyError: no connection, no answer in time, a server that is overloaded or broken, a reply that is no chat completion.
            UserError: the server refuses this key, address, model or request; what to set instead.
        """
        key = self.key
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = Request(self.address, json.dumps(body).encode(), headers, method="POST")
        try:
            with build_opener(_NoRedirect).open(request, timeout=self.timeout_s) as answer:
                content: bytes = answer.read()
        except HTTPError as error:
            with error:
                raise self._refusal(error, str(body["model"])) from error
        except (OSError, HTTPException) as error:
            raise NoReplyError(str(getattr(error, "reason", "")) or str(error) or type(error).__name__) from error
        try:
            choice = json.loads(content)["choices"][0]
            text, cut = choice["message"]["content"], choice.get("finish_reason") == "length"
            if not isinstance(text, str | None):
                raise TypeError
        except (ValueError, LookupError, TypeError) as error:
            raise NoReplyError(f"the reply is no chat completion: {self._shown(content)}") from error
        return f"{text or ''}{CUT}" if cut else text or ""

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    @property
    def key(self) -> str:
        """ "" where there is none."""
        return os.environ.get(self.key_variable or "", "").strip()

    def _refusal(self, error: HTTPError, model: str) -> Exception:
        said = self._shown(error.read())
        if error.code in PASSING or error.code >= 500:
            return NoReplyError(f"HTTP {error.code}, {said}", _seconds(error.headers.get("Retry-After")))
        if error.code in (401, 403):
            state = f"the key in ${self.key_variable} is {'not accepted' if self.key else 'not set'}"
            advice = f"{state}: export {self.key_variable}=KEY, or type judge.key_variable=NAME"
        elif error.code == 404:
            advice = f"no such address, or no model {model!r}: type judge.url=http://HOST/v1 judge.model=NAME"
        elif error.code < 400:
            advice = f"it has moved: type judge.url={error.headers.get('Location')}"
        else:
            advice = "it refuses the request: change judge.model, judge.max_tokens or judge.temperature (null sends none)"
        return UserError(f"judge.url={self.url}: HTTP {error.code}, {advice}; it said {said}")

    def _shown(self, content: bytes) -> str:
        text = content.decode(errors="replace")
        return repr((text.replace(self.key, "***") if self.key else text)[:SHOWN])


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would arrive as a GET, with the key in its header."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header: a number, or a date."""
    try:
        return None if retry_after is None else float(retry_after)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(str(retry_after)) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None
