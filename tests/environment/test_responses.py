"""Requests and answers in the format of OpenAI's responses."""

from dataclasses import replace
from typing import Any

import pytest

from rlmods.environment.chat_completions import message_keys, parse_chat
from rlmods.environment.responses import (
    conversation,
    parse_response,
    response_body,
    response_events,
)
from rlmods.environment.session import Answer, Ask, Choice, RequestError

CALL = {"id": "a1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
OTHER = {"id": "a2", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
MESSAGES: dict[str, dict[str, Any]] = {
    "a text": {"role": "assistant", "content": "so"},
    "no text": {"role": "assistant", "content": ""},
    "a call": {"role": "assistant", "content": "", "tool_calls": [CALL]},
    "a text and calls": {"role": "assistant", "content": "so", "tool_calls": [CALL, OTHER]},
}
ASKED = {"role": "user", "content": "1+1?"}


def answered(message: dict[str, Any]) -> Answer:
    return Answer("name", 7, [Choice(message, "stop", 3, [("2", -0.5)])])


def keys(ask: Ask) -> tuple[str, ...]:
    return message_keys(ask.messages)


@pytest.mark.parametrize("name", MESSAGES)
class TestContinues:
    """A request that continues an answer has the messages of the conversation, character by
    character, however it says so."""

    def expected(self, name: str) -> tuple[str, ...]:
        return message_keys([ASKED, MESSAGES[name], {"role": "user", "content": "ok"}])

    def test_with_its_items(self, name: str) -> None:
        output = response_body(answered(MESSAGES[name]), "x", {})["output"]
        last = {"role": "user", "content": "ok"}
        assert keys(parse_response({"input": [ASKED, *output, last]}, {})) == self.expected(name)

    def test_with_the_items_of_its_stream(self, name: str) -> None:
        events = list(response_events(answered(MESSAGES[name]), "x", {}))
        output = [x["item"] for x in events if x["type"] == "response.output_item.done"]
        last = {"role": "user", "content": "ok"}
        assert keys(parse_response({"input": [ASKED, *output, last]}, {})) == self.expected(name)
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == output
        assert [event["sequence_number"] for event in events] == list(range(len(events)))

    def test_with_its_id(self, name: str) -> None:
        body = {"input": "1+1?", "instructions": "Add."}
        answer = answered(MESSAGES[name])
        said = {"name": conversation(body, parse_response(body, {}), answer)}
        request = {"input": "ok", "previous_response_id": "resp_name"}
        assert keys(parse_response(request, said)) == self.expected(name)
        system = {"role": "system", "content": "Sub."}
        with_other = parse_response(request | {"instructions": "Sub."}, said)
        assert keys(with_other) == (*message_keys([system]), *self.expected(name))


def test_asks_what_a_chat_completion_asks() -> None:
    schema = {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}
    result = {"type": "function_call_output", "call_id": "a1", "output": "1"}
    call = {"type": "function_call", "call_id": "a1", "name": "add", "arguments": '{"a": 1}'}
    found = parse_response(
        {
            "instructions": "Add.",
            "input": [{"role": "user", "content": "1+1?"}, call, result],
            "tools": [{"type": "function", **schema}],
            "max_output_tokens": 9,
            "include": ["message.output_text.logprobs"],
            "truncation": "disabled",
            "temperature": 0.5,
        },
        {},
    )
    said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    messages = [
        {"role": "system", "content": "Add."},
        ASKED,
        said,
        {"role": "tool", "tool_call_id": "a1", "content": "1"},
    ]
    tools = [{"type": "function", "function": schema}]
    body = {"messages": messages, "tools": tools, "max_tokens": 9, "logprobs": True}
    assert found == replace(parse_chat(body), ignored=["temperature"])


def test_a_truncated_turn_is_incomplete() -> None:
    answer = Answer("name", 7, [Choice(MESSAGES["a text"], "length", 3)])
    body = response_body(answer, "x", {})
    assert body["status"] == body["output"][0]["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [x["type"] for x in response_events(answer, "x", {})][-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "input: must be a text, or a list of message"),
        ({"input": [1]}, "input: must be a text, or a list of message"),
        ({"input": [{"type": "item_reference"}]}, "not 'item_reference'"),
        ({"input": [{"type": "function_call"}]}, "input: must be a text, or a list of message"),
        ({"input": [{"role": "usr", "content": ""}]}, "did you mean user"),
        ({"input": "a", "conversation": "b"}, "send previous_response_id"),
        ({"input": "a", "previous_response_id": "b"}, "the session has had no such response"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "must be a function, not 'web_search'"),
        ({"input": "a", "tools": "b"}, "tools: must be a list of"),
    ],
)
def test_a_bad_body_is_one_line(body: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_response(body, {})
    assert error.value.status == 400
    assert text in str(error.value)
    assert "\n" not in str(error.value)
