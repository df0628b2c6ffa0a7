"""Answers that a plain sentence states, and those that are denied beside their marker."""

from __future__ import annotations

import pytest

from rlmods.grading.grader import extract, verify

LONG = "So it goes on and on with the numbers. " * 12
STATED = {
    "Thus, x = 18.": "x = 18.",
    "It is 18.": "18",
    "The total is 18.": "18",
    "The total is $18.": "$18",
    "She has 18 apples.": "18 apples",
    "So she has 18 gizmos left in the bag.": "18",
    "18 apples remain.": "18 apples",
    "Therefore, there are 18 apples.": "18 apples",
    "3 * 6 = 18. The area is 18 cm^2.": "18 cm^2",
    "Ans: 18": "18",
    LONG + "Therefore, 18 apples remain.": "18 apples",
    LONG + "Hence, the probability that Alice wins is 2/3.": "2/3",
    LONG + "Thus, there are 18 distinct sequences that meet the given conditions. I hope it is "
    "correct.": "18",
}
NOT_STATED = (
    "it cannot be 7",
    "it should not be 7",
    "it fails to be 7",
    "I doubt it could be 7",
    "it would be 7 if I had counted right",
    "the total is 7 unless it rains",
    "nobody says it is 7",
    "it is 7 thousand",
    "it isn't 7",
    "it is rare that it is 7",
    "the total is less than 7",
    "it is 7 or 8",
    "it is 7x",
)
DENIED = (
    r"It is not \boxed{7}.",
    r"Not \boxed{7} but 8",
    r"\boxed{7} is wrong.",
    r"\boxed{7}. Wait, it is 8.",
    "The answer is 7. No, it is 8.",
    "The answer is 7. Actually 8.",
    "The answer is $7$, $8$. Sorry, only 8.",
    "I do not think the answer is 7.",
    "The wrong answer is 7.",
    "<answer>7</answer> is wrong.",
    "It is not <answer>7</answer>.",
    "#### 7\nNo, it is 8.",
)
NOT_DENIED = (
    r"It is not 8. So it is \boxed{7}.",
    r"\boxed{1} no, \boxed{7}",
    r"The answer is \boxed{7}, not 8.",
    r"\boxed{7}. No further steps are needed.",
    r"We ask whether it is prime or not. \boxed{7}",
    "Since x is not 5, the answer is 7.",
    "It is not hard to see that the answer is 7.",
    "There is no doubt that the answer is 7.",
    "Check whether it converges or not\n\n**Answer:** 7",
    r"The probability is \boxed{7}, which is not an integer.",
)


@pytest.mark.parametrize(("text", "answer"), STATED.items(), ids=range(len(STATED)))
def test_a_sentence_states_its_number(text: str, answer: str) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize("sentence", NOT_STATED)
@pytest.mark.parametrize(
    "start",
    ["", "Therefore, ", LONG + "Therefore, ", LONG + "Hence ", LONG + "Thus, "],
    ids=range(5),
)
def test_a_denied_or_doubted_number_is_not_stated(sentence: str, start: str) -> None:
    assert not verify(f"{start}{sentence}.", "7")


def test_a_unit_of_a_conclusion_counts() -> None:
    assert not verify(LONG + "Therefore, it is 7 pounds.", r"7\text{ kg}")
    assert verify(LONG + "Therefore, it is 7000 g.", r"7\text{ kg}")


@pytest.mark.parametrize("text", DENIED)
def test_a_denied_answer_is_none(text: str) -> None:
    assert not verify(text, "7")


@pytest.mark.parametrize("text", NOT_DENIED)
def test_another_denial_does_not_reach_the_answer(text: str) -> None:
    assert verify(text, "7")


def test_the_last_sentence_counts() -> None:
    assert not verify("It is 6. No, it is 7.", "6")
    assert not verify("The total is 7. I am not sure.", "7")
