"""Sessions: programs that converse with the policy by requests while they run."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from rlmods.types import Finish

Message = Mapping[str, Any]
"""A chat message: "role", "content" as one text, and "tool_calls" or "tool_call_id" if it has
any."""


class RequestError(Exception):
    """A request is refused, with an HTTP status and one line of text."""

    def __init__(self, status: int, text: str, code: str = "invalid_request") -> None:
        super().__init__(text)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Ask:
    """What a request asks for."""

    messages: Sequence[Message] = ()
    text: str | None = None
    """Plain text to continue, in place of messages."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of tools."""
    n: int = 1
    """Number of answers."""
    max_tokens: int | None = None
    """Maximum number of tokens of an answer; None: the limit of a turn."""
    stop: Sequence[str] = ()
    """Texts that end an answer and are not part of it."""
    logprobs: bool = False
    """The answer tells the log-probability of each token."""
    ignored: Sequence[str] = ()
    """Fields of the request that change nothing, such as `seed`."""


@dataclass(frozen=True)
class Choice:
    """A turn of the policy, as the program reads it."""

    message: Message
    """The assistant's message."""
    finish: Finish
    num_tokens: int
    """Number of tokens that were sampled, with the one that ended the turn."""
    logprobs: Sequence[tuple[str, float]] | None = None
    """Text and natural log-probability of each of them, if they were asked for."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    name: str
    """A name that no other answer of the session has."""
    num_prompt_tokens: int
    choices: Sequence[Choice]


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    kind: Literal["ended", "crash", "timeout"] = "ended"
    rewards: float | Sequence[float | None] | None = None
    """Reward of the session, or of each of its turns in their order; None if it gave none."""
    error: str = ""
    """What went wrong, in one line."""


@dataclass(eq=False)
class Request:
    """A request that waits for its answer."""

    ask: Ask
    answer: Future[Answer] = field(default_factory=Future)


class Session:
    """The requests of one program while it runs. Its methods are called by the threads of the
    program and of the endpoint, and by the sampler."""

    def __init__(
        self, timeout_s: float, changed: threading.Condition, base_url: str = "", key: str = ""
    ) -> None:
        """
        Args:
            timeout_s: seconds that the program may take from an answer to its next request.
            changed: is notified of requests and of the end; sessions that are sampled together
                have the same one.
            base_url: URL of the endpoint.
            key: names the session in requests to the endpoint.
        """
        self.timeout_s = timeout_s
        self.changed = changed
        self.base_url = base_url
        self.key = key
        self.outcome: Outcome | None = None
        """How the program ended; None while it runs."""
        self.said: dict[str, Sequence[Message]] = {}
        """Conversations that a request may continue by the name of an answer."""
        self._waiting: list[Request] = []
        self._deadline = time.monotonic() + timeout_s

    def ask(self, ask: Ask) -> Request:
        """Add a request, and return it; its `answer` follows.

        Raises:
            RequestError: the session has ended.
        """
        request = Request(ask)
        with self.changed:
            if self.outcome is not None:
                raise RequestError(401, "the session of this key has ended", "invalid_api_key")
            self._waiting.append(request)
            self.changed.notify_all()
        return request

    def withdraw(self, request: Request) -> None:
        """Drop a request that nobody waits for, unless it is being answered."""
        with self.changed:
            if request in self._waiting:
                self._waiting.remove(request)

    def end(self, outcome: Outcome) -> None:
        """Set how the program ended, unless it has ended, and refuse what waits."""
        with self.changed:
            if self.outcome is None:
                self.outcome = outcome
            left = self.take()
            self.changed.notify_all()
        for request in left:
            refuse(request, RequestError(401, "the session has ended", "invalid_api_key"))

    def take(self) -> list[Request]:
        """Return the requests that wait, which the sampler then answers."""
        with self.changed:
            taken = self._waiting
            self._waiting = []
        return taken

    def restart_clock(self) -> None:
        """Begin to count the program's time, which follows an answer."""
        self._deadline = time.monotonic() + self.timeout_s

    def is_settled(self) -> bool:
        """Return True if the program has ended or waits for an answer."""
        return self.outcome is not None or bool(self._waiting)

    def remaining_s(self) -> float:
        """Return the seconds until the time limit."""
        return self._deadline - time.monotonic()


def settle(sessions: Sequence[Session], changed: threading.Condition) -> None:
    """Wait until each program has ended or waits for an answer; one that takes too long is ended as
    a "timeout"."""
    while True:
        with changed:
            busy = [session for session in sessions if not session.is_settled()]
            remaining = min((session.remaining_s() for session in busy), default=math.inf)
            if busy and remaining > 0:
                changed.wait(remaining)
        if not busy:
            return
        for session in busy:
            if not session.is_settled() and session.remaining_s() <= 0:
                error = f"no request and no end within {session.timeout_s:g} s"
                session.end(Outcome("timeout", error=error))


def refuse(request: Request, error: RequestError) -> None:
    """Answer a request with an error, if somebody still waits for it."""
    if request.answer.set_running_or_notify_cancel():
        request.answer.set_exception(error)


def give(request: Request, answer: Answer) -> None:
    """Answer a request, if somebody still waits for it."""
    if request.answer.set_running_or_notify_cancel():
        request.answer.set_result(answer)
