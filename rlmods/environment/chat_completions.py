"""Requests and answers in the format of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlmods.environment.session import Answer, Ask, Choice, Message, RequestError
from rlmods.types import ROLES, describe_unknown_role

MAX_CHOICES = 128
"""Largest `n`."""
READ = {
    "messages",
    "prompt",
    "model",
    "tools",
    "n",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "input",
    "instructions",
    "previous_response_id",
    "include",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "store",
}
"""Fields that are honoured, or that say nothing about what to sample."""
NEUTRAL: Mapping[str, object] = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
}
"""Values of other fields that ask for what happens anyway."""


def parse_chat(body: Mapping[str, Any]) -> Ask:
    """Return what the body of a chat completion asks for.

    Raises:
        RequestError: it is not valid.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages: must be a list of at least one message")
    tools = body.get("tools") or ()
    if not isinstance(tools, list | tuple):
        raise RequestError(400, "tools: must be a list")
    return Ask(
        messages=[parse_message(message) for message in messages],
        tools=[parse_tool(tool) for tool in tools],
        **sampling_fields(body),
    )


def parse_completion(body: Mapping[str, Any]) -> Ask:
    """Return what the body of a text completion asks for.

    Raises:
        RequestError: it is not valid.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise RequestError(400, "prompt: must be one text that is not empty")
    return Ask(text=prompt, **sampling_fields(body))


def sampling_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Ask` that all kinds of requests share."""
    names = ("max_output_tokens", "max_completion_tokens", "max_tokens")
    limits = [_count(body, name, None) for name in names]
    return {
        "n": _count(body, "n", MAX_CHOICES) or 1,
        "max_tokens": next(filter(None, limits), None),
        "stop": _texts(body.get("stop")),
        "logprobs": bool(body.get("logprobs")),
        "ignored": ignored_fields(body),
    }


def ignored_fields(body: Mapping[str, Any]) -> list[str]:
    """Return the fields of a request that are not honoured. The run's settings decide how tokens
    are sampled, so that the policy is trained on the distribution that it is sampled from."""
    names = [name for name in body if name not in READ and body[name] is not None]
    return sorted(name for name in names if NEUTRAL.get(name) != body[name])


def _count(body: Mapping[str, Any], name: str, highest: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not is_count or (highest is not None and value > highest):
        words = "at least 1" if highest is None else f"from 1 to {highest}"
        raise RequestError(400, f"{name}: must be a whole number, {words}")
    return int(value)


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(x, str) and x for x in texts):
        raise RequestError(400, "stop: must be a text, or a list of texts that are not empty")
    return tuple(texts)


def parse_message(message: object) -> dict[str, Any]:
    """Return a message with its role, its content as one text, its tool calls with their arguments
    as JSON values, and the id of the call that it answers. Messages that say the same are equal.

    Raises:
        RequestError: it is not valid.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(400, 'messages: each must be an object with "role" and "content"')
    role = message["role"]
    if role not in ROLES:
        raise RequestError(400, f"messages: {describe_unknown_role(role)}")
    parsed: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise RequestError(400, "messages: tool_calls must be a list")
    if calls:
        parsed["tool_calls"] = [_parse_call(call) for call in calls]
    if isinstance(message.get("tool_call_id"), str):
        parsed["tool_call_id"] = _valid(message["tool_call_id"])
    return parsed


def _content(content: object) -> str:
    """Return a content, which may be a list of parts, as one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _valid(content)
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RequestError(400, "messages: a content must be text, or a list of texts")
        texts.append(_valid(text))
    return "".join(texts)


