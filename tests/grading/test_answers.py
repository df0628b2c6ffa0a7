"""The grader with its default rules on responses that a person would grade without doubt
(`answers.jsonl`): honest ones in the styles of models, hostile ones by the hole they try."""

import json
from pathlib import Path

import pytest

from rlmods.grading.grader import CLOSED_FORMS, Rules, same_answer, verify
from rlmods.grading.grader.echo import repeats

CORPUS = Path(__file__).with_name("answers.jsonl")
ROWS = [json.loads(line) for line in CORPUS.read_text().splitlines()]
"""Whether the response is right, family, gold, response, question."""
FAMILIES = list(dict.fromkeys((is_right, family) for is_right, family, *_ in ROWS))


@pytest.mark.parametrize(("is_right", "family"), FAMILIES)
def test_honest_answers_are_paid_and_hostile_ones_are_not(is_right: bool, family: str) -> None:
    rows = [row[2:] for row in ROWS if row[:2] == [is_right, family]]
    graded = [(verify(text, gold, Rules(), question), text) for gold, text, question in rows]
    assert [text for is_paid, text in graded if is_paid is not is_right] == []


LENIENT = [  # rules, gold, answer
    (Rules(form="any"), "1584", "99*16"),
    (Rules(form="closed_form"), "1024", "2^{10}"),
    (Rules(form="closed_form"), "120", r"\binom{16}{2}"),
    (Rules(form="closed_form"), "1/2", r"\frac{2}{4}"),
    (Rules(any_unit=True), "5", r"5\text{ blue widgets}"),
    (Rules(irrational_digits=3), r"\pi", "3.14"),
    (Rules(repeating_digits=2), r"\frac{1}{3}", "0.33"),
]


@pytest.mark.parametrize(("rules", "gold", "answer"), LENIENT)
def test_a_lenient_rule_accepts_what_the_default_refuses(
    rules: Rules, gold: str, answer: str
) -> None:
    assert same_answer(answer, gold, rules)
    assert not same_answer(answer, gold)


def test_every_rule_has_an_example() -> None:
    changed = {
        name
        for rules, _, _ in LENIENT
        for name in Rules.__slots__
        if getattr(rules, name) != getattr(Rules(), name)
    }
    assert changed == set(Rules.__slots__) - {"sympy"}  # test_algebra


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("10", "9+1"),
        ("1584", "99*16"),
        ("1584", r"99 \cdot 2^4 + 0"),
        ("10", "x = 9 + 1"),
        ("3", "2^2 - 1"),
    ],
)
def test_sums_and_products_of_numbers_are_no_closed_forms(gold: str, answer: str) -> None:
    assert not same_answer(answer, gold, CLOSED_FORMS)
    assert same_answer(answer, gold, Rules(form="any"))


def test_verify_knows_the_question_if_told() -> None:
    assert verify(r"\boxed{2^{10}}", "1024")
    assert not verify(r"\boxed{2^{10}}", "1024", question="What is $2^{10}$?")
    assert not verify(r"\boxed{2^{10}}", "1024", Rules())


def test_an_unknown_form() -> None:
    with pytest.raises(
        ValueError, match="form='number\\?' must be one of number, closed_form, any"
    ):
        Rules(form="number?")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gold", "answer", "question", "repeated"),
    [
        ("1584", "99*16", "99*16=", True),
        ("1584", r"99 \times 16", r"What is $99\cdot 16$?", True),
        ("x^2+2x+1", "(x+1)^2", "Expand $(x+1)^2$.", True),
        (r"\pi/2", r"\frac{\pi}{2}", r"Is it $\dfrac{\pi}{2}$ or $\pi$?", False),
        (r"\frac{1}{2}", "1/2", "Is it 1/2 or 1/3?", False),
        ("B", r"B) \frac{1}{2}", r"A) 1, B) \frac{1}{2}", False),
        ("-5", "-5", "Which of -5 and 5?", False),
        ("x+1", "1+x", "Is it x+1 or 1+x?", False),
    ],
)
def test_repetition_of_the_question(gold: str, answer: str, question: str, repeated: bool) -> None:
    assert repeats(answer, gold, question) is repeated
