"""Long sums, and demonstrations of a calculator."""

import re

import pytest

from rlmods.data import LongSums
from rlmods.errors import UserError
from rlmods.grading.tool_worker import calculator
from rlmods.policy import Tiny


def test_answers_are_those_of_the_calculator() -> None:
    splits = LongSums(num_train=30, num_val=10)()
    assert (len(splits.train), len(splits.val)) == (30, 10)
    for prompt in (*splits.train, *splits.val):
        assert prompt.text is not None
        assert re.fullmatch(r"\d{5}[+-]\d{5}=", prompt.text)
        assert prompt.answer == calculator(prompt.text[:-1])
    assert not {p.text for p in splits.train} & {p.text for p in splits.val}


def test_demonstrations_call_or_answer_wrongly_and_copy_results() -> None:
    splits = LongSums(num_train=400, num_val=4, demonstrations=True)()
    kinds = {"call": 0, "wrong": 0, "result": 0}
    for prompt in splits.train:
        question, _, rest = (prompt.text or "").partition("=")
        response = prompt.meta["response"]
        if rest:
            assert (
                rest == f"<calculator>{question}</calculator>\n<result>{prompt.answer}</result>\n"
            )
            assert response == f"<answer>{prompt.answer}</answer>"
            kinds["result"] += 1
        elif "<calculator>" in response:
            assert response == f"<calculator>{question}</calculator>"
            kinds["call"] += 1
        else:
            assert response != f"<answer>{prompt.answer}</answer>"
            kinds["wrong"] += 1
    assert 160 < kinds["result"] < 240
    assert 0.2 < kinds["call"] / (kinds["call"] + kinds["wrong"]) < 0.4
    assert all(prompt.meta == {} for prompt in splits.val)


def test_the_embedded_model_reads_all_characters() -> None:
    policy = Tiny()()
    [prompt] = LongSums(num_train=1, num_val=0, demonstrations=True)().train
    text = (prompt.text or "") + prompt.meta["response"]
    assert (
        policy.decode(policy.encode_response(text, finished=False), skip_special_tokens=False)
        == text
    )


def test_bounds_are_checked() -> None:
    with pytest.raises(UserError, match=r"data\.digits=1: there are only 162 questions"):
        LongSums(digits=1, num_train=100)()
