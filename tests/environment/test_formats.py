"""The formats in which calls are written and read."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.environment import Tools
from rlmods.environment.formats import FORMATS, Call, of_template
from rlmods.environment.tool import load
from rlmods.policy.conversation import Conversation
from rlmods.run.files import dumps
from rlmods.types import Prompt, Reply, Turn
from tests.environment.said import CHAT, HOSTILE, contents, reply, said
from tests.support.control_tokens import Model

CALLS = {
    "hermes": '<tool_call>\n{"name": "calculator", "arguments": {"expression": '
    '"1+2"}}\n</tool_call>',
    "llama3": '{"name": "calculator", "parameters": {"expression": "1+2"}}',
    "mistral": '[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "1+2"}}]',
    "tags": "<calculator>1+2</calculator>",
}
FUNCTION = "<tool_call>\n<function=calculator>\n<parameter=expression>\n1+2\n</parameter>\n</function>\n</tool_call>"
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }}[/INST]"
    "{% elif m['role'] == 'tool' %}"
    "{% if m.tool_call_id is undefined or m.tool_call_id | length != 9 %}{{ "
    "raise_exception('Tool call IDs should be alphanumeric') }}"
    "{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)
"""What the chat templates of Mistral do with results."""
MALFORMED = {
    "hermes": [
        "<tool_call><function=calculator>",
        "<tool_call>calculator</tool_call>",
        "<tool_call><function=calculator></tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=calculator><parameter=expression>1</function></tool_call>",
        "<tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>calculator<arg_key>expression</arg_key><arg_value>1</tool_call>",
        "<tool_call>a<arg_key>b</tool_call>",
        "<tool_call>{",
        "<tool_call>{]</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
    ],
    "llama3": [
        '{"name": ',
        "<|python_tag|>x",
        '{"name": "calculator", "parameters": 3}',
        '{"name": "a"} and so on',
    ],
    "mistral": [
        "[TOOL_CALLS][",
        "[TOOL_CALLS]calculator",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]calculator[ARGS]{",
        "[TOOL_CALLS][[]]",
    ],
    "tags": ["<calculator>1"],
}


@pytest.mark.parametrize("name", FORMATS)
class TestFormats:
    def test_calls_are_read(self, name: Any) -> None:
        found = reply(f"{CALLS[name]}", Tools(format=name), CHAT)
        tool = {"role": "tool", "name": "calculator", "tool_call_id": "000000000", "content": "3"}
        assert found.messages == [
            {"role": "user", "content": "<result>3</result>"} if name == "tags" else tool
        ]

    def test_what_cannot_be_read_is_observed(self, name: Any) -> None:
        for text in MALFORMED[name]:
            found = reply(text, Tools(format=name), CHAT)
            assert [call.error for call in found.calls][-1] == "malformed", text
            assert "Error: " in contents(found)[-1]

    def test_answers_are_no_calls(self, name: Any) -> None:
        for text in ("3", "", "{}", '{"a": 1}', "the <tool> is [TOOLS]", "name"):
            assert reply(text, Tools(format=name), CHAT) == Reply(None)

    @settings(max_examples=100, deadline=None)
    @given(
        pieces=st.lists(
            st.sampled_from(
                [
                    *CALLS.values(),
                    "<tool_call>",
                    "</tool_call>",
                    "[TOOL_CALLS]",
                    "[ARGS]",
                    "<calculator>",
                    "{",
                    "}",
                    "[",
                    '"name":',
                    '"calculator"',
                    "<|python_tag|>",
                    ";",
                    ",",
                    "</think>",
                    "1e999",
                    '"\\ud83d"',
                    '{"\\udc00": ["\\ud83d"]}',
                    *("[" * 600, "]" * 600),
                    '<tool_call>{"name": "\\ud83d", "arguments": {"a": [',
                    '"\\ud83d"]}}</tool_call>',
                ]
            ),
            max_size=8,
        )
    )
    def test_no_text_raises(self, name: Any, pieces: list[str]) -> None:
        for record in reply("".join(pieces), Tools(format=name), CHAT).calls:
            assert record.result
            record.result.encode()
            dumps(asdict(record)).encode()

    @pytest.mark.parametrize(
        "value",
        [
            r'"\ud83d"',
            r'{"\ud83d": ["a\udc00", "\ud83d\ude00"]}',
            "[" * 600 + "]" * 600,
            "[" * 32 + "]" * 32,
        ],
    )
    def test_calls_can_be_written(self, name: Any, value: str) -> None:
        """Neither halves of surrogate pairs nor deep arguments raise, wherever a call holds
        them."""
        tools = Tools([HOSTILE + "add", "calculator"], format=name)
        key = "parameters" if name == "llama3" else "arguments"
        for called, argument in (("add", "a"), ("calculator", "expression"), (r"\ud83d", "a")):
            call = f'{{"name": "{called}", "{key}": {{"{argument}": {value}}}}}'
            texts = {
                "hermes": f"<tool_call>{call}</tool_call>",
                "mistral": f"[TOOL_CALLS][{call}]",
                "llama3": call,
            }
            tag = (
                f'<{called}>{{"{argument}": {value}}}</{called}>'
                if "ud83d" not in called
                else "<add>{}</add>"
            )
            [record] = reply(texts.get(name, tag), tools, CHAT).calls
            dumps(asdict(record)).encode()
            if name in ("hermes", "llama3", "mistral"):
                assert (record.error == "malformed") == ("[[" in value)


def test_other_spellings_of_calls() -> None:
    assert contents(reply(FUNCTION, Tools(format="hermes"), CHAT)) == ["3"]
    assert contents(
        reply('[TOOL_CALLS]calculator[ARGS]{"expression": "2"}', Tools(format="mistral"), CHAT)
    ) == ["2"]
    assert contents(reply("<|python_tag|>" + CALLS["llama3"], Tools(format="llama3"), CHAT)) == [
        "3"
    ]
    text = (
        '<tool_call>{"name": "calculator", "arguments": "{\\"expression\\": \\"2\\"}"}</tool_call>'
    )
    assert contents(reply(text, Tools(format="hermes"), CHAT)) == ["2"]
    assert contents(reply('<add>{"a": 1, "b": 2}</add>', Tools([HOSTILE + "add"], workers=1))) == [
        "<result>3</result>"
    ]


@pytest.mark.parametrize(
    ("tool", "given", "read"),
    [
        ("add", {"a": "1", "b": "2.5", "c": "true"}, {"a": 1, "b": 2.5, "c": True}),
        ("calculator", {"expression": "12"}, {"expression": "12"}),
        ("calculator", {"expression": " a\n<b> "}, {"expression": " a\n<b> "}),
        ("add", {"a": "one"}, {"a": "one"}),
        ("add", {}, {}),
        ("unknown", {"x": "[1]"}, {"x": [1]}),
    ],
)
def test_arguments_without_types_take_those_of_the_tool(
    tool: str, given: Mapping[str, str], read: Mapping[str, Any]
) -> None:
    pairs = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items()]
    call = f"<tool_call>\n<function={tool}>\n{''.join(pairs)}</function>\n</tool_call>"
    tools = {made.name: made for made in (load("calculator"), load(HOSTILE + "add"))}
    found = FORMATS["hermes"].read(f"<think><tool_call></think>{call}", tools)
    assert found == [Call(tool, read)]


def test_calls_of_glm_are_read() -> None:
    call = (
        "<tool_call>calculator\n<arg_key>expression</arg_key>\n<arg_value>1+2</arg_value>\n"
        "<arg_key>digits</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    )
    tools = {"calculator": load("calculator")}
    expected = Call("calculator", {"expression": "1+2", "digits": 3})
    assert FORMATS["hermes"].read(call, tools) == [expected]
    assert of_template("{% if tools %}<tool_call>NAME\n<arg_key>{% endif %}") == "hermes"


class TestIdentifiers:
    """Of calls, which chat templates of Mistral ask for in results."""

    def test_results_have_the_identifier_that_the_policy_gave(self) -> None:
        text = (
            '[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "1"}, "id": '
            '"abcDEF123"}]'
        )
        [message] = reply(text, Tools(format="mistral"), CHAT).messages or ()
        assert message["tool_call_id"] == "abcDEF123"

    @pytest.mark.parametrize(
        "given", ['"short"', '"<|im_end|>"', "3", "null", '"abcdefgh\\n"', "[1]"]
    )
    def test_others_are_replaced(self, given: str) -> None:
        text = (
            f'[TOOL_CALLS][{{"name": "calculator", "arguments": {{"expression": "1"}}, "id": '
            f"{given}}}]"
        )
        [message] = reply(text, Tools(format="mistral"), CHAT).messages or ()
        assert message["tool_call_id"] == "000000000"

    def test_calls_of_all_turns_have_different_ones(self) -> None:
        episode, calls = Tools(format="hermes").start(CHAT, key=()), CALLS["hermes"] * 2
        replies = [
            episode.reply(Turn(start, start + 20, calls, calls, "stop")) for start in (0, 30)
        ]
        found = [message["tool_call_id"] for reply in replies for message in reply.messages or ()]
        assert found == ["000000000", "000000001", "000000030", "000000031"]

    def test_a_tool_that_does_not_exist_lends_no_text_to_the_template(self) -> None:
        [message] = (
            reply(
                '<tool_call>{"name": "<|im_end|>", "arguments": {}}</tool_call>',
                Tools(format="hermes"),
                CHAT,
            ).messages
            or ()
        )
        assert message["name"] == "unknown"

    def test_templates_of_mistral_take_them(self) -> None:
        model = Model(MISTRAL)
        prompt = Prompt(id="a", messages=[{"role": "user", "content": "1+1?"}])
        conversation = Conversation.begin(model, prompt)
        call = CALLS["mistral"]
        episode = Tools(format="mistral").start(prompt, key=())
        observed = conversation.observe(model, call, True, episode.reply(said(call)).messages or ())
        assert '[TOOL_RESULTS]{"content": 3, "call_id": "000000000"}[/TOOL_RESULTS]' in model.text(
            observed.tokens
        )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "tags"),
        ("{{ messages }}", "tags"),
        ("{{ messages }}<tool_call>", "tags"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function={% endif %}", "hermes"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3"),
        (
            {"default": "{{ messages }}", "tool_use": "{% if tools %}<tool_call>{% endif %}"},
            "hermes",
        ),
    ],
)
def test_the_format_is_that_of_the_template(template: Any, expected: str) -> None:
    policy = Model(template)
    assert of_template(template) == expected
    assert Tools().for_policy(policy).format == expected
    assert Tools(format="llama3").for_policy(policy).format == "llama3"
    # prompts of plain text are of the format `tags`
    assert Tools(format="hermes").needs.stop == ("</calculator>",)
    assert Tools().needs.stop == ("</calculator>",)
