"""An environment that is a program: it asks the policy by requests, as it would ask any
OpenAI-compatible model. It is a Python function, which runs in a thread, or a command."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Annotated, Any, ClassVar

from rlmods.environment.chat_completions import as_dict, finish_reason, parse_chat
from rlmods.environment.session import Answer, Outcome, Session
from rlmods.errors import UserError, in_one_line
from rlmods.needs import EnvironmentNeeds
from rlmods.run.functions import load_function
from rlmods.settings.bounds import Count, Positive, between, bounded
from rlmods.types import Prompt

if TYPE_CHECKING:
    from rlmods.environment.endpoint import Endpoint

MAX_ERROR_CHARS = 300
"""Characters of an error that are kept."""
MAX_OUTPUT = 1 << 16
"""Bytes at the end of a command's output that are read."""
Task = Mapping[str, Any]
"""What a program reads: "id", "messages", "answer", and "meta", the other columns of the data."""
KEY = "environment.agent"


@dataclass(eq=False)
class RunningAgent:
    """A session and the program that it is of."""

    session: Session
    program: FunctionProgram | CommandProgram
    sessions: dict[str, Session] = field(repr=False)
    """Sessions of the endpoint by key, among them this one."""

    def close(self) -> None:
        """Stop the program, and refuse the key from now on."""
        self.sessions.pop(self.session.key, None)
        self.program.stop()


@dataclass(frozen=True)
@bounded("environment")
class Agent:
    """A program converses with the policy by requests (docs/agents.md). Each response to a prompt
    is a session: one run of the program.

    `agent` is "module:function" or "file.py:function": `async def f(task, client)` or a plain
    function. `task` has "id", "messages", "answer" and "meta"; `await client.chat(messages)`
    returns the assistant's message, and `client.base_url` and `client.api_key` are for clients of
    other packages. It returns the reward, a list with the reward of each turn, or None.

    `command` is a program that reads the task from its standard input, finds the endpoint by
    `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and may print the reward as its last line.

    All running sessions go through their requests together: the requests that wait are sampled
    once each program waits or has ended. A program that works long holds up the others. In return,
    the rows that are sampled together, and by them each bit of the result, depend on what programs
    ask and not on how fast they are.

    Raises: UserError for a program that does not exist; ValueError for a field out of range."""

    needs: ClassVar[EnvironmentNeeds] = EnvironmentNeeds(copies=False)

    agent: str | None = None
    """Function "module:function" or "file.py:function". Set either this or `command`."""
    command: str | None = None
    """Command that runs a session, without a shell."""
    max_turns: Count = 8
    """Maximum number of turns of the policy in a session; later requests are refused."""
    max_tokens: Count = 1024
    """Maximum number of tokens of all turns and observations of a session."""
    timeout_s: Positive = 60.0
    """Seconds that a program may take to its first request, and from an answer to its next one. It
    is ended at this limit. The first refusal after an answer starts them anew, later ones do
    not."""
    failure_reward: float | None = None
    """Reward of a session that crashes, times out, or sends no request; null: it is not scored."""
    workers: Count = 64
    """Maximum number of programs that run at once."""
    parallel: bool = False
    """The program sends several requests at once. Each is then sampled alone, with random numbers
    by its content, so that a run repeats bit for bit whatever comes first; it is slower."""
    host: str = "127.0.0.1"
    """Address on which the endpoint listens."""
    port: Annotated[int, between(0, 65535)] = 0
    """Port of the endpoint; 0: any free one."""

    def __post_init__(self) -> None:
        if (self.agent is None) == (self.command is None):
            raise UserError(
                "environment=agent: type environment.agent=MODULE:FUNCTION, or "
                "environment.command='python my_agent.py'"
            )
        if self.agent is not None:
            load_function(self.agent, KEY)
        if self.command is not None:
            check_command(self.command)

    def start(self, prompt: Prompt, *, changed: threading.Condition) -> RunningAgent:
        """Start the program with a prompt of the data. Its session notifies `changed`."""
        server = self._endpoint()
        key = secrets.token_urlsafe(24)
        session = Session(self.timeout_s, changed, server.base_url, key)
        server.sessions[key] = session
        program: FunctionProgram | CommandProgram
        if self.agent is not None:
            program = FunctionProgram(load_function(self.agent, KEY), as_task(prompt), session)
        else:
            program = CommandProgram(str(self.command), as_task(prompt), session)
        return RunningAgent(session, program, server.sessions)

    def _endpoint(self) -> Endpoint:
        # here, because no other environment needs its server
        from rlmods.environment.endpoint import endpoint

        return endpoint(self.host, self.port)

    def notes(self) -> Sequence[str]:
        """Return what is to be said about the requests so far, and forget it."""
        server = self._endpoint()
        notes = [f"{count} requests {what}: refused" for what, count in server.refused.items()]
        if server.ignored:
            names = in_one_line(", ".join(sorted(server.ignored)))
            notes.append(
                f"requests set {names}, which change nothing: rollout=... and seed decide how "
                "tokens are sampled"
            )
        server.refused.clear()
        server.ignored.clear()
        return notes


