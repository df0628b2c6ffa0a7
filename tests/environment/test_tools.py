"""Episodes in which the policy calls tools."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from rlmods.environment import Tools
from rlmods.environment.formats import FORMATS
from rlmods.types import Prompt, Reply
from tests.environment.said import CHAT, PLAIN, reply, said
from tests.support.control_tokens import Model


class TestEpisode:
    def test_results_of_calls_are_observed(self) -> None:
        found = reply("hm <calculator>12*(3+4)</calculator>")
        assert found.messages == [{"role": "user", "content": "<result>84</result>"}]
        assert [(c.name, c.arguments, c.result, c.error) for c in found.calls] == [
            ("calculator", {"expression": "12*(3+4)"}, "84", None)
        ]
        assert found.reward is None

    @pytest.mark.parametrize("name", ["auto", "hermes"])
    def test_prompts_of_plain_text_are_shown_as_they_are(self, name: Any) -> None:
        episode = Tools(format=name).start(PLAIN, key=())
        assert (episode.prompt, list(episode.tools), episode.format) == (PLAIN, [], FORMATS["tags"])

    def test_a_turn_without_a_call_is_the_answer(self) -> None:
        assert reply("<answer>84</answer>") == Reply(None)
        assert reply("<think><calculator>1</calculator></think>84") == Reply(None)

    def test_nothing_is_run_of_a_truncated_turn(self) -> None:
        assert Tools().start(PLAIN, key=()).reply(
            said("<calculator>1</calculator>", "length")
        ) == Reply(None)

    def test_calls_are_run_in_order_up_to_a_number(self) -> None:
        found = reply(
            "".join(f"<calculator>{i}</calculator>" for i in range(9)), Tools(max_calls=2)
        )
        assert [c.result for c in found.calls] == [
            "0",
            "1",
            "Error: at most 2 calls are run in a turn",
        ]
        assert [c.error for c in found.calls] == [None, None, "error"]

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("<calculator>1+", "malformed", "<calculator> without </calculator>"),
            ("<calculator>1+</calculator>", "error", "ParseError: unexpected"),
            (
                "<calculator>__import__('os')</calculator>",
                "error",
                "ParseError: unexpected",
            ),
            ("<calculator>9**9**9</calculator>", "error", "TooLarge: power"),
            ("<calculator>1/0</calculator>", "error", "Undefined: "),
            ("<calculator>'a'</calculator>", "error", "ParseError: unexpected"),
        ],
    )
    def test_failures_are_observed(self, text: str, error: str, message: str) -> None:
        [call] = reply(text).calls
        assert call.error == error
        assert message in call.result
        assert call.result.startswith("Error: ")

    def test_tools_are_shown_in_a_system_message_without_a_template_for_them(self) -> None:
        bound = Tools(format="tags")
        first, second = (
            bound.start(CHAT, key=()).prompt,
            bound.start(
                Prompt(id="b", messages=[{"role": "system", "content": "Be brief."}]), key=()
            ),
        )
        assert first.messages is not None
        assert (
            "<calculator>expression</calculator>: Return the value" in first.messages[0]["content"]
        )
        assert first.messages[1:] == CHAT.messages
        assert second.prompt.messages is not None
        assert second.prompt.messages[0]["content"].endswith("\n\nBe brief.")
        hermes = Tools(format="hermes").start(CHAT, key=())
        assert hermes.prompt == CHAT
        assert hermes.tools[0]["function"]["name"] == "calculator"

    @pytest.mark.parametrize(
        "template",
        [
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% "
            "endif %}{% endfor %}",
            "{{ messages[-1].content }}",
        ],
    )
    def test_or_in_the_first_user_message_of_a_template_without_a_system_role(
        self, template: str
    ) -> None:
        model = Model(template)
        for messages in (
            CHAT.messages,
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                *(CHAT.messages or ()),
            ],
        ):
            shown = (
                Tools()
                .for_policy(model)
                .start(replace(CHAT, messages=messages), key=())
                .prompt.messages
                or ()
            )
            assert [message["role"] for message in shown] == [
                message["role"] for message in messages or ()
            ]
            assert "<calculator>expression</calculator>" in shown[0]["content"]
            assert shown[0]["content"].endswith(f"\n\n{(messages or ())[0]['content']}")
            assert shown[1:] == list(messages or ())[1:]

    def test_a_copy_does_not_copy_the_tools(self) -> None:
        episode = Tools().start(PLAIN, key=())
        assert copy.deepcopy(episode).environment is episode.environment
