"""Talking to a policy."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch

from rlmods.cli import chat as module
from rlmods.cli.chat import Conversation, Printer, Settings, chat, parse_settings
from rlmods.errors import UserError
from rlmods.policy.hf import load
from tests.support.environments import forgetful
from tests.support.tiny_setup import policy
from tests.test_docs import ROOT

TINY = str(ROOT / "rlmods/policy/weights/tiny")


def ask(monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    chat(TINY, words)


class TestSettings:
    def test_values(self) -> None:
        assert parse_settings(["temperature=0", "max_tokens=8", "system=Be brief."]) == Settings(
            8, 0.0, system="Be brief."
        )

    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("temprature=1", "temprature=1: no such setting; did you mean temperature"),
            ("hot", "hot: no such setting; choose from max_tokens"),
            ("max_tokens=many", "Value 'many' of type 'str' could not be converted to Integer"),
            ("max_tokens=0", "max_tokens=0: must be at least 1"),
            ("temperature=-1", "temperature=-1.0: must be 0"),
            ("top_p=0", "top_p=0.0: must be above 0"),
            ("top_k=-1", "top_k=-1: must be 0"),
        ],
    )
    def test_mistakes(self, word: str, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            parse_settings([word])
        assert "\n" not in str(error.value)


class TestLines:
    def test_each_line_is_answered(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        ask(monkeypatch, "1+1=\n\n/reset\n2+3=\n/exit\n4+4=\n", "temperature=0", "max_tokens=8")
        assert re.fullmatch(r"(<answer>-?\d+</answer>\n){2}", capsys.readouterr().out)

    def test_a_seed_repeats_the_answers(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        found = []
        for seed in (1, 1, 2):
            ask(monkeypatch, "12+35=\n99-13=\n47+44=\n" * 4, "temperature=2", f"seed={seed}")
            found.append(capsys.readouterr().out)
        assert found[0] == found[1] != found[2]

    def test_a_cut_answer_says_so(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        ask(monkeypatch, "1234+5678=\n", "temperature=0", "max_tokens=1")
        assert capsys.readouterr().err.endswith("[cut at max_tokens, 1 tokens]\n")

    def test_a_line_beyond_the_context_ends_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        ask(monkeypatch, f"{'1' * 5000}\n1+1=\n", "temperature=0")
        out, err = capsys.readouterr()
        assert re.fullmatch(r"<answer>-?\d+</answer>\n", out)
        assert "error: the conversation has 500" in err

    def test_control_characters_of_an_error_are_escaped(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        def refuse(self: Conversation, text: str) -> str:
            raise UserError("the template says \x1b[2J")

        monkeypatch.setattr(Conversation, "answer", refuse)
        ask(monkeypatch, "1+1=\n")
        assert capsys.readouterr().err.endswith("error: the template says \\x1b[2J\n")

    def test_ctrl_c_stops_an_answer_only(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        answer, answers = Conversation.answer, []

        def interrupted(self: Conversation, text: str) -> str:
            answers.append(text)
            if len(answers) == 1:
                raise KeyboardInterrupt
            return answer(self, text)

        monkeypatch.setattr(Conversation, "answer", interrupted)
        ask(monkeypatch, "1+2=\n1+1=\n", "temperature=0")
        assert re.fullmatch(r"\n\[stopped\]\n<answer>-?\d+</answer>\n", capsys.readouterr().out)


class TestConversation:
    def test_a_chat_template_gets_what_was_said(self, capsys: Any) -> None:
        model = forgetful(policy()).eval()
        conversation = Conversation(model, Settings(max_tokens=4, temperature=0))
        first = conversation.answer("1+1")
        conversation.answer("2+2")
        assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
        assert conversation.messages[1]["content"] == first
        conversation.reset()
        assert conversation.answer("1+1") == first

    def test_a_system_message_needs_a_template(self) -> None:
        with pytest.raises(UserError, match="has no chat template"):
            Conversation(load(TINY), Settings(system="x"))

    def test_control_characters_are_escaped(self, capsys: Any) -> None:
        Printer(None).on_finalized_text("\x1b[2Ja", stream_end=True)
        assert capsys.readouterr().out == "\\x1b[2Ja\n"

    def test_sampling_settings_of_the_checkpoint_are_not_used(self) -> None:
        model = load(TINY).eval()
        model.model.generation_config.update(temperature=0.01, top_k=1, do_sample=False)
        conversation = Conversation(model, Settings(max_tokens=6, temperature=3.0))
        torch.manual_seed(0)
        assert len({conversation.answer("12+35=") for _ in range(8)}) > 3


def test_usage(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert "RUN_OR_MODEL" in capsys.readouterr().out
