"""Requests and answers in the format of OpenAI's responses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlmods.environment.chat_completions import (
    TOOLS,
    as_dict,
    logprob_entries,
    parse_message,
    parse_tool,
    readable,
    refusing,
    sampling_fields,
    usage,
)
from rlmods.environment.session import Answer, Ask, Message, RequestError

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""
INPUT = "input: must be a text, or a list of message, function_call and function_call_output"
"""The form of the input, for an error."""


def parse_response(body: Mapping[str, Any], said: Mapping[str, Sequence[Message]]) -> Ask:
    """Return what the body of a response asks for: the messages that a chat completion with the
    same conversation would have.

    Args:
        body: the body.
        said: the conversations that end with earlier answers, by the names of the answers.

    Raises:
        RequestError: it is not valid, or continues an answer that the session has not had.
    """
    body = readable(body)
    if body.get("conversation") is not None:
        raise RequestError(400, "conversation: not supported: send previous_response_id")
    given = body.get("input")
    items: Any = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not items:
        raise RequestError(400, INPUT)
    messages: list[Message] = []
    if body.get("instructions"):
        instructions = {"role": "system", "content": body["instructions"]}
        with refusing(INPUT):
            messages.append(parse_message(instructions))
    if body.get("previous_response_id") is not None:
        name = str(body["previous_response_id"]).removeprefix("resp_")
        if name not in said:
            text = "previous_response_id: the session has had no such response"
            raise RequestError(400, text, "previous_response_not_found")
        messages += said[name]
    with refusing(INPUT):
        messages += _messages(items)
    with refusing(TOOLS):
        tools = list(map(_tool, body.get("tools") or ()))
    wants_logprobs = LOGPROBS in (body.get("include") or ())
    fields = sampling_fields(body) | {"n": 1, "logprobs": wants_logprobs}
    return Ask(messages=messages, tools=tools, **fields)


def conversation(body: Mapping[str, Any], ask: Ask, answer: Answer) -> list[Message]:
    """Return what `previous_response_id` continues: the messages and the answer, without the
    instructions, which each request gives anew."""
    messages = ask.messages[1:] if body.get("instructions") else ask.messages
    return [*messages, answer.choices[0].message]


def _messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items as messages. The calls that follow a message of the assistant are its own."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.get("type", "message"):
            case "message":
                messages.append(parse_message(item))
            case "function_call":
                function = {"name": item["name"], "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "function": function}
                parsed = parse_message({"role": "assistant", "tool_calls": [call]})
                if messages and messages[-1]["role"] == "assistant":
                    messages[-1].setdefault("tool_calls", []).extend(parsed["tool_calls"])
                else:
                    messages.append(parsed)
            case "function_call_output":
                result = {"content": item.get("output"), "tool_call_id": item.get("call_id")}
                messages.append(parse_message({"role": "tool", **result}))
            case kind:
                raise RequestError(400, f"{INPUT}, not {str(kind)[:40]!r}")
    return messages


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool, whose fields are not in a "function" of their own."""
    kind = tool.get("type", "function")
    if kind != "function":
        raise RequestError(400, f"tools: each must be a function, not {str(kind)[:40]!r}")
    return parse_tool({"function": tool})


def response_body(answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a response to the body of a request."""
    [choice] = answer.choices
    is_whole = choice.finish == "stop"
    counts = usage(answer)
    return {
        **_head(answer, model, body),
        "status": "completed" if is_whole else "incomplete",
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": _items(answer),
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
    }


def _head(answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a response before it has an output."""
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
    }


def _items(answer: Answer) -> list[dict[str, Any]]:
    """Return an answer as a message, unless it has no text but calls of tools, and its calls."""
    [choice] = answer.choices
    message = as_dict(choice.message)
    calls = message.get("tool_calls", ())
    status = "completed" if choice.finish == "stop" else "incomplete"
    items: list[dict[str, Any]] = []
    if message["content"] or not calls:
        part = {
            "type": "output_text",
            "text": message["content"],
            "annotations": [],
            "logprobs": logprob_entries(choice),
        }
        entry = {"id": f"msg_{answer.name}", "type": "message", "role": "assistant"}
        items.append({**entry, "status": status, "content": [part]})
    for call in calls:
        entry = {"id": f"fc_{call['id']}", "type": "function_call", "call_id": call["id"]}
        items.append({**entry, "status": status, **call["function"]})
    return items


def response_events(
    answer: Answer, model: str, body: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the events of a response. Each text is sent in one piece."""
    whole = response_body(answer, model, body)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _head(answer, model, body)}
    ]
    for i, item in enumerate(whole["output"]):
        place = {"output_index": i}
        in_item = {**place, "item_id": item["id"]}
        added: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
        shown = {**item, "status": "in_progress", **added}
        events.append({"type": "response.output_item.added", **place, "item": shown})
        events += _parts(item, in_item)
        events.append({"type": "response.output_item.done", **place, "item": item})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _parts(item: Mapping[str, Any], in_item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events between an item's first and its last one."""
    if item["type"] == "function_call":
        name = "response.function_call_arguments"
        arguments = item["arguments"]
        return [
            {"type": f"{name}.delta", **in_item, "delta": arguments},
            {"type": f"{name}.done", **in_item, "name": item["name"], "arguments": arguments},
        ]
    [part] = item["content"]
    in_part = {**in_item, "content_index": 0}
    said = {**in_part, "logprobs": part["logprobs"]}
    empty = {**part, "text": "", "logprobs": []}
    return [
        {"type": "response.content_part.added", **in_part, "part": empty},
        {"type": "response.output_text.delta", **said, "delta": part["text"]},
        {"type": "response.output_text.done", **said, "text": part["text"]},
        {"type": "response.content_part.done", **in_part, "part": part},
    ]
