"""An environment that runs the tools which the policy calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from rlmods.environment.formats import (
    FORMATS,
    ID_CHARS,
    RESULT,
    Call,
    Format,
    describe,
    of_template,
)
from rlmods.environment.tool import Tool, load
from rlmods.errors import UserError
from rlmods.grading.tool_worker import to_text
from rlmods.needs import EnvironmentNeeds
from rlmods.settings.bounds import Count, Positive, bounded
from rlmods.types import Prompt, Reply, ToolCall, Turn

FormatName = Literal["auto", "tags", "hermes", "llama3", "mistral"]


@dataclass
class ToolUse:
    """An episode of `Tools`."""

    prompt: Prompt
    tools: Sequence[Mapping[str, Any]]
    environment: Tools
    format: Format

    def reply(self, turn: Turn) -> Reply:
        """Run the calls of a turn in their order. A turn without a call is the answer, and ends the
        episode; so does a truncated turn, whose calls are not run."""
        tools = self.environment.functions
        calls = [] if turn.finish == "length" else self.format.read(turn.raw, tools)
        if not calls:
            return Reply(None)
        records = []
        messages = []
        for position, call in enumerate(calls[: self.environment.max_calls + 1]):
            record = self.environment.run(call, position)
            records.append(record)
            if self.format.role == "user":
                messages.append({"role": "user", "content": RESULT.format(record.result)})
                continue
            message = {
                "role": self.format.role,
                "name": record.name if record.name in tools else "unknown",
                "tool_call_id": call.id or f"{turn.start + position:0{ID_CHARS}d}",
                "content": record.result,
            }
            messages.append(message)
        return Reply(messages, calls=records)


@dataclass(frozen=True)
@bounded("environment")
class Tools:
    """The policy calls tools and observes their results. A turn without a call is its answer: it
    ends the response, and rewards grade it.

    `tools` names functions: `calculator`, `python` (a program, confined by the sandbox), `search`
    (over `documents`), or MODULE.FUNCTION of a plugin. The signature and docstring of a plugin's
    function become the JSON schema that chat templates show. It runs in a worker process with the
    rights of the user, which is killed at the time limit.

    `format` is how the policy writes calls. `auto` takes what the chat template of the model shows,
    or else `tags`:

    - hermes: `<tool_call>{"name": "calculator", "arguments": {...}}</tool_call>`, or
      `<tool_call><function=calculator><parameter=expression>1+2</parameter>...`,
      or `<tool_call>calculator<arg_key>expression</arg_key><arg_value>1+2</arg_value>...`
    - llama3: `{"name": "calculator", "parameters": {...}}`, the whole turn
    - mistral: `[TOOL_CALLS][{"name": "calculator", "arguments": {...}}]`
    - tags: `<calculator>1+2</calculator>`, answered by `<result>3</result>`

    Prompts of plain text always use `tags`. A call that cannot be read, an unknown tool, wrong
    arguments, an exception and a time limit give a result that begins with "Error: ", and are
    metrics.

    Raises: UserError for an unknown tool, or documents that cannot be read; ValueError
    for a field out of range."""

    tools: Sequence[str] = ("calculator",)
    """Names of the tools."""
    format: FormatName = "auto"
    """Format of the calls."""
    documents: str | None = None
    """File of the documents that `search` finds, one a line: a text, or a JSON object with
    "text"."""
    num_results: Count = 3
    """Documents that `search` returns."""
    max_turns: Count = 4
    """Number of turns of the policy."""
    max_tokens: Count = 192
    """Maximum number of tokens of all turns and results."""
    max_calls: Count = 4
    """Calls of one turn that are run."""
    max_result_chars: Count = 2000
    """Characters of a result that the policy observes."""
    tool_timeout_s: Positive = 10.0
    """Time limit of a call."""
    workers: Count = 2
    """Worker processes in which tools run, started at the first call of such a tool and kept."""

    in_system: bool = field(default=True, init=False, repr=False, compare=False)
    """Describe tools of the format `tags` in the system message; False: in the first user message,
    for templates without a system role."""

    def __post_init__(self) -> None:
        names = self.tools if isinstance(self.tools, list | tuple) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"environment.tools={self.tools}: type a list of tools, "
                "environment.tools=[calculator]"
            )
        if len(self.functions) < len(self.tools):
            raise UserError("environment.tools: two tools have the same name: leave one out")

    def __deepcopy__(self, memo: object) -> Tools:
        """Return the same object, which never changes, so that a copy of an episode does not copy
        the documents."""
        return self

    @cached_property
    def functions(self) -> dict[str, Tool]:
        """The tools by name."""
        tools = [load(name, self.documents, self.num_results) for name in self.tools]
        return {tool.name: tool for tool in tools}

    @property
    def needs(self) -> EnvironmentNeeds:
        """The texts that end a turn are the ends of calls in the format `tags`. Prompts of plain
        text are answered in it."""
        return EnvironmentNeeds(stop=tuple(f"</{name}>" for name in self.functions))

    def for_policy(self, policy: Any) -> Tools:
        """Return the environment with the format that the chat template of a policy shows. It has
        the same tools, with the documents that they have read."""
        if self.format != "auto":
            return self
        bound = copy(self)
        object.__setattr__(bound, "format", of_template(policy.tokenizer.chat_template))
        if bound.format == "tags" and policy.tokenizer.chat_template is not None:
            from rlmods.policy.chat_template import takes_system

            object.__setattr__(bound, "in_system", takes_system(policy.tokenizer))
        return bound

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> ToolUse:
        """Begin an episode. Nothing in it is random."""
        is_chat = prompt.messages is not None
        name = self.format if is_chat and self.format != "auto" else "tags"
        if name != "tags":
            schemas = [tool.schema for tool in self.functions.values()]
            return ToolUse(prompt, schemas, self, FORMATS[name])
        if is_chat:
            role = "system" if self.in_system else "user"
            prompt = with_text(prompt, role, describe(self.functions))
        return ToolUse(prompt, (), self, FORMATS["tags"])

    def run(self, call: Call, position: int = 0) -> ToolCall:
        """Run the call at a position of a turn and return its record, whatever the tool does."""
        if call.problem is not None:
            return self._failed(call, "malformed", call.problem)
        if position >= self.max_calls:
            return self._failed(call, "error", f"at most {self.max_calls} calls are run in a turn")
        tool = self.functions.get(call.name)
        if tool is None:
            known = ", ".join(self.functions)
            return self._failed(
                call, "unknown", f"there is no tool {call.name!r}; tools are {known}"
            )
        return tool.call(
            call.arguments,
            timeout_s=self.tool_timeout_s,
            max_chars=self.max_result_chars,
            workers=self.workers,
        )

    def _failed(self, call: Call, error: str, problem: str) -> ToolCall:
        text = to_text(f"Error: {problem}", self.max_result_chars)
        return ToolCall(call.name, dict(call.arguments), text, error)


def with_text(prompt: Prompt, role: str, text: str) -> Prompt:
    """Return the prompt with a text at the beginning of its first message of a role, which is added
    if there is none."""
    messages = [dict(message) for message in prompt.messages or ()]
    for message in messages:
        if message["role"] == role:
            message["content"] = f"{text}\n\n{message['content']}"
            return replace(prompt, messages=messages)
    return replace(prompt, messages=[{"role": role, "content": text}, *messages])
