"""An environment that is a program: it asks the policy by requests, as it would ask any
OpenAI-compatible model."""

from __future__ import annotations

import secrets
import shlex
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlmods.environment.program import (
    Address,
    CommandProgram,
    FunctionProgram,
    Program,
    Task,
)
from rlmods.environment.session import Session
from rlmods.errors import UserError, in_one_line
from rlmods.needs import EnvironmentNeeds
from rlmods.run.functions import load_function
from rlmods.settings.bounds import Count, Positive, between, bounded
from rlmods.types import Prompt

if TYPE_CHECKING:
    from rlmods.environment.endpoint import Endpoint

KEY = "environment.agent"


@dataclass(eq=False)
class RunningAgent:
    """A session and the program that it is of."""

    session: Session
    program: Program
    key: str
    keys: dict[str, Session] = field(repr=False)
    """Sessions of the endpoint, among them this one."""

    def close(self) -> None:
        """Stop the program, and refuse the key from now on."""
        self.keys.pop(self.key, None)
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
        session = Session(self.timeout_s, changed)
        key = secrets.token_urlsafe(24)
        server.sessions[key] = session
        address = Address(server.base_url, key)
        program: Program
        if self.agent is not None:
            function = load_function(self.agent, KEY)
            program = FunctionProgram(function, as_task(prompt), session, address)
        else:
            program = CommandProgram(str(self.command), as_task(prompt), session, address)
        return RunningAgent(session, program, key, server.sessions)

    def _endpoint(self) -> Endpoint:
        # here, because no other environment needs its server
        from rlmods.environment.endpoint import endpoint

        return endpoint(self.host, self.port)

    def notes(self) -> Sequence[str]:
        """Return what is to be said about the requests so far, and forget it."""
        server = self._endpoint()
        notes = []
        if server.ignored:
            names = ", ".join(sorted(server.ignored))
            notes.append(
                f"requests set {in_one_line(names)}, which change nothing: rollout=... and seed "
                "decide how tokens are sampled"
            )
        if server.num_unauthorized:
            notes.append(
                f"{server.num_unauthorized} requests had no key of a running session: refused"
            )
        if server.num_malformed:
            notes.append(f"{server.num_malformed} requests were not HTTP: refused")
        server.num_malformed = 0
        server.num_unauthorized = 0
        server.ignored = set()
        return notes


def as_task(prompt: Prompt) -> Task:
    """Return a prompt as programs read it. Plain text is one message of the user."""
    messages = prompt.messages or [{"role": "user", "content": prompt.text or ""}]
    return {
        "id": prompt.id,
        "messages": [dict(message) for message in messages],
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
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        raise UserError(
            f"environment.command={command}: there is no program {program!r}: type "
            "environment.command='python my_agent.py'"
        )
