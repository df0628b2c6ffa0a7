"""Requests and answers in the format of OpenAI's chat completions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from rlmods.environment.formats import plain
from rlmods.environment.session import Answer, Ask, Choice, Message, RequestError
from rlmods.settings.bounds import Count, between, mismatch
from rlmods.types import ROLES, describe_unknown_role

MAX_CHOICES = 128
"""Largest `n`."""
MAX_DEPTH = 64
"""Depth of the JSON of a body."""
LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
"""Fields with the maximum number of tokens; the first that is given is read."""
COUNTS = {
    "n": Annotated[int, between(1, MAX_CHOICES)] | None,
    **dict.fromkeys(LIMITS, Count | None),
}
"""Types of the fields that are numbers."""
READ = {
    *LIMITS,
    "messages",
    "prompt",
    "model",
    "tools",
    "n",
    "stop",
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
MESSAGES = (
    'messages: must be one or more objects with "role", "content" that is text or a list of texts, '
    'and "tool_calls" with a "function" that has a "name"'
)
"""The form of messages, for an error."""
TOOLS = 'tools: must be a list of {"type": "function", "function": {"name": ..., "parameters": ...'
"""The form of tools, for an error."""


@contextmanager
def refusing(text: str) -> Iterator[None]:
    """Refuse a request with this text if a value in it has another form than the code reads."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RequestError(400, text) from error


def readable(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request with `?` for halves of surrogate pairs, which no tokenizer
    takes.

    Raises:
        RequestError: it is nested too deeply.
    """
    with refusing(f"the body is nested deeper than {MAX_DEPTH}"):
        return dict(plain(body, MAX_DEPTH))


def parse_chat(body: Mapping[str, Any]) -> Ask:
    """Return what the body of a chat completion asks for.

    Raises:
        RequestError: it is not valid.
    """
    body = readable(body)
    with refusing(MESSAGES):
        first, *others = map(parse_message, body["messages"])
    with refusing(TOOLS):
        tools = list(map(parse_tool, body.get("tools") or ()))
    return Ask(messages=[first, *others], tools=tools, **sampling_fields(body))


def parse_completion(body: Mapping[str, Any]) -> Ask:
    """Return what the body of a text completion asks for.

    Raises:
        RequestError: it is not valid.
    """
    body = readable(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        [prompt] = prompt
    if not isinstance(prompt, str):
        raise RequestError(400, "prompt: must be one text")
    return Ask(text=prompt, **sampling_fields(body))


def sampling_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Ask` that all kinds of requests share. The fields that are not honoured
    are `ignored`: the run's settings decide how tokens are sampled, so that the policy is trained
    on the distribution that it is sampled from.

    Raises:
        RequestError: a number or `stop` is not valid.
    """
    for name, kind in COUNTS.items():
        allowed = mismatch(body.get(name), kind)
        if allowed is not None:
            raise RequestError(400, f"{name}: must be {allowed}")
    stop = body.get("stop") or ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple) or not all(isinstance(x, str) and x for x in texts):
        raise RequestError(400, "stop: must be a text, or a list of texts that are not empty")
    others = [name for name in body if name not in READ and body[name] is not None]
    return {
        "n": body.get("n") or 1,
        "max_tokens": next(filter(None, map(body.get, LIMITS)), None),
        "stop": tuple(texts),
        "logprobs": bool(body.get("logprobs")),
        "ignored": sorted(name for name in others if NEUTRAL.get(name) != body[name]),
    }


def parse_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its role, its content as one text, its tool calls with their arguments
    as JSON values, and the id of the call that it answers. Messages that say the same are equal.
    A content may be a list of parts.

    Raises:
        RequestError: the role is unknown.
        AttributeError, KeyError, TypeError: it has another form (see `refusing`).
    """
    role = message["role"]
    if role not in ROLES:
        raise RequestError(400, f"messages: {describe_unknown_role(role)}")
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [content]
    parsed: dict[str, Any] = {"role": role, "content": "".join(map(_text_of, parts))}
    if message.get("tool_calls"):
        parsed["tool_calls"] = list(map(_parse_call, message["tool_calls"]))
    if message.get("tool_call_id") is not None:
        parsed["tool_call_id"] = str(message["tool_call_id"])
    return parsed


def _text_of(part: str | Mapping[str, str]) -> str:
    """Return the text of a part of a content."""
    return part if isinstance(part, str) else part["text" if "text" in part else "refusal"]


def _parse_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # it stays the text that it is
            arguments = plain(json.loads(arguments), MAX_DEPTH)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(function["name"]), "arguments": arguments},
    }


def parse_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it has another form (see `refusing`).
    """
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = dict(parameters.get("properties", {}))
    required = list(parameters.get("required") or ())
    is_schema = all(isinstance(declared, Mapping) for declared in properties.values())
    if not is_schema or not properties.keys() >= set(required):
        raise ValueError("the parameters are not a JSON schema")
    declared = {
        "name": str(function["name"]),
        "description": str(function.get("description") or ""),
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
