"""Messages of OpenAI's API as a policy reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlmods.environment.formats import FORMATS, ID_CHARS, RESULT, Call, describe, of_template
from rlmods.environment.session import Ask, Message
from rlmods.environment.tool import Tool
from rlmods.environment.tools import with_text
from rlmods.policy.base import Policy
from rlmods.policy.chat_template import takes_system
from rlmods.types import Prompt, ToolCall, Turn


@dataclass(frozen=True)
class Dialect:
    """How a policy reads messages and writes calls of tools: as its chat template does, or else in
    the format `tags` (`rlmods.environment.Tools`). A policy without a chat template continues plain
    text."""

    format: str
    has_template: bool
    has_system: bool
    """The template takes system messages."""

    @staticmethod
    def of(policy: Policy) -> Dialect:
        """Return the dialect of a policy."""
        template = policy.tokenizer.chat_template
        has_template = template is not None
        system = has_template and takes_system(policy.tokenizer)
        return Dialect(of_template(template), has_template, system)

    def prompt(self, ask: Ask, prompt: Prompt) -> Prompt:
        """Return the prompt that a request begins with, with the id and pass of the data's."""
        if ask.text is not None:
            return replace(prompt, text=ask.text, messages=None)
        messages = self.messages(ask.messages)
        if not self.has_template:
            return replace(prompt, text=plain_text(messages), messages=None)
        shown = replace(prompt, text=None, messages=messages)
        if self.format != "tags" or not ask.tools:
            return shown
        role = "system" if self.has_system else "user"
        return with_text(shown, role, describe(as_tools(ask.tools)))

    def schemas(self, ask: Ask) -> Sequence[Mapping[str, Any]]:
        """Return the schemas of tools that the chat template shows."""
        return ask.tools if self.has_template and self.format != "tags" else ()

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages as the chat template takes them. In the format `tags`, calls of tools and
        their results are written into the contents."""
        if self.format != "tags":
            return [dict(message) for message in messages]
        written = []
        for message in messages:
            content = message["content"]
            role = message["role"]
            if role == "tool":
                role = "user"
                content = RESULT.format(content)
            for call in message.get("tool_calls", ()):
                function = call["function"]
                content += f"<{function['name']}>{_written(function['arguments'])}"
                content += f"</{function['name']}>"
            written.append({"role": role, "content": content})
        return written

    def stop(self, ask: Ask) -> tuple[str, ...]:
        """Return the texts that end a turn."""
        if self.format != "tags":
            return tuple(ask.stop)
        return (*ask.stop, *(f"</{name}>" for name in as_tools(ask.tools)))

    def read(self, turn: Turn, ask: Ask, name: str) -> tuple[Message, list[ToolCall]]:
        """Return a turn as the assistant's message, and the record of its calls. `name` makes the
        ids of the calls different from the ids in other turns.

        Calls are read from a whole turn only, and if one of them cannot be read, the turn is a
        text: nothing is guessed."""
        tools = as_tools(ask.tools)
        text = turn.text
        found: list[Call] = []
        if tools and turn.finish == "stop":
            found = FORMATS[self.format].read(turn.raw, tools)
        broken = [call for call in found if call.problem is not None]
        if broken or not found:
            records = [ToolCall(x.name, {}, str(x.problem), "malformed") for x in broken]
            return {"role": "assistant", "content": cut_at(text, ask.stop)}, records
        calls = []
        for i, call in enumerate(found):
            entry = {
                # in the form that Mistral's chat templates check
                "id": call.id or f"{name[: ID_CHARS - 2]}{i:02d}",
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            calls.append(entry)
        records = [ToolCall(call.name, dict(call.arguments)) for call in found]
        content = self._before_calls(text, tools)
        return {"role": "assistant", "content": content, "tool_calls": calls}, records

    def _before_calls(self, text: str, tools: Mapping[str, Tool]) -> str:
        """Return what a turn says before its calls."""
        marks = {"llama3": ("{",), "tags": tuple(f"<{name}>" for name in tools)}
        return cut_at(text, marks.get(self.format, FORMATS[self.format].in_template)).strip()


def as_tools(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    """Return tools by name, which the program runs itself."""
    return {x["function"]["name"]: Tool(x["function"]["name"], x) for x in schemas}


def cut_at(text: str, marks: Sequence[str]) -> str:
    """Return a text up to where the first of some marks begins."""
    ends = [text.index(mark) for mark in marks if mark in text]
    return text[: min(ends, default=len(text))]


def plain_text(messages: Sequence[Message]) -> str:
    """Return messages as plain text: those before the first turn of the assistant line by line, and
    then as `Conversation` continues a plain prompt."""
    said = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    first = min(said, default=len(messages))
    text = "\n".join(message["content"] for message in messages[:first])
    for message in messages[first:]:
        content = message["content"]
        text += content if message["role"] == "assistant" else f"\n{content}\n"
    return text


def _written(arguments: object) -> str:
    """Return arguments as the format `tags` writes them: one text, or JSON."""
    if isinstance(arguments, Mapping) and len(arguments) == 1:
        [value] = arguments.values()
        if isinstance(value, str):
            return value
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
