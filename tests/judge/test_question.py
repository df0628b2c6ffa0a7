from __future__ import annotations

import pytest

from rlmods.judge.question import TEMPLATE, format_comparison, read_verdict, template_fields
from rlmods.types import Prompt, UserError

A, TIE, B = 1.0, 0.5, 0.0


class TestReadVerdict:
    @pytest.mark.parametrize(
        ("reply", "verdict"),
        [
            ("A", A),
            ("B\n", B),
            ("TIE", TIE),
            ("tie.", TIE),
            ("**B**", B),
            ("[[A]]", A),
            ("_A_", A),
            ("Verdict: A.", A),
            ("The second has the right sum, A does not.\n\nVerdict: **B**\n\n", B),
            ("I would say B at first, but A shows its work.\nA", A),
            ("It is a tie", TIE),
            ("Response B", B),
            ("\\boxed{A}", A),
            ("", None),
            ("  \n", None),
            ("Both are fine.", None),
            ("A reasonable reply, though short.", None),
            ("A or B", None),
            ("I prefer B over A", None),
            ("Between A and B: A", None),
            ("A\nB and A are alike", None),
            ("A\nI hope that helps!", None),
            ("a", None),
            ("AB", None),
            ("A1", None),
            ("Final verdict: not A", None),
            ("It is neither A", None),
            ("Both deserve an A", None),
            ("The best response is B", B),
            ("A\n```", A),
            ("**Verdict:** A\n\n---", A),
        ],
    )
    def test_reads_the_last_word(self, reply, verdict):
        assert read_verdict(reply) == verdict


class TestFormatComparison:
    def test_fills_in_the_fields_and_keeps_braces_in_values(self):
        prompt = Prompt(id="0", text="1+1={x}", answer="2")
        assert format_comparison("{prompt}|{first}|{second}|{answer}", prompt, "{first}", "two") == "1+1={x}|{first}|two|2"
        assert format_comparison("{first}{second}{answer}.", Prompt(id="0", text="?"), "a", "b") == "ab."

    def test_formats_chat_turns(self):
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert format_comparison("{prompt}|{first}{second}", Prompt(id="0", messages=turns[1:]), "", "") == "Hi|"
        assert format_comparison("{prompt}|{first}{second}", Prompt(id="0", messages=turns), "", "") == "system: Be brief.\n\nuser: Hi|"

    def test_default_template_shows_everything_but_the_answer(self):
        text = format_comparison(TEMPLATE, Prompt(id="0", text="QUESTION", answer="GOLD"), "ONE", "TWO")
        assert text.index("QUESTION") < text.index("ONE") < text.index("TWO")
        assert "GOLD" not in text
        assert text.endswith("A, B or TIE.")


class TestTemplateFields:
    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{first} {second} {third}", ["{third}", "prompt, first, second, answer"]),
            ("{first} {second} {", ["brace"]),
            ("{first} {second} {0}", ["{0}"]),
            ("{first} {second} {prompt.id}", ["{prompt.id}"]),
            ("{prompt} {second}", ["{first} is missing"]),
            ("{prompt} {first}", ["{second} is missing"]),
        ],
    )
    def test_rejects_invalid_templates(self, template, words):
        with pytest.raises(UserError) as error:
            template_fields(template)
        assert all(word in str(error.value) for word in ["judge.template", *words])

    def test_returns_the_field_names(self):
        assert template_fields("{first}{second} {{literal}}") == {"first", "second"}
