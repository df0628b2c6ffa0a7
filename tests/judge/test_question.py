from __future__ import annotations

import pytest

from rlmods.judge.question import TEMPLATE, ask, names, read_verdict
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
    def test_is_the_last_word(self, reply, verdict):
        assert read_verdict(reply) == verdict


class TestAsk:
    def test_fills_in_what_it_shows(self):
        prompt = Prompt(id="0", text="1+1={x}", answer="2")
        assert ask("{prompt}|{first}|{second}|{answer}", prompt, "{first}", "two") == "1+1={x}|{first}|two|2"
        assert ask("{first}{second}{answer}.", Prompt(id="0", text="?"), "a", "b") == "ab."

    def test_chat_turns(self):
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        assert ask("{prompt}|{first}{second}", Prompt(id="0", messages=turns[1:]), "", "") == "Hi|"
        assert ask("{prompt}|{first}{second}", Prompt(id="0", messages=turns), "", "") == "system: Be brief.\n\nuser: Hi|"

    def test_the_usual_question_shows_all_but_the_answer(self):
        asked = ask(TEMPLATE, Prompt(id="0", text="QUESTION", answer="GOLD"), "ONE", "TWO")
        assert asked.index("QUESTION") < asked.index("ONE") < asked.index("TWO")
        assert "GOLD" not in asked
        assert asked.endswith("A, B or TIE.")


class TestNames:
    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{first} {second} {third}", ["{third}", "prompt, first, second, answer"]),
            ("{first} {second} {", ["brace"]),
            ("{first} {second} {0}", ["{0}"]),
            ("{first} {second} {prompt.id}", ["{prompt.id}"]),
            ("{prompt} {second}", ["lacks {first}"]),
            ("{prompt} {first}", ["lacks {second}"]),
        ],
    )
    def test_refuses(self, template, words):
        with pytest.raises(UserError) as error:
            names(template)
        assert all(word in str(error.value) for word in ["judge.template", *words])

    def test_finds(self):
        assert names("{first}{second} {{literal}}") == {"first", "second"}