def _valid(text: str) -> str:
    """Return the text with `?` for halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


def _parse_call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(400, 'messages: a tool call must have a "function" with a "name"')
    assert isinstance(call, Mapping)
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(_valid(arguments))
        except (ValueError, RecursionError):
            arguments = _valid(arguments)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": _valid(function["name"]), "arguments": arguments},
    }


def parse_tool(tool: object) -> dict[str, Any]:
    """Return the JSON schema of a tool.

    Raises:
        RequestError: it is not valid.
    """
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(400, 'tools: each must be {"type": "function", "function": {"name": ...')
    name = _valid(function["name"])
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties", {}) if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping) or not all(
        isinstance(declared, Mapping) for declared in properties.values()
    ):
        raise RequestError(400, f"tools: the parameters of {name} are not a JSON schema")
    required = parameters.get("required") or []
    if not isinstance(required, list) or not all(x in properties for x in required):
        raise RequestError(400, f"tools: {name} requires a parameter that it does not have")
    declared = {
        "name": name,
        "description": _valid(str(function.get("description") or "")),
        "parameters": {**parameters, "properties": properties, "required": required},
    }
    return {"type": "function", "function": declared}


def as_dict(message: Message) -> dict[str, Any]:
    """Return a message of the assistant as OpenAI's clients read it."""
    shown: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if "tool_calls" in message:
        shown["content"] = message["content"] or None
        calls = []
        for call in message["tool_calls"]:
            function = call["function"]
            arguments = json.dumps(function["arguments"])
            calls.append({**call, "function": {**function, "arguments": arguments}})
        shown["tool_calls"] = calls
    return shown


def chat_body(answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat completion."""
    choices = []
    for i, choice in enumerate(answer.choices):
        entry = {
            "index": i,
            "message": {**as_dict(choice.message), "refusal": None},
            "finish_reason": finish_reason(choice),
            "logprobs": _logprobs(choice),
        }
        choices.append(entry)
    return {**_head(answer, model, "chat.completion"), "choices": choices, "usage": usage(answer)}


def chat_events(answer: Answer, model: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a chat completion: a choice in two, its message and how it ended.

    The tokens of a round are sampled together, and an answer is whole when it begins."""
    head = _head(answer, model, "chat.completion.chunk")
    for i, choice in enumerate(answer.choices):
        delta = as_dict(choice.message)
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": k, **x} for k, x in enumerate(delta["tool_calls"])]
        logprobs = _logprobs(choice)
        said = {"index": i, "delta": delta, "finish_reason": None, "logprobs": logprobs}
        ended = {"index": i, "delta": {}, "finish_reason": finish_reason(choice)}
        yield {**head, "choices": [said]}
        yield {**head, "choices": [ended]}
    options = body.get("stream_options")
    if isinstance(options, Mapping) and options.get("include_usage"):
        yield {**head, "choices": [], "usage": usage(answer)}


def completion_body(answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a text completion."""
    choices = []
    for i, choice in enumerate(answer.choices):
        pairs = choice.logprobs or ()
        logprobs = {"tokens": [x for x, _ in pairs], "token_logprobs": [x for _, x in pairs]}
        entry = {
            "index": i,
            "text": choice.message["content"],
            "finish_reason": finish_reason(choice),
            "logprobs": logprobs if pairs else None,
        }
        choices.append(entry)
    return {**_head(answer, model, "text_completion"), "choices": choices, "usage": usage(answer)}


def completion_events(
    answer: Answer, model: str, body: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a text completion, one for each choice."""
    whole = completion_body(answer, model, body)
    for choice in whole["choices"]:
        yield {**whole, "choices": [choice]}


def usage(answer: Answer) -> dict[str, int]:
    """Return the numbers of tokens of an answer."""
    num_sampled = sum(choice.num_tokens for choice in answer.choices)
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.num_prompt_tokens + num_sampled,
    }


def _head(answer: Answer, model: str, kind: str) -> dict[str, Any]:
    """Return the fields that all bodies begin with. The time is always 0, so that an agent that
    reads it repeats its run."""
    return {"id": f"chatcmpl-{answer.name}", "object": kind, "created": 0, "model": model}


def finish_reason(choice: Choice) -> str:
    """Return why a turn ended: "stop", "length" or "tool_calls"."""
    return "tool_calls" if "tool_calls" in choice.message else choice.finish


def _logprobs(choice: Choice) -> dict[str, Any] | None:
    return None if choice.logprobs is None else {"content": logprob_entries(choice)}


def logprob_entries(choice: Choice) -> list[dict[str, Any]]:
    """Return the log-probabilities of a turn, if they were asked for."""
    content = []
    for token, logprob in choice.logprobs or ():
        encoded = list(token.encode())
        content.append({"token": token, "logprob": logprob, "bytes": encoded, "top_logprobs": []})
    return content


def message_keys(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return each message as a text; messages that say the same have the same one."""
    return tuple(json.dumps(message, sort_keys=True) for message in messages)


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return tools as a text."""
    return json.dumps(list(tools), sort_keys=True)
