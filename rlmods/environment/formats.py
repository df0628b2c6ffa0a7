"""Formats of tool calls and of their results."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlmods.environment.tool import Tool

MAX_CHARS = 50_000
"""Maximum length of the JSON of a call that is read."""
MAX_DEPTH = 32
"""Maximum depth of the JSON of a call that is read."""
ID_CHARS = 9
"""Length of the identifiers of calls, which Mistral's chat templates check."""
RESULT = "<result>{}</result>"
"""Result of a call in the format `tags`."""


@dataclass(frozen=True)
class Call:
    """A call as it was written."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    """What is wrong with it, if it cannot be read."""
    id: str = ""
    """Identifier that the policy gave it, of `ID_CHARS` letters and digits; "" without one."""


@dataclass(frozen=True)
class Format:
    """A convention for calls of tools."""

    read: Callable[[str, Mapping[str, Tool]], list[Call]]
    """Return the calls in the text of a turn; none if it is an answer."""
    in_template: tuple[str, ...]
    """Texts of chat templates of this convention."""
    role: str = "tool"
    """Role of the messages with the results."""


def after_thoughts(text: str) -> str:
    """Return the text after the last `</think>`, as calls inside a thought are ignored, unless the
    thought is never closed: some models call tools while thinking."""
    return text.rpartition("</think>")[2]


def read_hermes(text: str, tools: Mapping[str, Tool]) -> list[Call]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5, Qwen3), or with
    the body of `_read_function` (Qwen3-Coder, Qwen3.5, Nemotron 3) or `_read_glm` (GLM-4.5)."""
    calls = []
    bodies = re.findall(r"<tool_call>(.*?)(</tool_call>|$)", after_thoughts(text), re.DOTALL)
    for body, end in bodies:
        if not end:
            calls.append(Call(problem="<tool_call> without </tool_call>"))
        elif body.lstrip().startswith("<"):
            calls.append(_read_function(body.strip(), tools))
        elif "<arg_key>" in body:
            calls.append(_read_glm(body, tools))
        else:
            calls.append(_as_call(_json(body)))
    return calls


def _read_function(body: str, tools: Mapping[str, Tool]) -> Call:
    """`<function=NAME><parameter=KEY>value</parameter>...</function>`."""
    found = re.fullmatch(r"<function=\s*([^<>]*[^<>\s])\s*>(.*)</function>", body, re.DOTALL)
    if found is None:
        return Call(problem="the call is not <function=NAME>...</function>")
    name, parameters = found.groups()
    pairs = re.findall(r"<parameter=([^<>]*)>(.*?)(</parameter>|$)", parameters, re.DOTALL)
    return _of_texts(name, pairs, tools)


def _read_glm(body: str, tools: Mapping[str, Tool]) -> Call:
    """`NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...` (GLM-4.5 and later)."""
    name, mark, rest = body.partition("<arg_key>")
    pattern = r"<arg_key>([^<>]*)</arg_key>\s*<arg_value>(.*?)(</arg_value>|$)"
    pairs = re.findall(pattern, mark + rest, re.DOTALL)
    if not name.strip() or len(pairs) < body.count("<arg_key>"):
        return Call(
            problem="the call is not NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>"
        )
    return _of_texts(name.strip(), pairs, tools)


def _of_texts(name: str, pairs: Iterable[tuple[str, str, str]], tools: Mapping[str, Tool]) -> Call:
    """Return the call with arguments given as key, text and the mark of its end. A text
    is JSON, unless the tool takes a text or it is not JSON."""
    properties = tools[name].properties if name in tools else {}
    arguments = {}
    for key, text, end in pairs:
        if not end:
            return Call(name, problem="a value without an end")
        key = key.strip()
        text = text.removeprefix("\n").removesuffix("\n")
        value = None if properties.get(key, {}).get("type") == "string" else _json(text)
        arguments[key] = text if value is None else value
    return _as_call({"name": name, "arguments": arguments})


