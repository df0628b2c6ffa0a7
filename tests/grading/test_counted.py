"""Words of the question count as units of an answer, words that change its number do not."""

from __future__ import annotations

import pytest

from rlmods.grading.grader import Rules, verify

NOUNS = "clips wagons berries leaves dishes foxes heroes pancakes stools goats quilts bracelets"
FORMS = (r"\boxed{72\text{ NOUN}}", "#### 72 NOUN", "The final answer is 72 NOUN.", "72 NOUN")


@pytest.mark.parametrize("noun", NOUNS.split())
@pytest.mark.parametrize("form", FORMS)
def test_a_noun_of_the_question_is_a_unit(noun: str, form: str) -> None:
    question = f"Ann sold 48 {noun} in April and half as many in May. How many {noun} in all?"
    text = form.replace("NOUN", noun)
    assert verify(text, "72", Rules(), question)
    assert not verify(text, "73", Rules(), question)
    assert not verify(text.replace(noun, "widgets"), "72", Rules(), question)


def test_singular_and_plural() -> None:
    assert verify(r"\boxed{1\text{ berry}}", "1", Rules(), "How many berries are left?")


@pytest.mark.parametrize("words", ["dozen clips", "more clips", "thousand clips", "or 73 clips"])
def test_words_that_change_the_number_are_refused(words: str) -> None:
    question = "How many more clips, a dozen or a thousand clips, or 73?"
    assert not verify(rf"\boxed{{72\text{{ {words}}}}}", "72", Rules(), question)
