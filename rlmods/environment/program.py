"""Programs of sessions: Python functions, which run in a thread each, and commands."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from rlmods.environment.chat_completions import as_dict, finish_reason, parse_chat
from rlmods.environment.session import Answer, Outcome, Session
from rlmods.errors import in_one_line

MAX_ERROR_CHARS = 300
"""Characters of an error that are kept."""
MAX_OUTPUT = 1 << 16
"""Bytes at the end of a command's output that are read."""
Task = Mapping[str, Any]
"""What a program reads: "id", "messages", "answer", and "meta", the other columns of the data."""


class Program(Protocol):
    """A running program."""

    def stop(self) -> None:
        """End it, as far as possible."""
        ...


@dataclass(frozen=True)
class Address:
    """How a program reaches the endpoint."""

    base_url: str
    api_key: str


class Client:
    """The policy, for a plain function."""

    def __init__(self, session: Session, address: Address) -> None:
        self.base_url = address.base_url
        """Base URL of the OpenAI-compatible endpoint, for clients of other packages."""
        self.api_key = address.api_key
        """Key of this session."""
        self._session = session

    def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return the assistant's message that follows these messages, with its "finish_reason".
        `fields`: further fields of a chat completion, such as `tools` and `max_tokens`.

        Raises:
            RequestError: the request is not valid, or a limit refuses it.
        """
        request = self._session.ask(parse_chat({"messages": list(messages), **fields}))
        return _as_reply(request.answer.result())


class AsyncClient(Client):
    """The policy, for a coroutine function."""

    async def chat(  # type: ignore[override]
        self, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> dict[str, Any]:
        """Return the assistant's message that follows these messages, as `Client.chat`."""
        request = self._session.ask(parse_chat({"messages": list(messages), **fields}))
        return _as_reply(await asyncio.wrap_future(request.answer))


def _as_reply(answer: Answer) -> dict[str, Any]:
    choice = answer.choices[0]
    return {**as_dict(choice.message), "finish_reason": finish_reason(choice)}


class FunctionProgram:
    """A function that runs in a thread of its own, a coroutine function in an event loop of its
    own: a session that blocks holds up no other. A coroutine can be cancelled. A plain function
    that does not return is left alone: its requests are refused, and its thread ends with the
    process."""

    def __init__(
        self, function: Callable[..., Any], task: Task, session: Session, address: Address
    ) -> None:
        self._session = session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        run = self._run_coroutine if inspect.iscoroutinefunction(function) else self._run_plain
        thread = threading.Thread(
            target=self._watch, args=(run, function, task, address), name="agent", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _watch(
        self,
        run: Callable[..., Any],
        function: Callable[..., Any],
        task: Task,
        address: Address,
    ) -> None:
        try:
            outcome = Outcome(rewards=as_rewards(run(function, task, address)))
        except BaseException as error:  # also SystemExit: it ends the session, not the run
            outcome = Outcome(
                "crash", error=in_one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
            )
        self._session.end(outcome)

    def _run_plain(self, function: Callable[..., Any], task: Task, address: Address) -> Any:
        return function(task, Client(self._session, address))

    def _run_coroutine(self, function: Callable[..., Any], task: Task, address: Address) -> Any:
        async def run() -> Any:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            return await function(task, AsyncClient(self._session, address))

        return asyncio.run(run())


class CommandProgram:
    """A command that runs in a process group of its own. It reads the task as JSON from its
    standard input, and the address of the endpoint from `OPENAI_BASE_URL` and `OPENAI_API_KEY`. If
    the last line of its output is a JSON number or a list of numbers, that is its reward."""

    def __init__(self, command: str, task: Task, session: Session, address: Address) -> None:
        variables = {
            **os.environ,
            "OPENAI_BASE_URL": address.base_url,
            "OPENAI_API_KEY": address.api_key,
        }
        for name in ("NO_PROXY", "no_proxy"):
            hosts = filter(None, (os.environ.get(name), "127.0.0.1", "localhost"))
            variables[name] = ",".join(hosts)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._session = session
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._errors,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            self._process = None
            self._close()
            session.end(Outcome("crash", error=in_one_line(error, MAX_ERROR_CHARS)))
            return
        text = json.dumps(task, default=str).encode()
        threading.Thread(target=self._watch, args=(text,), name="agent", daemon=True).start()

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._kill()

    def _close(self) -> None:
        self._output.close()
        self._errors.close()

    def _kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _watch(self, task: bytes) -> None:
        assert self._process is not None
        self._process.communicate(task)
        status = self._process.returncode
        if status:
            error = _last_line(self._errors) or f"it ended with status {status}"
            outcome = Outcome("crash", error=in_one_line(error, MAX_ERROR_CHARS))
        else:
            outcome = Outcome(rewards=_printed_rewards(_last_line(self._output)))
        self._close()
        self._session.end(outcome)
        self._kill()  # what it has started itself


def as_rewards(returned: object) -> float | list[float | None] | None:
    """Return what a program returned as the reward of the session, or of its turns.

    Raises:
        ValueError: something else than None, a finite number, or a list of them.
    """
    if isinstance(returned, list | tuple):
        return [None if x is None else _as_number(x) for x in returned]
    return None if returned is None else _as_number(returned)


def _as_number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"returned {value!r}: a reward is a finite number, a list of them, or None"
        )
    return number


def _printed_rewards(line: str) -> float | list[float | None] | None:
    try:
        return as_rewards(json.loads(line))
    except ValueError:
        return None


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_OUTPUT))
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