def read_llama3(text: str, tools: Mapping[str, Tool]) -> list[Call]:
    """`{"name": ..., "parameters": {...}}`, the whole turn (Llama 3.1 and later)."""
    body = after_thoughts(text).strip().removeprefix("<|python_tag|>").strip()
    if body.startswith("{") and '"name"' in body:
        return [_as_call(_json(body))]
    return [Call(problem="<|python_tag|> without a call")] if "<|python_tag|>" in text else []


def read_mistral(text: str, tools: Mapping[str, Tool]) -> list[Call]:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or `[TOOL_CALLS]name[ARGS]{...}`
    (Mistral)."""
    _, mark, body = text.partition("[TOOL_CALLS]")
    if not mark:
        return []
    if body.lstrip().startswith("["):
        return list(map(_as_call, _json(body) or [None]))
    calls = []
    for part in body.split("[TOOL_CALLS]"):
        name, _, arguments = part.partition("[ARGS]")
        calls.append(_as_call({"name": name.strip(), "arguments": _json(arguments)}))
    return calls


def read_tags(text: str, tools: Mapping[str, Tool]) -> list[Call]:
    """`<NAME>argument</NAME>` with the name of a tool: its only required argument if that is a
    text, else a JSON object of arguments."""
    calls = []
    names = "|".join(map(re.escape, tools))
    for name, body, end in re.findall(
        rf"<({names})>(.*?)(</\1>|$)", after_thoughts(text), re.DOTALL
    ):
        argument = tools[name].only_argument
        arguments = _json(body) if argument is None else {argument: body.strip()}
        call = _as_call({"name": name, "arguments": arguments})
        calls.append(call if end else Call(name, problem=f"<{name}> without </{name}>"))
    return calls


FORMATS = {
    "hermes": Format(read_hermes, ("<tool_call>",)),
    "mistral": Format(read_mistral, ("[TOOL_CALLS]",)),
    "llama3": Format(read_llama3, ("<|python_tag|>", "Environment: ipython")),
    "tags": Format(read_tags, (), role="user"),
}
"""Formats by name. A chat template has the first one whose marks it contains."""


def of_template(template: str | Mapping[str, str] | None) -> str:
    """Return the name of the format that a chat template writes; "tags" for one without tools, and
    without a template."""
    text = str(template)
    for name, form in FORMATS.items():
        if "tools" in text and any(mark in text for mark in form.in_template):
            return name
    return "tags"


def describe(tools: Mapping[str, Tool]) -> str:
    """Return a description of the tools in the format `tags`, for a system message."""
    example = RESULT.format("...")
    lines = [
        f"You can use tools. To call one, write only the call and wait for its result, {example}:"
    ]
    for name, tool in tools.items():
        declared = tool.schema["function"]
        argument = tool.only_argument
        if argument is None:
            types = {key: value.get("type", "value") for key, value in tool.properties.items()}
            argument = json.dumps(types)
        lines.append(f"<{name}>{argument}</{name}>: {declared['description']}")
    return "\n".join(lines)


def _json(text: str) -> Any:
    """Return the JSON value of a text; None if it has none, or too long or too deep a one."""
    try:
        return plain(json.loads(text), MAX_DEPTH) if len(text) <= MAX_CHARS else None
    except (ValueError, RecursionError):
        return None


def _as_call(value: object) -> Call:
    """Return the call that a JSON value is: an object with a name and arguments, also called
    parameters."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call(problem='the call is not a JSON object with "name" and "arguments"')
    found = re.fullmatch(rf"[a-zA-Z0-9]{{{ID_CHARS}}}", str(value.get("id")))
    identifier = found[0] if found else ""
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # arguments as JSON text, as in OpenAI's messages
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        problem = "the arguments are not a JSON object"
        return Call(value["name"], problem=problem, id=identifier)
    return Call(value["name"], arguments, id=identifier)


def plain(value: object, depth: int) -> Any:
    """Return a JSON value with `?` for halves of surrogate pairs, which no file and no tokenizer
    takes.

    Raises:
        ValueError: it is nested deeper than `depth`.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict | list) and not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {plain(key, depth): plain(item, depth - 1) for key, item in value.items()}
    return [plain(item, depth - 1) for item in value] if isinstance(value, list) else value
