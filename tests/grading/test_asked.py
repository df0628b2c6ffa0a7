"""Words of the question count as units of an answer, words that change its number do not; the name
of what is asked is a label."""

import time

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
    assert verify(r"\boxed{1\text{ wagon}}", "1", Rules(), "How many wagons are left?")


@pytest.mark.parametrize("words", ["dozen clips", "more clips", "thousand clips", "or 73 clips"])
def test_words_that_change_the_number_are_refused(words: str) -> None:
    question = "How many more clips, a dozen or a thousand clips, or 73?"
    assert not verify(rf"\boxed{{72\text{{ {words}}}}}", "72", Rules(), question)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many dozen eggs does she need?", r"6\text{ dozen}"),
        ("How many dozens of eggs are there?", "6 dozens of eggs"),
        ("How many million dollars did it cost?", r"6\text{ million}"),
        (r"Find $\lim_{x\to 3}\frac{x^2-9}{x-3}$.", r"\lim_{x\to 3}\frac{x^2-9}{x-3} = 3+3 = 6"),
    ],
)
def test_what_the_question_asks_for_may_be_named(question: str, answer: str) -> None:
    text = rf"\boxed{{{answer}}}"
    assert verify(text, "6", Rules(), question)
    assert not verify(text, "7", Rules(), question)
    assert not verify(text, "6", Rules(), "How much is it?")


@pytest.mark.parametrize("answer", ["m+n=6", "|A| = 6", r"P(X\cap Y)=6"])
def test_a_name_is_a_label(answer: str) -> None:
    question = rf"Find ${answer.partition('=')[0]}$."
    assert verify(rf"\boxed{{{answer}}}", "6", Rules(), question)
    assert not verify(rf"\boxed{{{answer}}}", "7", Rules(), question)


@pytest.mark.parametrize(
    ("answer", "gold", "question"),
    [
        ("2**5", "25", "How many?"),
        ("2*3", "23", "How many?"),
        (r"\text{minus } 5", "5", "What is 3 minus 8?"),
        (r"5 \text{ apples if it rains}", "5", "How many apples are left if it rains?"),
        (r"\text{three fourths}", "3", "How many fourths make 3/4?"),
        ("2x+1=5", "5", "If 2x+1 is 11, what is x?"),
        ("€1, €500", "1500 euros", "What is the price?"),
    ],
)
def test_words_and_signs_of_the_question_may_change_the_number(
    answer: str, gold: str, question: str
) -> None:
    assert not verify(rf"\boxed{{{answer}}}", gold, Rules(), question)


def test_an_equation_that_is_the_gold_keeps_its_left_side() -> None:
    assert verify(r"\boxed{m+n=33}", "m+n=33", Rules(), "Find m+n.")


SOLD = "Ann sold 17 crates in April and 34 crates in May. How many crates did Ann sell in all?"


@pytest.mark.parametrize(
    "text",
    [
        "Ann sold 51 crates.",
        "Therefore, Ann sold 51 crates in April and May.",
        "Ann sold 17 + 34 = 51 crates.",
        "17 crates + 34 crates = 51 crates",
        "The total is 17 + 34 = 51 crates.",
        "Answer: 51 crates were sold.",
        "Total = **51**",
    ],
)
def test_a_sentence_in_words_of_the_question_states_its_number(text: str) -> None:
    assert verify(text, "51", Rules(), SOLD)
    assert not verify(text, "34", Rules(), SOLD)
    assert not verify(text.replace("51", "52"), "51", Rules(), SOLD)


@pytest.mark.parametrize(
    "text",
    [
        "Ann sold not 51 crates.",
        "Bob sold 51 crates.",
        "Ann sold more than 51 crates.",
        "Ann sold 51 thousand crates.",
        "Ann sold 50 or 51 crates.",
        "Ann sold 51 crates and six",
        "34 = 51",
    ],
)
def test_other_sentences_do_not(text: str) -> None:
    assert not verify(text, "51", Rules(), SOLD)


@pytest.mark.parametrize(
    "answer", ["2x=6", "m+n>6", r"m+n\ne 6", r"m+n\le 6", "m+n=7=6", "m+n=6=7", "m+n+1=6"]
)
def test_a_side_of_an_equation_is_not_a_name(answer: str) -> None:
    assert not verify(rf"\boxed{{{answer}}}", "6", Rules(), "If $2x=12$, what is $m+n$ with $n=x$?")


@pytest.mark.parametrize(
    ("answer", "gold", "wrong"),
    [
        (r"\frac{dy}{dx} = 2x", "2x", "3x"),
        (r"|\vec{v}| = 6", "6", "7"),
        (r"P(A) = \frac12", "1/2", "1/3"),
        ("f'(3) = 6", "6", "3"),
        (r"\det(A) = 6", "6", "-6"),
        ("y=2x", "f(x)=2x", "f(x)=3x"),
    ],
)
def test_a_name_that_its_form_tells_needs_no_question(answer: str, gold: str, wrong: str) -> None:
    assert verify(rf"\boxed{{{answer}}}", gold, Rules())
    assert not verify(rf"\boxed{{{answer}}}", wrong, Rules())


@pytest.mark.parametrize(
    ("answer", "gold"), [(r"\frac{1}{2} = 2x", "2x"), ("x=2y", "f(x)=2x"), ("2f(3) = 6", "6")]
)
def test_the_side_of_an_equation_is_not_a_name_by_its_form(answer: str, gold: str) -> None:
    assert not verify(rf"\boxed{{{answer}}}", gold, Rules())


def test_a_residue_may_name_the_modulus_of_its_question() -> None:
    text = r"\boxed{x \equiv 3 \pmod{7}}"
    assert verify(text, "3", Rules(), "Find x modulo 7.")
    assert verify(r"\boxed{3 \pmod 7}", "3", Rules(), "What remains if it is divided by 7?")
    for question in ("Find x modulo 5.", "Find x modulo 70.", "Find x."):
        assert not verify(text, "3", Rules(), question)
    assert not verify(text, "4", Rules(), "Find x modulo 7.")


def test_a_percentage_of_the_question_may_have_a_fraction_as_gold() -> None:
    question = "What percent is it?"
    assert verify(r"\boxed{40\%}", "0.4", Rules(), question)
    assert verify(r"\boxed{40\%}", "40", Rules(), question)
    assert not verify(r"\boxed{4\%}", "0.4", Rules(), question)


def test_a_name_of_many_brackets_is_read_in_linear_time() -> None:
    start = time.thread_time()
    verify(r"\boxed{" + r"\(a)" * 29 + "x}", "6", Rules(), "Find it.")
    assert time.thread_time() - start < 1