def as_task(prompt: Prompt) -> Task:
    """Return a prompt as programs read it. Plain text is one message of the user."""
    messages = prompt.messages or [{"role": "user", "content": prompt.text or ""}]
    return {
        "id": prompt.id,
        "messages": list(map(dict, messages)),
        "answer": prompt.answer,
        "meta": dict(prompt.meta),
    }


def check_command(command: str) -> None:
    """Check that a command can be split into words, and that its program exists.

    Raises:
        UserError: it cannot.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"environment.command={command}: {error}: mend the quotes") from error
    program = words[0] if words else ""
    if shutil.which(program) is None:
        raise UserError(
            f"environment.command={command}: there is no program {program!r}: type "
            "environment.command='python my_agent.py'"
        )


class Client:
    """The policy, for a plain function."""

    def __init__(self, session: Session) -> None:
        self.base_url = session.base_url
        """Base URL of the OpenAI-compatible endpoint, for clients of other packages."""
        self.api_key = session.key
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

    def __init__(self, function: Callable[..., Any], task: Task, session: Session) -> None:
        self._session = session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[Any] | None = None
        thread = threading.Thread(
            target=self._run, args=(function, task), name="agent", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Cancel a coroutine."""
        if self._loop is not None and self._running is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._running.cancel)

    def _run(self, function: Callable[..., Any], task: Task) -> None:
        try:
            if inspect.iscoroutinefunction(function):
                returned = asyncio.run(self._await(function, task))
            else:
                returned = function(task, Client(self._session))
            outcome = Outcome(rewards=as_rewards(returned))
        except BaseException as error:  # also SystemExit: it ends the session, not the run
            text = in_one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
            outcome = Outcome("crash", error=text)
        self._session.end(outcome)

    async def _await(self, function: Callable[..., Any], task: Task) -> Any:
        self._loop = asyncio.get_running_loop()
        self._running = asyncio.current_task()
        return await function(task, AsyncClient(self._session))


class CommandProgram:
    """A command that runs in a process group of its own. It reads the task as JSON from its
    standard input, and the address of the endpoint from `OPENAI_BASE_URL` and `OPENAI_API_KEY`. If
    the last line of its output is a JSON number or a list of numbers, that is its reward."""

    def __init__(self, command: str, task: Task, session: Session) -> None:
        self._session = session
        # files, as a process that the command leaves behind would hold pipes open
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        variables = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.key}
        for name in ("NO_PROXY", "no_proxy"):
            hosts = filter(None, (os.environ.get(name), "127.0.0.1", "localhost"))
            variables[name] = ",".join(hosts)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._errors,
                env=os.environ | variables,
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            self._errors.close()
            session.end(Outcome("crash", error=in_one_line(error, MAX_ERROR_CHARS)))
            return
        run = (self._process, json.dumps(task, default=str).encode())
        threading.Thread(target=self._watch, args=run, name="agent", daemon=True).start()

    def stop(self) -> None:
        """Kill the process and its children."""
        if self._process is not None and self._process.returncode is None:
            _kill(self._process)

    def _watch(self, process: subprocess.Popen[bytes], task: bytes) -> None:
        process.communicate(task)
        with self._output, self._errors:
            output = _last_line(self._output)
            error = _last_line(self._errors) or f"it ended with status {process.returncode}"
        outcome = Outcome()
        with suppress(ValueError):  # the last line is not a reward
            outcome = Outcome(rewards=as_rewards(json.loads(output)))
        if process.returncode:
            outcome = Outcome("crash", error=in_one_line(error, MAX_ERROR_CHARS))
        self._session.end(outcome)
        _kill(process)  # what it has started itself


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_OUTPUT))
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
