"""Messages and tools of OpenAI's API, as policies with and without chat templates read and write
them."""

from typing import Any

import pytest

from rlmods.environment.session import Ask
from rlmods.rollout.dialect import Dialect, plain_text
from rlmods.types import Prompt, ToolCall, Turn

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"properties": {"terms": {"type": "string"}}, "required": ["terms"]},
    },
}
CALL = {
    "id": "abc",
    "type": "function",
    "function": {"name": "add", "arguments": {"terms": "1 2"}},
}
MESSAGES = [
    {"role": "user", "content": "1+2?"},
    {"role": "assistant", "content": "So ", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "abc"},
]
PROMPT = Prompt(id="a", text="b", answer="3")
TAGS = Dialect("tags", has_template=True, has_system=True)
PLAIN = Dialect("tags", has_template=False, has_system=False)
HERMES = Dialect("hermes", has_template=True, has_system=True)


def said(text: str, finish: Any = "stop") -> Turn:
    return Turn(0, 5, text, text, finish)


class TestPrompt:
    def test_in_tags(self) -> None:
        prompt = TAGS.prompt(Ask(MESSAGES, tools=[TOOL]), PROMPT)
        assert prompt.messages is not None
        assert prompt.answer == "3"
        system, *others = prompt.messages
        assert "<add>terms</add>: Add." in system["content"]
        assert others == [
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": "So <add>1 2</add>"},
            {"role": "user", "content": "<result>3</result>"},
        ]
        assert TAGS.schemas(Ask(MESSAGES, tools=[TOOL])) == ()

    def test_in_the_template(self) -> None:
        ask = Ask(MESSAGES, tools=[TOOL])
        assert HERMES.prompt(ask, PROMPT).messages == MESSAGES
        assert HERMES.schemas(ask) == [TOOL]

    def test_of_plain_text(self) -> None:
        assert PLAIN.prompt(Ask(MESSAGES[:1]), PROMPT).text == "1+2?"
        prompt = PLAIN.prompt(Ask(MESSAGES), PROMPT)
        assert prompt.text == "1+2?So <add>1 2</add>\n<result>3</result>\n"
        assert PLAIN.prompt(Ask(text="1+"), PROMPT).text == "1+"
        system = {"role": "system", "content": "a"}
        assert plain_text([system, *MESSAGES[:1]]) == "a\n1+2?"


class TestRead:
    @pytest.mark.parametrize(
        ("dialect", "text"),
        [
            (HERMES, 'So <tool_call>{"name": "add", "arguments": {"terms": "1 2"}}</tool_call>'),
            (TAGS, "So <add>1 2</add>"),
            (PLAIN, "So <add>1 2</add>"),
        ],
    )
    def test_a_call(self, dialect: Dialect, text: str) -> None:
        message, calls = dialect.read(said(text), Ask(tools=[TOOL]), "0123456789")
        assert message["content"] == "So"
        assert message["tool_calls"] == [{**CALL, "id": "012345600"}]
        assert calls == [ToolCall("add", {"terms": "1 2"})]

    def test_no_call(self) -> None:
        message = {"role": "assistant", "content": "<add>1</add>"}
        assert TAGS.read(said("<add>1</add>"), Ask(), "0") == (message, [])
        truncated = said("<add>1</add>", "length")
        assert TAGS.read(truncated, Ask(tools=[TOOL]), "0") == (message, [])

    def test_a_call_that_cannot_be_read_is_text(self) -> None:
        text = '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>{</tool_call>'
        message, calls = HERMES.read(said(text), Ask(tools=[TOOL]), "0")
        assert message == {"role": "assistant", "content": text}
        assert [call.error for call in calls] == ["malformed"]

    def test_stop_strings_are_left_out(self) -> None:
        ask = Ask(stop=["\n", "."])
        assert TAGS.read(said("a.b\n"), ask, "0")[0]["content"] == "a"
        assert TAGS.stop(ask) == ("\n", ".")
        assert TAGS.stop(Ask(tools=[TOOL])) == ("</add>",)
        assert HERMES.stop(Ask(tools=[TOOL])) == ()
