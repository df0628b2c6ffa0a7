import json
import time
from importlib.util import find_spec
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.reward import ToolCall
from rlmods.reward.json_schema import split_calls
from rlmods.types import Scores
from tests.reward.samples import response

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"name": "weather", "parameters": CITY}, {"name": "now"}]
OPENAI = [{"type": "function", "function": tool} for tool in TOOLS]

needs_jsonschema = pytest.mark.skipif(
    find_spec("jsonschema") is None, reason="needs the extra json"
)


def call(name: Any = "weather", /, **arguments: Any) -> str:
    return wrap(json.dumps({"name": name, "arguments": arguments}))


def wrap(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def scores(*texts: str, tools: Any = TOOLS, **settings: Any) -> Scores:
    return ToolCall(**settings)([response(text, tools=tools) for text in texts])


GOOD = call(city="Oslo")


@needs_jsonschema
@pytest.mark.parametrize(
    "tools",
    [TOOLS, OPENAI, tuple(TOOLS), json.dumps(OPENAI), [{**TOOLS[0], "function": None}, TOOLS[1]]],
)
def test_is_the_fraction_of_valid_calls(tools: Any) -> None:
    texts = [
        GOOD,
        GOOD + call(town="Oslo"),
        GOOD + call() + GOOD,
        f"{call('now')} and\n{GOOD} and {call('then')}",
        call("now", zone=1),
    ]
    result = scores(*texts, tools=tools)
    assert result.values == [1.0, 1 / 2, 2 / 3, 2 / 3, 1.0]
    assert result.columns["calls"] == ["1/1", "1/2", "2/3", "2/3", "1/1"]
    assert result.correct is None


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "null",
        "now",
        "[]",
        '"now"',
        '{"name": "now"}',
        '{"arguments": {}}',
        '{"name": "now", "arguments": []}',
        '{"name": "now", "arguments": "{}"}',
        '{"name": "now", "arguments": null}',
        '{"name": "then", "arguments": {}}',
        '{"name": "Now", "arguments": {}}',
        '{"name": null, "arguments": {}}',
        '{"name": ["now"], "arguments": {}}',
        '{"name": "now", "arguments": {}, "id": 1}',
        '{"name": "now", "arguments": {"a": NaN}}',
        '{"name": "now", "arguments": {}} ok',
        '{"name": "now", "arguments": {}',
        "{'name': 'now', 'arguments': {}}",
    ],
)
def test_invalid_calls(body: str) -> None:
    result = scores(wrap(body), wrap(body) + call("now"))
    assert result.values == [0.0, 0.5]
    assert result.counts == {"timeouts": 0, "errors": 0, "without_call": 0}


@needs_jsonschema
@pytest.mark.parametrize(
    "arguments", [{}, {"city": 1}, {"city": None}, {"city": "Oslo", "zone": 1}, {"town": "Oslo"}]
)
def test_arguments_must_match_the_parameters(arguments: dict[str, Any]) -> None:
    assert scores(call("weather", **arguments)).values == [0.0]


def test_an_unmatched_tag_is_an_invalid_call() -> None:
    now = call("now")
    texts = [
        f"{now}<tool_call>",
        f"</tool_call>{now}",
        f"<tool_call>{now}",
        f"<tool_call>{now}</tool_call>",
        "<tool_call>{",
        now[:-12],
    ]
    assert scores(*texts).values == [1 / 2, 1 / 2, 1 / 2, 1 / 3, 0.0, 0.0]
    assert split_calls(
        "a<tool_call>b</tool_call>c</tool_call><tool_call>d<tool_call>e</tool_call>"
    ) == (["b", "e"], 2)
    assert split_calls("none") == ([], 0)


def test_ignores_calls_within_the_thoughts() -> None:
    assert scores(
        f"<think>{wrap('?')}</think>{call('now')}", f"<think>{call('now')}</think>", without=0.25
    ).values == [1.0, 0.25]


def test_responses_without_calls_and_prompts_without_tools() -> None:
    assert scores("", "It is cold.", call("now"), without=-1.0).values == [-1.0, -1.0, 1.0]
    assert scores("", call("now")).counts["without_call"] == 1
    for tools in (None, [], "", "[]"):
        result = scores("", call("now"), tools=tools)
        assert result.values == [None, None]
        assert result.columns["calls"] == [None, None]
        assert result.counts["without_call"] == 0
    assert ToolCall()([response(call("now"))]).values == [None]
    assert ToolCall("t")([response(call("now"), t=TOOLS)]).values == [1.0]


@pytest.mark.slow
@needs_jsonschema
def test_counts_timeouts_and_errors() -> None:
    slow = {"properties": {"a": {"pattern": "^(a|aa)+$"}}}
    tools = [
        {"name": "slow", "parameters": slow},
        {"name": "lost", "parameters": {"$ref": "#/nowhere"}},
        {"name": "now", "parameters": {}},
    ]
    result = scores(
        call("slow", a="a" * 60 + "b") + call("now"),
        call("lost"),
        call("now"),
        tools=tools,
        timeout_s=3.0,
    )
    assert result.values == [0.5, 0.0, 1.0]
    assert result.counts == {"timeouts": 1, "errors": 1, "without_call": 0}


def test_adversarial_texts_are_fast() -> None:
    start = time.monotonic()
    deep = '{"name": "now", "arguments": {"a": ' + "[" * 30_000 + "]" * 30_000 + "}}"
    texts = {
        "<tool_call>" * 90_000: "0/90000",
        "</tool_call>" * 90_000: "0/90000",
        "</tool_call><tool_call>" * 45_000: "0/45001",
        wrap("") * 40_000: "0/40000",
        wrap("é" * 1_000_000): "0/1",
        wrap("[" * 1_000_000): "0/1",
        wrap(deep): "0/1",
        "<" * 1_000_000: "0/0",
        "</think>" * 125_000: "0/0",
    }
    result = scores(*texts)
    assert result.values == [0.0] * len(texts)
    assert result.columns["calls"] == list(texts.values())
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "tools",
    [
        5,
        "{",
        {"name": "a"},
        ["a"],
        [{}],
        [{"name": ["a"]}],
        [{"function": "a"}],
        "{}x",
    ],
)
def test_rejects_tools_of_another_form(tools: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"prompt 0: column 'tools' is not a list of \{name, parameters\}: .*type "
        r"reward\.column=COLUMN",
    ):
        scores("", tools=tools)


@needs_jsonschema
def test_rejects_parameters_that_are_not_a_schema() -> None:
    with pytest.raises(
        UserError,
        match=r"prompt 0: column 'tools': parameters of a is not a JSON schema \('dict' is not valid",
    ):
        scores("", tools=[{"name": "a", "parameters": {"type": "dict"}}])
